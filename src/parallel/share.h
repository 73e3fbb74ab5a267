// How a number of equal things is divided between the ranks: in runs whose lengths differ by at most one.
#pragma once

#include <cstdint>

namespace sluice {

struct Share {
  int64_t begin = 0;
  int64_t count = 0;
};

constexpr Share share_of(int64_t total, int rank, int ranks) {
  const int64_t begin = total * rank / ranks, end = total * (rank + 1) / ranks;
  return {begin, end - begin};
}

// The ranks that compute a model together, as one of them sees them.
struct Ranks {
  int rank = 0;
  int size = 1;
  bool many() const { return size > 1; }
  bool last() const { return rank == size - 1; }
  Share share(int64_t total) const { return share_of(total, rank, size); }
};

}  // namespace sluice
