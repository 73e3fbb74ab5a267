// A compiled grammar, the vocabulary it constrains, and the state of a text in it.
//
// A recognizer is a set of stacks of states, interned, so that a set is one number and steps are memoized. Masks come
// from a walk over the trie of the vocabulary. No prefix that a mask allows is a dead end: some text of the grammar
// continues it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/request.h"

namespace sluice::grammar {

class Grammar;  // made by Builder; thread-safe and shared
// The memory of a grammar with all it has computed so far.
size_t memory_of(const Grammar& grammar);
// Memory ran out while the grammar was used: its matchers throw, and it must be compiled anew.
bool is_broken(const Grammar& grammar);

// The trie of a vocabulary's tokens as bytes. Made once per model.
class Vocabulary {
 public:
  struct Options {
    int width = 0;                      // ids of a mask, at least the number of tokens
    std::vector<TokenId> end_tokens{};  // allowed where the text may end
  };
  // tokens[id]: its bytes; empty for special and unused tokens, which only Builder::special and the end allow.
  Vocabulary(std::span<const std::string> tokens, Options options);
  ~Vocabulary();

  int width() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
};

// The state of one text. A value: copies are cheap and independent, so that a copy is also how to roll back.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary);
  Matcher(const Matcher&);
  Matcher& operator=(const Matcher&);
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  // Sets bit id % 32 of word id / 32 for each token that may come next and clears the others. `words` has
  // (width + 31) / 32. End tokens are allowed where the text is complete.
  void fill_mask(std::span<uint32_t> words) const;
  // Moves on by a token or by bytes. False: not allowed; the state is as before. An end token leaves it as it is.
  // All of these throw GrammarError if the grammar needs too much memory or work; the state is as before.
  bool accept(TokenId token);
  bool accept(std::string_view bytes);
  bool complete() const;  // the text is one of the grammar
  bool ended() const;     // complete, and only an end token may follow
  // Appends the bytes that must come next whatever is sampled, up to `most` of them; nothing where the text may end.
  void forced(std::string& bytes, size_t most) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::grammar
