// What a Vocabulary keeps.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/trie.h"

namespace sluice::grammar {

using Mask = std::vector<uint32_t>;  // bit id % 32 of word id / 32

inline void allow(std::span<uint32_t> words, TokenId token) {
  words[static_cast<size_t>(token) / 32] |= 1u << (static_cast<uint32_t>(token) % 32);
}

// The tokens up to some length, or the longer ones. Plain tokens consist of whole characters that a JSON string holds
// as they are: not control characters, '"' and '\'.
struct TokenGroup {
  int longest = 0;  // bytes
  Trie plain;
  Trie others;
  Mask all_plain;
  // The plain tokens by their number of characters, and where those of more than i characters begin.
  std::vector<TokenId> by_characters;
  std::vector<size_t> ends;
};

struct Vocabulary::Impl {
  // Counters are far from their bounds for most tokens if long tokens are apart.
  static constexpr int kShort = 16;  // bytes

  std::vector<std::string> tokens;
  Options options;
  std::array<TokenGroup, 2> groups;
  Mask all_plain;  // of both groups

  size_t words() const { return (static_cast<size_t>(options.width) + 31) / 32; }
};

}  // namespace sluice::grammar
