// The tokens of a vocabulary as a trie of bytes, in the order of a depth-first walk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/request.h"

namespace sluice::grammar {

// Bytes of text: ASCII ones by themselves; of others, how long characters are (bits 2 to 4, which no plain text needs).
struct ByteSet {
  uint64_t low = 0, high = 0;

  void add(uint8_t byte) {
    if (byte >= 0x80 && byte < 0xc0) return;  // within a character
    const int bit = byte < 0x80 ? byte : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    (bit < 64 ? low : high) |= uint64_t{1} << (bit % 64);
  }
  void add(const ByteSet& other) {
    low |= other.low;
    high |= other.high;
  }
  bool within(const ByteSet& other) const { return (low & ~other.low) == 0 && (high & ~other.high) == 0; }
};

class Trie {
 public:
  struct Node {
    uint32_t end = 0;     // the node after this one's subtree
    uint32_t tokens = 0;  // where this node's tokens begin; they end where the next node's begin
    uint16_t depth = 0;   // of this node's byte in its tokens, from 0
    uint8_t byte = 0;
    uint8_t height = 0;  // bytes of the longest token below, at most 255
  };
  using Token = std::pair<std::string, TokenId>;

  // Tokens must not be empty.
  explicit Trie(std::vector<Token> tokens);

  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  std::span<const TokenId> tokens(size_t node) const {
    return {tokens_.data() + nodes_[node].tokens, nodes_[node + 1].tokens - nodes_[node].tokens};
  }
  // All tokens, in the order of the nodes. Those of a node and all below it are a range.
  std::span<const TokenId> tokens() const { return tokens_; }
  std::pair<uint32_t, uint32_t> range(size_t node) const {
    return {nodes_[node].tokens, nodes_[nodes_[node].end].tokens};
  }
  // The bytes of the nodes below.
  const ByteSet& bytes_below(size_t node) const { return bytes_below_[node]; }
  size_t depth() const { return depth_; }  // bytes of the longest token

 private:
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<ByteSet> bytes_below_;
  std::vector<TokenId> tokens_;
  size_t depth_ = 0;
};

}  // namespace sluice::grammar
