#include "grammar/trie.h"

#include <algorithm>

namespace sluice::grammar {

Trie::Trie(std::vector<Token> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> path;  // nodes of the last token
  std::string last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
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
    }
    tokens_.push_back(id);
    depth_ = std::max(depth_, bytes.size());
    last = bytes;
  }
  close(0);
  nodes_.push_back({.end = 0, .tokens = static_cast<uint32_t>(tokens_.size())});
}

}  // namespace sluice::grammar
