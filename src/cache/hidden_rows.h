// Rows of host memory for hidden states of texts. Ids only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace sluice {

// Owned by the engine thread; not thread-safe.
class HiddenRows {
 public:
  explicit HiddenRows(int rows) {
    for (int row = rows; row-- > 0;) free_.push_back(row);
  }

  int free() const { return static_cast<int>(free_.size()); }
  // Rows that follow each other as far as possible.
  std::vector<int32_t> take(int count) {
    CHECK(count <= free(), "{} rows of {}", count, free());
    const std::vector<int32_t> taken(free_.rbegin(), free_.rbegin() + count);
    free_.resize(free_.size() - static_cast<size_t>(count));
    return taken;
  }
  void give_back(const std::vector<int32_t>& rows) { free_.insert(free_.end(), rows.rbegin(), rows.rend()); }

 private:
  std::vector<int32_t> free_;  // the next one last
};

// What a request has of them: a row for each token that its text may have, and one for the candidate in each slot of a
// contrastive search.
struct HiddenText {
  std::vector<int32_t> rows{};  // by position, then by slot; empty: none
  int known = 0;                // leading tokens whose states are there
  uint64_t candidates = 0;      // bit i: the state of the candidate in slot i is there
};

}  // namespace sluice
