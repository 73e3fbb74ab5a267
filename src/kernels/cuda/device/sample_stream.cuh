// A row in global memory, which one block reads for every sampler. Each warp copies its logits ahead to shared memory.
#pragma once

#include "kernels/cuda/device/sample_row.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

struct StreamShared {
  static constexpr int kTile = 4 * kTeamThreads;  // logits that a block copies at once
  static constexpr int kTiles = 7;                // that are on their way, or in use
  alignas(16) float tiles[kTiles][kTile];
  SortedTokens::Room room;
  SortedTokens::Scratch list;
  Team::Slots team;
  int bins[LogitBins::kBins];
  int listings, last_bin;
};

class StreamedRow {
 public:
  // `row` begins at a multiple of 16 bytes, and has a multiple of four logits.
  __device__ StreamedRow(StreamShared& shared, const Row& row) : s_(shared), team_(shared.team), row_(row) {}

  __device__ const Row& row() const { return row_; }

  // The highest logits of groups; a thread uses its own.
  static constexpr int kGroups = SortedTokens::kMostOfThread;
  __device__ float& highest(int group) const { return s_.room.distances[group * kTeamThreads + thread()]; }
  // The lowest of them, for likely_prefix().
  __device__ void know(float lowest) { lowest_ = lowest; }

  template <class F>
  __device__ void each(F&& f) const {
    const Row row = row_;  // in registers
    each_tile([&](int tile, const float* own) {
      __syncwarp();
      const int lane = thread() % 32, id_of_warp = tile * StreamShared::kTile + thread() / 32 * 128;
#pragma unroll 1
      for (int at = lane; at < 128; at += 32) {
        const int id = id_of_warp + at;
        if (id >= row.vocab || !row.allows(id)) continue;
        const float logit = own[at - 4 * lane];
        if (logit > -INFINITY) f(logit + 0.0f, id, 0);
      }
      __syncwarp();
    });
  }
  // Calls f(id, logits), without the mask.
  template <class F>
  __device__ void each_raw_four(F&& f) const {
    const int vocab = row_.vocab;
    each_tile([&](int tile, const float* own) {
      const int id = tile * StreamShared::kTile + 4 * thread();
      if (id >= vocab) return;
      const float4 at = *reinterpret_cast<const float4*>(own);
      const float logits[4] = {at.x, at.y, at.z, at.w};
      f(id, logits);
    });
  }
  template <class F>
  __device__ void each_four(F&& f) const {
    each_raw_four([&](int id, const float(&raw)[4]) {
      float logits[4] = {raw[0] + 0.0f, raw[1] + 0.0f, raw[2] + 0.0f, raw[3] + 0.0f};
      row_.hide(id / 4, logits);
      f(id, logits);
    });
  }
  template <class T, class Op>
  __device__ T combine(const T& value, Op op) {
    return team_.over_block(value, op);
  }

  __device__ void start_listing() {
    __syncthreads();
    if (thread() == 0) s_.listings = 0;
    __syncthreads();
  }
  __device__ bool list(Sum key, int) {
    if (*static_cast<volatile int*>(&s_.listings) >= SortedTokens::kMost) return false;
    const int at = atomicAdd(&s_.listings, 1);
    if (at >= SortedTokens::kMost) return false;
    s_.room.keys[at] = key;
    return true;
  }
  __device__ int gather() {
    sort_keys(s_.room.keys, s_.listings);
    return s_.listings;
  }
  // Called once.
  __device__ __noinline__ float likely_prefix(float top, int count) {
    const LogitBins bins(top, lowest_);
    s_.bins[thread()] = 0;
    __syncthreads();
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      if (highest(group) > -INFINITY) atomicAdd(&s_.bins[bins.bin(highest(group))], 1);
    }
    __syncthreads();
    return bins.end(bin_of(s_.bins[thread()], count, Scan(s_.list.scan), s_.last_bin));
  }
  __device__ float logit_of(int id) const { return row_.logits[id]; }

  __device__ SortedTokens::Room& room() const { return s_.room; }
  __device__ SortedTokens::Scratch& scratch() const { return s_.list; }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }

  // Calls f(tile, logits) for each tile, with this thread's four logits. Those of the warp lie side by side.
  template <class F>
  __device__ void each_tile(F&& f) const {
    constexpr int kAhead = StreamShared::kTiles - 1;
    const int vocab = row_.vocab, tiles = (vocab + StreamShared::kTile - 1) / StreamShared::kTile;
    const float* logits = row_.logits;
    float* own = &s_.tiles[0][4 * thread()];
    const auto copy = [&](int tile, int slot) {
      const int id = tile * StreamShared::kTile + 4 * thread();
      if (id < vocab) copy_async(shared_address(own + slot * StreamShared::kTile), logits + id);
      commit_copies();
    };
#pragma unroll 1
    for (int tile = 0; tile < kAhead; ++tile) copy(tile, tile);
    int slot = 0, next = kAhead;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      wait_for_copies<kAhead - 1>();
      f(tile, own + slot * StreamShared::kTile);
      copy(tile + kAhead, next);
      slot = slot + 1 == StreamShared::kTiles ? 0 : slot + 1, next = next + 1 == StreamShared::kTiles ? 0 : next + 1;
    }
    wait_for_all_copies();
    __syncwarp();
  }

  StreamShared& s_;
  Team team_;
  const Row& row_;
  float lowest_ = 0.0f;
};

}  // namespace sluice::cuda
