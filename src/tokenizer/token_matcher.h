// Finds the occurrences of a set of strings: the longest at each place, from left to right, without overlap.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"

namespace sluice::tokenizer {

// An Aho-Corasick automaton that reads the text backward. At each position it knows the longest string that begins
// there. So one pass finds the matches in time linear in the text, for any strings.
class TokenMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int32_t value;
  };

  // Adds a string. The first value given for a string applies. Empty strings are ignored.
  void add(std::string_view text, int32_t value);
  // Call this once, after the last add().
  void build();
  bool empty() const { return strings_ == 0; }

  std::vector<Match> find_all(std::string_view text) const;

 private:
  ByteTrie trie_;  // trie of the reversed strings
  std::vector<ByteTrie::Node> failure_;
  // By node: the deepest node with a value on its path of failures, itself included.
  std::vector<ByteTrie::Node> longest_;
  std::vector<uint32_t> depth_;
  size_t strings_ = 0;
};

}  // namespace sluice::tokenizer
