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

struct Vocabulary::Impl {
  // Plain tokens consist of whole characters that a JSON string holds as they are: not control characters, '"' and '\'.
  static constexpr int kMostCounted = 64;

  std::vector<std::string> tokens;
  Options options;
  Trie all;
  Trie others;                     // the tokens that are not plain
  Trie letters;                    // the plain tokens
  std::array<Mask, 256> by_first;  // plain tokens by their first byte; empty: there are none
  std::vector<Mask>
      plain;  // [i]: plain tokens of at most i characters, i up to kMostCounted; the last one: all of them

  size_t words() const { return (static_cast<size_t>(options.width) + 31) / 32; }
};

}  // namespace sluice::grammar
