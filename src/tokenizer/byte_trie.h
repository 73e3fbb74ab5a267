// A trie over byte strings with one value per string.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/flat_map.h"

namespace sluice::tokenizer {

class ByteTrie {
 public:
  using Node = uint32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = ~0u;

  ByteTrie() : values_(1, -1) { first_.assign(256, kNone); }

  // Inserts a string, or replaces its value. Values must not be negative.
  void insert(std::string_view text, int32_t value) {
    Node node = kRoot;
    for (const char c : text) node = child_or_new(node, static_cast<unsigned char>(c));
    values_[node] = value;
  }

  Node child(Node node, unsigned char byte) const {
    if (node == kRoot) return first_[byte];
    const Node* found = edges_.find(key(node, byte));
    return found ? *found : kNone;
  }

  // Returns the node of a string, kNone when no string begins with it.
  Node find(std::string_view text, Node from = kRoot) const {
    for (const char c : text) {
      if (from == kNone) break;
      from = child(from, static_cast<unsigned char>(c));
    }
    return from;
  }

  // Returns the value of a node, -1 when no string ends there.
  int32_t value(Node node) const { return values_[node]; }
  size_t size() const { return values_.size(); }  // number of nodes

 private:
  static uint64_t key(Node node, unsigned char byte) { return uint64_t{node} << 8 | byte; }

  Node child_or_new(Node node, unsigned char byte) {
    Node found = child(node, byte);
    if (found != kNone) return found;
    found = static_cast<Node>(values_.size());
    values_.push_back(-1);
    if (node == kRoot) {
      first_[byte] = found;
    } else {
      edges_[key(node, byte)] = found;
    }
    return found;
  }

  std::vector<Node> first_;        // children of the root, by byte
  FlatMap<uint64_t, Node> edges_;  // all other edges
  std::vector<int32_t> values_;    // indexed by node
};

}  // namespace sluice::tokenizer
