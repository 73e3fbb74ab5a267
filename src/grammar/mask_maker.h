// Makes the masks of one grammar and one vocabulary, and keeps them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/plain_text.h"
#include "grammar/recognizer.h"
#include "grammar/vocabulary.h"

namespace sluice::grammar {

class MaskMaker {
 public:
  explicit MaskMaker(std::shared_ptr<const Vocabulary> vocabulary);

  void fill(Recognizer& recognizer, StackSet set, std::span<uint32_t> words);
  // Forgets everything, as after Recognizer::collect().
  void clear();
  size_t bytes() const;

 private:
  static constexpr size_t kMostBytes = 32 << 20;  // of kept masks
  // The tokens of a group that a set allows: plain ones of at most `run` characters, without those that are removed,
  // and with added ones. Or if that is shorter, the mask of all.
  struct Allowed {
    int run = 0;
    std::vector<TokenId> added{}, removed{};
    Mask mask{};
  };
  // A group with what is known of it.
  struct Part {
    const TokenGroup& group;
    PlainText plain;
    std::unordered_map<StackSet, Allowed> kept{};
  };

  const Allowed& allowed(Recognizer& recognizer, Part& part, StackSet set);
  Allowed make(Recognizer& recognizer, Part& part, StackSet set);
  void walk_plain(Recognizer& recognizer, Part& part, StackSet set, Allowed& out);
  static bool all_follow(Recognizer& recognizer, Part& part, size_t node, StackSet set);
  void walk_others(Recognizer& recognizer, const Trie& trie, StackSet set, Allowed& out);
  void add_ends(Recognizer& recognizer, StackSet set, std::span<uint32_t> words);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::array<Part, 2> parts_;
  size_t bytes_ = 0;
  std::vector<const Recognizer::Row*> path_;
};

}  // namespace sluice::grammar
