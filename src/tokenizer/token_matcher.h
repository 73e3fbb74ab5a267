// Finds the occurrences of a set of strings: at each place the longest, from left to right, without overlap.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"

namespace sluice::tokenizer {

// An Aho-Corasick automaton that reads the text backwards: where it stands it knows the longest string that begins
// there, so that one pass finds the matches in time linear in the text, whatever the strings.
class TokenMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int32_t value;
  };

  // The first value given for a string counts. Empty strings are ignored.
  void add(std::string_view text, int32_t value);
  // To be called once, after the last add().
  void build();
  bool empty() const { return strings_ == 0; }

  std::vector<Match> find_all(std::string_view text) const;

 private:
  ByteTrie trie_;  // of the reversed strings
  std::vector<ByteTrie::Node> failure_;
  std::vector<ByteTrie::Node> longest_;  // the deepest node with a value on the way of failures, itself included
  std::vector<uint32_t> depth_;
  size_t strings_ = 0;
};

}  // namespace sluice::tokenizer
