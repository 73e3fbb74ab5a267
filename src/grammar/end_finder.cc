#include "grammar/end_finder.h"

#include <deque>

namespace sluice::grammar {
namespace {

// Phases of a character: how many bytes are missing, and what restricts the next one (RFC 3629, section 4).
enum Phase : uint32_t {
  kStart,
  kOneMore,
  kTwoMore,
  kThreeMore,
  kTwoAfterE0,
  kTwoAfterED,
  kThreeAfterF0,
  kThreeAfterF4
};
constexpr int kInvalid = -1;

int lead(uint8_t byte) {
  if (byte < 0x80) return kStart;
  if (byte < 0xc2) return kInvalid;
  if (byte < 0xe0) return kOneMore;
  if (byte == 0xe0) return kTwoAfterE0;
  if (byte == 0xed) return kTwoAfterED;
  if (byte < 0xf0) return kTwoMore;
  if (byte == 0xf0) return kThreeAfterF0;
  if (byte < 0xf4) return kThreeMore;
  if (byte == 0xf4) return kThreeAfterF4;
  return kInvalid;
}

int next_phase(uint32_t phase, uint8_t byte) {
  struct Rule {
    uint8_t first, last;
    Phase then;
  };
  static constexpr Rule kRules[] = {{0, 0, kStart},         {0x80, 0xbf, kStart},   {0x80, 0xbf, kOneMore},
                                    {0x80, 0xbf, kTwoMore}, {0xa0, 0xbf, kOneMore}, {0x80, 0x9f, kOneMore},
                                    {0x90, 0xbf, kTwoMore}, {0x80, 0x8f, kTwoMore}};
  if (phase == kStart) return lead(byte);
  const Rule& rule = kRules[phase];
  return byte < rule.first || byte > rule.last ? kInvalid : static_cast<int>(rule.then);
}

}  // namespace

EndFinder::EndFinder(std::vector<std::string> ends) : nodes_(1) {
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].empty()) continue;
    uint32_t node = 0;
    for (const char c : ends[i]) {
      const auto byte = static_cast<uint8_t>(c);
      if (nodes_[node].next[byte] == 0) {
        const auto made = static_cast<uint32_t>(nodes_.size());
        nodes_.emplace_back();
        nodes_[node].next[byte] = made;
      }
      node = nodes_[node].next[byte];
    }
    if (nodes_[node].end < 0) nodes_[node].end = static_cast<int>(i);
  }
  // In order of length, so that the node of the longest suffix is complete before its links are copied.
  std::vector<uint32_t> suffix(nodes_.size(), 0);
  std::deque<uint32_t> open;
  for (const uint32_t child : nodes_[0].next) {
    if (child != 0) open.push_back(child);
  }
  for (; !open.empty(); open.pop_front()) {
    Node& node = nodes_[open.front()];
    const Node& shorter = nodes_[suffix[open.front()]];
    if (node.end < 0) node.end = shorter.end;
    for (size_t byte = 0; byte < 256; ++byte) {
      uint32_t& next = node.next[byte];
      if (next == 0) {
        next = shorter.next[byte];
      } else {
        suffix[next] = shorter.next[byte];
        open.push_back(next);
      }
    }
  }
}

EndFinder::Step EndFinder::after(uint32_t state, uint8_t byte) const {
  const int phase = next_phase(state % kPhases, byte);
  if (phase == kInvalid) return {};
  const uint32_t node = nodes_[state / kPhases].next[byte];
  return {.valid = true, .end = nodes_[node].end, .state = node * kPhases + static_cast<uint32_t>(phase)};
}

}  // namespace sluice::grammar
