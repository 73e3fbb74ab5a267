// Gives equal sequences of words one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::grammar {

class Interner {
 public:
  // Returns the number of the sequence: 0, 1, 2, ... by first occurrence. `words` must not lie in this interner.
  uint32_t add(std::span<const uint32_t> words) {
    if (2 * (starts_.size() + 1) > places_.size()) grow();
    const size_t mask = places_.size() - 1;
    size_t at = hash(words) & mask;
    while (places_[at] != kFree) {
      if (equal((*this)[places_[at]], words)) return places_[at];
      at = (at + 1) & mask;
    }
    const auto id = static_cast<uint32_t>(starts_.size());
    places_[at] = id;
    starts_.push_back(words_.size());
    words_.insert(words_.end(), words.begin(), words.end());
    return id;
  }

  std::span<const uint32_t> operator[](uint32_t id) const {
    const size_t end = id + 1 < starts_.size() ? starts_[id + 1] : words_.size();
    return {words_.data() + starts_[id], end - starts_[id]};
  }
  size_t size() const { return starts_.size(); }
  size_t bytes() const {
    return words_.capacity() * sizeof(uint32_t) + starts_.capacity() * sizeof(size_t) +
           places_.capacity() * sizeof(uint32_t);
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;

  static bool equal(std::span<const uint32_t> a, std::span<const uint32_t> b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }
  static size_t hash(std::span<const uint32_t> words) {
    uint64_t h = 0x9e3779b97f4a7c15u + words.size();
    for (const uint32_t word : words) {
      h = (h ^ word) * 0xff51afd7ed558ccdu;
      h ^= h >> 32;
    }
    return h;
  }
  void grow() {
    places_.assign(places_.empty() ? 64 : 2 * places_.size(), kFree);
    for (uint32_t id = 0; id < starts_.size(); ++id) {
      size_t at = hash((*this)[id]) & (places_.size() - 1);
      while (places_[at] != kFree) at = (at + 1) & (places_.size() - 1);
      places_[at] = id;
    }
  }

  std::vector<uint32_t> words_;
  std::vector<size_t> starts_;
  std::vector<uint32_t> places_;  // hash table of numbers, open addressing; a power of two, at most half full
};

}  // namespace sluice::grammar
