// Compares the recognizer and its masks, token by token, with the sets of short texts of random grammars. The input is
// the grammar's number (four bytes), then the tokens of the vocabulary: a byte for each length, and one for each
// letter.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "grammar/random_grammar.h"
#include "grammar/vocabulary_of.h"

namespace {

using namespace sluice;
using namespace sluice::grammar;

constexpr size_t kMostTokens = 24, kMostPrefixes = 120;

std::vector<std::string> tokens_of(std::span<const uint8_t> data) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  for (size_t i = 0; i < data.size() && tokens.size() < kMostTokens; ++i) {
    std::string token;
    for (size_t n = 2 + data[i] % 4; n > 0 && i + 1 < data.size(); --n) {
      token.push_back(static_cast<char>('a' + data[++i] % 3));
    }
    if (!token.empty()) tokens.push_back(token);
  }
  return tokens;
}

// Whether a search over all further texts ends without a complete one.
bool is_dead_end(const Matcher& m) {
  std::vector<Matcher> level = {m};
  for (int n = 0; n <= 40; ++n) {
    std::vector<Matcher> next;
    for (const Matcher& from : level) {
      if (from.complete()) return false;
      for (const char* c : {"a", "b", "c"}) {
        Matcher to(from);
        if (to.accept(c)) next.push_back(std::move(to));
      }
      if (next.size() > 200) return false;  // too many to tell
    }
    if (next.empty()) return true;
    level = std::move(next);
  }
  return false;
}

// The mask after `text` against the texts of the grammar: an allowed token begins one of them, or a text that is too
// long to be among them; another token begins none.
void check(const Matcher& m, const Vocabulary& vocabulary, std::span<const std::string> tokens, const std::string& text,
           const Texts& prefixes) {
  const std::vector<uint32_t> mask = mask_of(m, vocabulary);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_allowed = allowed(mask, static_cast<TokenId>(i)), known = prefixes.contains(text + tokens[i]);
    CHECK(is_allowed || !known, "'{}' may follow '{}', but its mask says no", tokens[i], text);
    Matcher after(m);
    CHECK(after.accept(static_cast<TokenId>(i)) == is_allowed, "'{}' after '{}': the mask and the step differ",
          tokens[i], text);
    if (!is_allowed || known) continue;
    const bool seems_short = text.size() + tokens[i].size() <= 3;  // its completions are seldom long
    CHECK(!seems_short || !is_dead_end(after), "nothing completes '{}' after '{}'", tokens[i], text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t number = 0;
  if (size < sizeof(number)) return 0;
  std::memcpy(&number, data, sizeof(number));
  RandomGrammar reference(number);
  const std::shared_ptr<const Grammar> grammar = reference.finish();
  CHECK(grammar || reference.texts().empty(), "grammar {} has texts, but is refused", number);
  if (!grammar) return 0;
  const std::vector<std::string> tokens = tokens_of({data + sizeof(number), size - sizeof(number)});
  const auto vocabulary = vocabulary_of(tokens);
  Texts prefixes;
  for (const std::string& text : reference.texts()) {
    for (size_t n = 0; n <= text.size(); ++n) prefixes.insert(text.substr(0, n));
  }
  size_t checked = 0;
  for (const std::string& prefix : prefixes) {
    if (++checked > kMostPrefixes) break;
    Matcher m(grammar, vocabulary);
    CHECK(m.accept(prefix), "'{}' begins a text of grammar {}, but is refused", prefix, number);
    CHECK(m.complete() == reference.texts().contains(prefix), "grammar {}: is '{}' complete?", number, prefix);
    check(m, *vocabulary, tokens, prefix, prefixes);
  }
  return 0;
}
