// What is known of the plain text that may follow a set: text of whole characters that a JSON string holds as they are.
// Most of a vocabulary is plain, so that masks need no walk over it where this is known.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grammar/recognizer.h"
#include "grammar/trie.h"

namespace sluice::grammar {

class PlainText {
 public:
  // Only texts of at most `longest` bytes matter.
  explicit PlainText(int longest) : longest_(longest) {}

  static constexpr int kAll = INT32_MAX;
  static constexpr int kMixed = -1;
  // n, if exactly the plain texts of at most n characters may follow; kAll, if all may; else kMixed.
  int run(Recognizer& recognizer, StackSet set);
  // Whether any plain text may follow. False also where that takes too long to find out.
  bool free(Recognizer& recognizer, StackSet set);
  // The same where a character begins with the byte: `set` is the one after it.
  bool free_after(Recognizer& recognizer, StackSet set, uint8_t byte);
  // Whether all texts of at most `most` bytes, and whole characters, of `bytes` may follow. False also where they do
  // not lead to one set after each number of characters.
  bool free_of(Recognizer& recognizer, StackSet set, const ByteSet& bytes, int most);
  void clear();
  size_t bytes() const {
    return 32 * (after_.size() + runs_.size() + free_after_.size()) + free_.capacity() +
           step_of_.capacity() * sizeof(uint32_t) + steps_.capacity() * sizeof(Step);
  }

 private:
  static constexpr StackSet kVaries = UINT32_MAX;
  enum : uint8_t { kUnknown, kFree, kNotFree };

  StackSet after(Recognizer& recognizer, StackSet set);
  StackSet after_character(Recognizer& recognizer, StackSet set);
  uint8_t& known(StackSet set);
  // The set to which most characters lead, and those characters.
  struct Step {
    ByteSet bytes;
    StackSet next = 0;
  };
  Step step(Recognizer& recognizer, StackSet set);
  struct Search;

  int longest_;
  std::unordered_map<StackSet, StackSet> after_;
  std::unordered_map<StackSet, int> runs_;
  std::vector<uint8_t> free_;  // by set
  std::unordered_map<uint64_t, bool> free_after_;
  std::vector<uint32_t> step_of_;  // by set: 1 + index of its step; 0: not computed
  std::vector<Step> steps_;
};

}  // namespace sluice::grammar
