// The shared memory of a team's block: what its passes over a row and its list of tokens use. Functions reach it by
// team_shared(), so that the compiler knows what kind of memory it is.
#pragma once

#include "kernels/cuda/device/sample_block.cuh"

namespace sluice::cuda {

inline constexpr int kMostTeamBlocks = 8;  // in a cluster
inline constexpr int kTeamThreads = 256, kTeamWarps = kTeamThreads / 32;
inline constexpr int kMostSorted = 1792;   // tokens of a list
inline constexpr int kRoomForKeys = 2048;  // a power of two, for sort_in_place()

struct TeamShared {
  // Of passes:
  static constexpr int kTile = 4 * kTeamThreads;  // logits that a block reads at once
  static constexpr int kMostGroups = 9216;        // of neighbours
  static constexpr int kQueued = 16;              // logits of a thread
  struct Groups {
    alignas(16) float highest[kMostGroups];  // logits of groups
    union {
      float queue[kQueued][kTeamThreads];  // logits of tokens that are added up
      int reaching[kMostSorted];           // groups with a logit that is high enough for the list
    };
  };
  // Of a list:
  struct Values {
    float distances[kMostSorted], weights[kMostSorted];
    union {
      Sum upto[kMostSorted];    // amounts of tokens and all before them
      int starts[kMostSorted];  // of bins of keys
    };
  };
  // Of sums over threads: two sets of slots, used in turn.
  static constexpr int kMostBytes = 32;  // in a value
  struct Slots {
    alignas(16) unsigned char of_warps[2][kTeamWarps][kMostBytes];
  };

  union {
    Groups groups;
    struct {
      Sum keys[kRoomForKeys];
      Values values;
    };
  };
  Slots block_slots, team_slots;
  Sum scans[2][kTeamWarps];
  int bins[kTeamThreads];
  int listings, last_bin;
};

__device__ inline TeamShared& team_shared() {
  extern __shared__ float4 team_memory[];
  return *reinterpret_cast<TeamShared*>(team_memory);
}

}  // namespace sluice::cuda
