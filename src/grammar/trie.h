// The tokens of a vocabulary as a trie of bytes, in the order of a depth-first walk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/request.h"

namespace sluice::grammar {

class Trie {
 public:
  struct Node {
    uint32_t end = 0;     // the node after this one's subtree
    uint32_t tokens = 0;  // where this node's tokens begin; they end where the next node's begin
    uint16_t depth = 0;   // of this node's byte in its tokens, from 0
    uint8_t byte = 0;
  };
  using Token = std::pair<std::string, TokenId>;

  // Tokens must not be empty.
  explicit Trie(std::vector<Token> tokens);

  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  std::span<const TokenId> tokens(size_t node) const {
    return {tokens_.data() + nodes_[node].tokens, nodes_[node + 1].tokens - nodes_[node].tokens};
  }
  size_t depth() const { return depth_; }  // bytes of the longest token

 private:
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<TokenId> tokens_;
  size_t depth_ = 0;
};

}  // namespace sluice::grammar
