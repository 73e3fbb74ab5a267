// An open-addressing hash map from integers to small values, for merges of a vocabulary and edges of a trie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::tokenizer {

// Key is an unsigned integer whose highest value is reserved. There is no erase.
template <class Key, class Value>
class FlatMap {
 public:
  void reserve(size_t count) {
    size_t slots = 16;
    while (slots * 3 < count * 4) slots *= 2;
    if (slots > slots_.size()) rehash(slots);
  }

  // Returns the value of a key, default-constructed if the key is new.
  Value& operator[](Key key) {
    if ((size_ + 1) * 4 > slots_.size() * 3) rehash(slots_.empty() ? 16 : slots_.size() * 2);
    Slot& slot = slots_[locate(key)];
    if (slot.key == kEmpty) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

  const Value* find(Key key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[locate(key)];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

  size_t size() const { return size_; }

 private:
  static constexpr Key kEmpty = ~Key{0};
  struct Slot {
    Key key = kEmpty;
    Value value{};
  };

  size_t locate(Key key) const {
    const size_t mask = slots_.size() - 1;
    // Fibonacci hashing: the high bits of the product are well mixed.
    size_t at = static_cast<size_t>(static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15u >> 20) & mask;
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & mask;
    return at;
  }

  void rehash(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.key != kEmpty) slots_[locate(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;  // the size is a power of two
  size_t size_ = 0;
};

}  // namespace sluice::tokenizer
