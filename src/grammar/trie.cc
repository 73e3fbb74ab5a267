#include "grammar/trie.h"

#include <algorithm>

namespace sluice::grammar {

Trie::Trie(std::vector<Token> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> path;  // nodes of the last token
  std::string last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      Node& node = nodes_[path.back()];
      node.end = static_cast<uint32_t>(nodes_.size());
      if (path.size() < 2) continue;
      Node& parent = nodes_[path[path.size() - 2]];
      parent.height = static_cast<uint8_t>(std::max<int>(parent.height, std::min(node.height + 1, 255)));
      ByteSet& below = bytes_below_[path[path.size() - 2]];
      below.add(node.byte);
      below.add(bytes_below_[path.back()]);
    }
  };
  for (const auto& [bytes, id] : tokens) {
    size_t common = 0;
    while (common < last.size() && common < bytes.size() && last[common] == bytes[common]) ++common;
    close(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.end = 0,
                        .tokens = static_cast<uint32_t>(tokens_.size()),
                        .depth = static_cast<uint16_t>(i),
                        .byte = static_cast<uint8_t>(bytes[i])});
      bytes_below_.emplace_back();
    }
    tokens_.push_back(id);
    depth_ = std::max(depth_, bytes.size());
    last = bytes;
  }
  close(0);
  nodes_.push_back({.end = 0, .tokens = static_cast<uint32_t>(tokens_.size())});
}

}  // namespace sluice::grammar
