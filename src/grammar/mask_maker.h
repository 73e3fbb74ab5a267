// Makes the masks of one grammar and one vocabulary, and keeps them.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/recognizer.h"
#include "grammar/vocabulary.h"

namespace sluice::grammar {

class MaskMaker {
 public:
  explicit MaskMaker(std::shared_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  void fill(Recognizer& recognizer, StackSet set, std::span<uint32_t> words);
  // Forgets everything, as after Recognizer::collect().
  void clear();
  size_t bytes() const { return bytes_ + 64 * plain_.size(); }

 private:
  static constexpr size_t kMostBytes = 32 << 20;  // of kept masks
  // A mask, or if that is shorter, the ids of its tokens.
  struct Kept {
    bool sparse = false;
    std::vector<uint32_t> words;
  };

  void make(Recognizer& recognizer, StackSet set, std::span<uint32_t> words);
  void keep(StackSet set, std::span<const uint32_t> words);
  void walk(Recognizer& recognizer, StackSet set, const Trie& trie, std::span<uint32_t> words) {
    walk(recognizer, set, trie, 0, trie.nodes().size(), words);
  }
  void walk(Recognizer& recognizer, StackSet set, const Trie& trie, size_t first, size_t last,
            std::span<uint32_t> words);
  bool fill_by_first(Recognizer& recognizer, StackSet set, std::span<uint32_t> words);
  bool begins_any_text(Recognizer& recognizer, const Recognizer::Row& row, uint8_t byte);
  int plain_run(Recognizer& recognizer, StackSet set);
  StackSet after_plain(Recognizer& recognizer, StackSet set);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::unordered_map<StackSet, Kept> kept_;
  std::unordered_map<StackSet, StackSet> plain_;  // see after_plain()
  size_t bytes_ = 0;
  std::vector<const Recognizer::Row*> path_;
};

}  // namespace sluice::grammar
