// Builds and runs the Aho-Corasick automaton of TokenMatcher.
#include "tokenizer/token_matcher.h"

#include <algorithm>
#include <string>

namespace sluice::tokenizer {

void TokenMatcher::add(std::string_view text, int32_t value) {
  if (text.empty()) return;
  const std::string reversed(text.rbegin(), text.rend());
  const ByteTrie::Node there = trie_.find(reversed);
  if (there != ByteTrie::kNone && trie_.value(there) >= 0) return;
  trie_.insert(reversed, value);
  ++strings_;
}

void TokenMatcher::build() {
  failure_.assign(trie_.size(), ByteTrie::kRoot);
  longest_.assign(trie_.size(), ByteTrie::kNone);
  depth_.assign(trie_.size(), 0);
  // Breadth first: the failure node is shallower than the node. A node's children are found by trying all bytes.
  std::vector<ByteTrie::Node> order{ByteTrie::kRoot};
  for (size_t i = 0; i < order.size(); ++i) {
    const ByteTrie::Node node = order[i];
    longest_[node] = trie_.value(node) >= 0    ? node
                     : node == ByteTrie::kRoot ? ByteTrie::kNone
                                               : longest_[failure_[node]];
    for (int byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<unsigned char>(byte);
      const ByteTrie::Node child = trie_.child(node, b);
      if (child == ByteTrie::kNone) continue;
      depth_[child] = depth_[node] + 1;
      if (node != ByteTrie::kRoot) {
        ByteTrie::Node back = failure_[node];
        while (back != ByteTrie::kRoot && trie_.child(back, b) == ByteTrie::kNone) back = failure_[back];
        const ByteTrie::Node next = trie_.child(back, b);
        failure_[child] = next == ByteTrie::kNone ? ByteTrie::kRoot : next;
      }
      order.push_back(child);
    }
  }
}

std::vector<TokenMatcher::Match> TokenMatcher::find_all(std::string_view text) const {
  std::vector<Match> longest_at;  // in descending order of begin
  ByteTrie::Node node = ByteTrie::kRoot;
  for (size_t at = text.size(); at-- > 0;) {
    const auto byte = static_cast<unsigned char>(text[at]);
    ByteTrie::Node next = trie_.child(node, byte);
    while (next == ByteTrie::kNone && node != ByteTrie::kRoot) {
      node = failure_[node];
      next = trie_.child(node, byte);
    }
    node = next == ByteTrie::kNone ? ByteTrie::kRoot : next;
    if (const ByteTrie::Node found = longest_[node]; found != ByteTrie::kNone) {
      longest_at.push_back({at, at + depth_[found], trie_.value(found)});
    }
  }
  std::vector<Match> matches;
  size_t end = 0;
  for (auto match = longest_at.rbegin(); match != longest_at.rend(); ++match) {
    if (match->begin < end) continue;
    matches.push_back(*match);
    end = match->end;
  }
  return matches;
}

}  // namespace sluice::tokenizer
