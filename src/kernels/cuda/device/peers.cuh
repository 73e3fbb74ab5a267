// Exchange of values between ranks through inboxes (collectives/peers.h). Every word of 4 bytes is stored beside the
// number of its round in one store, as in NCCL's protocol LL. A reader needs no barrier: it loads again until it finds
// the number of the round that it wants. Inboxes are used in turn. A rank that writes round r + 2 has read all of round
// r + 1, which each other rank wrote after it had read round r.
#pragma once

#include "kernels/cuda/collectives/peers.h"

namespace sluice::cuda {

__device__ inline RegionHeader& region_header(const PeerMemory& m, int rank) {
  return *reinterpret_cast<RegionHeader*>(m.regions[rank]);
}

// Where `rank` receives the words of rank `from`.
__device__ inline uint2* inbox(const PeerMemory& m, int rank, int from, uint32_t round) {
  return reinterpret_cast<uint2*>(m.regions[rank] + RegionLayout::kInboxes +
                                  ((round & 1) * kMostPeers + static_cast<unsigned>(from)) * kInboxBytes);
}

// Counts the looks of a waiting thread. Returns whether it must give up because a rank was lost.
__device__ inline bool given_up(const PeerMemory& m, uint32_t& looks) {
  return (++looks & 1023) == 0 && *static_cast<const volatile uint32_t*>(m.ended) != 0;
}

// The word of a row and column. Rows have whole pairs of words.
__device__ inline int64_t inbox_word(int row, int column, int columns) {
  return int64_t{row} * ((columns + 1) / 2 * 2) + column;
}

// Sends a value to all other ranks.
__device__ inline void send_value(const PeerMemory& m, int64_t word, float value, uint32_t round) {
  for (int other = 0; other < m.size; ++other) {
    if (other == m.rank) continue;
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(inbox(m, other, m.rank, round) + word),
                 "r"(__float_as_uint(value)), "r"(round)
                 : "memory");
  }
}
// Returns another rank's value when it has come.
__device__ inline float take_value(const PeerMemory& m, int64_t word, int rank, uint32_t round) {
  const uint2* at = inbox(m, m.rank, rank, round) + word;
  uint2 v;
  uint32_t looks = 0;
  do {
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
  } while (v.y != round && !given_up(m, looks));
  return __uint_as_float(v.x);
}
// Returns the sum of the ranks' values, added in their order. `mine` is this rank's value.
__device__ inline float sum_values(const PeerMemory& m, int64_t word, float mine, uint32_t round) {
  float sum = 0.0f;
  for (int rank = 0; rank < m.size; ++rank) {
    const float value = rank == m.rank ? mine : take_value(m, word, rank, round);
    sum = rank == 0 ? value : sum + value;
  }
  return sum;
}

}  // namespace sluice::cuda
