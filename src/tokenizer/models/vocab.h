// Token strings and their IDs in compact form: one block of bytes, one hash table of IDs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

// Limit for IDs in files, so that a hostile file cannot request gigabytes of gaps.
inline constexpr TokenId kMaxTokenId = (1 << 24) - 1;

class Vocab {
 public:
  // Reserves space for `count` tokens of `bytes` bytes in total.
  void reserve(size_t count, size_t bytes);
  // Adds a token. The ID must be in [0, kMaxTokenId] and unused. A duplicate string is found under its later ID.
  void add(std::string_view text, TokenId id);

  std::optional<TokenId> find(std::string_view text) const;
  bool has(TokenId id) const { return id >= 0 && id < size() && spans_[id].begin != kHole; }
  // Returns the text of a token, empty for an unused ID.
  std::string_view text(TokenId id) const;
  // Returns the highest ID + 1.
  int size() const { return static_cast<int>(spans_.size()); }
  size_t longest() const { return longest_; }  // bytes of the longest token

 private:
  static constexpr uint32_t kHole = ~0u;
  struct Span {
    uint32_t begin = kHole;
    uint32_t size = 0;
  };
  struct Slot {
    uint32_t hash = 0;
    TokenId id = -1;
  };
  size_t locate(std::string_view text, uint32_t hash) const;
  void rehash(size_t slots);

  std::string bytes_;
  std::vector<Span> spans_;  // indexed by ID
  std::vector<Slot> slots_;  // the size is a power of two
  size_t count_ = 0;         // number of used slots
  size_t longest_ = 0;
};

}  // namespace sluice::tokenizer
