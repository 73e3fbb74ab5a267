// How a replica is chosen by load, among the engines of one server and among the servers behind the router.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

using ReplicaMask = uint64_t;  // bit i: replica i
inline constexpr size_t kMaxReplicas = 64;

inline bool has(ReplicaMask mask, size_t replica) { return (mask >> replica & 1) != 0; }

// The allowed replica with the least load(i); equally loaded ones take turns. Returns `replicas`, their number, if none
// is allowed.
template <class Load>
size_t least_loaded(size_t replicas, ReplicaMask allowed, size_t turn, const Load& load) {
  size_t best = replicas;
  for (size_t n = 0; n < replicas; ++n) {
    const size_t i = (turn + n) % replicas;
    if (has(allowed, i) && (best == replicas || load(i) < load(best))) best = i;
  }
  return best;
}

// The most load with which a replica is still preferred for what it has cached.
inline int64_t most_load(int64_t least, int64_t imbalance) { return least + least / 4 + imbalance; }

}  // namespace sluice
