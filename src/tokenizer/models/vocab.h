// Token strings and their ids, kept compactly: one block of bytes, one hash table of ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

// Ids from files are held to this, so that a hostile file cannot ask for gigabytes of holes.
inline constexpr TokenId kMaxTokenId = (1 << 24) - 1;

class Vocab {
 public:
  // Makes room for `count` tokens of `bytes` bytes in all.
  void reserve(size_t count, size_t bytes);
  // The id must be in [0, kMaxTokenId] and not yet taken. A string given twice is found under its later id.
  void add(std::string_view text, TokenId id);

  std::optional<TokenId> find(std::string_view text) const;
  bool has(TokenId id) const { return id >= 0 && id < size() && spans_[id].begin != kHole; }
  // Empty for an id that is not taken.
  std::string_view text(TokenId id) const;
  // Highest id + 1.
  int size() const { return static_cast<int>(spans_.size()); }
  size_t longest() const { return longest_; }  // bytes

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
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // a power of two
  size_t count_ = 0;         // slots taken
  size_t longest_ = 0;
};

}  // namespace sluice::tokenizer
