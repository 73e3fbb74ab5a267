// A compiled grammar with what it has computed so far, and the states of its matchers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/mask_maker.h"
#include "grammar/recognizer.h"

namespace sluice::grammar {

class Grammar {
 public:
  explicit Grammar(std::shared_ptr<const NodeGraph> graph) : recognizer_(std::move(graph)) {}

  // The state of a matcher, by its slot. All calls are thread-safe.
  using Slot = size_t;
  Slot open() const;
  Slot copy(Slot slot) const;
  void close(Slot slot) const;
  void fill_mask(Slot slot, const std::shared_ptr<const Vocabulary>& vocabulary, std::span<uint32_t> words) const;
  bool accept(Slot slot, std::string_view bytes) const;
  bool accept_special(Slot slot, TokenId token) const;
  bool complete(Slot slot) const;
  bool ended(Slot slot) const;
  void forced(Slot slot, std::string& bytes, size_t most) const;
  size_t bytes() const;
  // Memory ran out while something was computed. Every call but bytes() and close() throws from then on.
  bool broken() const;

 private:
  static constexpr size_t kMostBytes = 64 << 20;        // before a collection
  static constexpr size_t kMostAfterwards = 192 << 20;  // after one: states that are in use, and frames
  static constexpr size_t kCheckEvery = 4096;           // new sets

  template <class Work>
  auto guarded(Work&& work) const;
  Slot place(StackSet state) const;
  void limit_memory() const;

  // What is computed is a cache: it changes no answer.
  mutable std::mutex mutex_;
  mutable Recognizer recognizer_;
  mutable std::map<const Vocabulary*, MaskMaker> masks_;
  mutable std::vector<StackSet> states_;  // by slot; kDead: free
  mutable std::vector<Slot> free_;        // has room for all slots
  mutable bool broken_ = false;           // what is computed may be half made
  mutable size_t checked_at_ = 0;         // sets when memory was last looked at
};

}  // namespace sluice::grammar
