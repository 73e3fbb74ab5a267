// Counts of drafts that were verified.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

struct DraftStats {
  uint64_t drafts = 0;
  uint64_t tokens = 0;
  std::vector<uint64_t> accepted{};  // tokens, by their place in the draft
};

}  // namespace sluice
