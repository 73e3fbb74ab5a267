// A row in the shared memory of a cluster of blocks, which read it once. When a list has been made, the first block
// goes on alone; the others end.
#pragma once

#include "kernels/cuda/device/sample_row.cuh"

namespace sluice::cuda {

struct ClusterShared {
  Team::Slots team;
  SortedTokens::Scratch list;
  int bins[LogitBins::kBins];
  static constexpr int kMostListed = 1024;  // tokens of one block
  uint16_t listed[kMostListed];             // their places in the block's share
  int listings;                             // tokens that were to be listed
  int last_bin;
};

// Each thread has four logits of each tile of its block.
class ClusterRow {
 public:
  static constexpr int kTile = 4 * kTeamThreads, kTileOfCluster = kTile * kTeamBlocks;
  static constexpr __host__ __device__ int tiles_of(int vocab) { return (vocab + kTileOfCluster - 1) / kTileOfCluster; }

  // `logits`: room for the block's share.
  __device__ ClusterRow(ClusterShared& shared, float* logits, int vocab)
      : s_(shared),
        team_(shared.team),
        logits_(logits),
        vocab_(vocab),
        block_(static_cast<int>(blockIdx.x)),
        tiles_(tiles_of(vocab)) {}

  __device__ int vocab() const { return vocab_; }
  __device__ float* logits() const { return logits_; }
  __device__ int tiles() const { return tiles_; }
  __device__ float4& four(int tile) const { return reinterpret_cast<float4*>(logits_)[tile * kTeamThreads + thread()]; }
  // First ids.
  __device__ int id_of_tile(int tile) const { return (tile * kTeamBlocks + block_) * kTile; }
  __device__ int id_of_four(int tile) const { return id_of_tile(tile) + 4 * thread(); }
  // Where this block has a token; null if another one does.
  __device__ float* find(int id) const { return block_of(id) == block_ ? &logits_[place_of(id)] : nullptr; }
  // The highest logit of this thread, and the lowest one of these, for likely_prefix().
  __device__ void know(float highest, float lowest) { highest_ = highest, lowest_ = lowest; }

  template <class F>
  __device__ void each(F&& f) const {
    const float* logits = logits_;  // in registers
    const int block = block_, end = tiles_ * kTile;
#pragma unroll 1
    for (int place = thread(); place < end; place += kTeamThreads) {
      const float logit = logits[place];
      if (logit > -INFINITY) f(logit + 0.0f, id_at(block, place), place);
    }
  }
  template <class F>
  __device__ void each_four(F&& f) const {
    const auto* fours = reinterpret_cast<const float4*>(logits_) + thread();  // in registers
    const int tiles = tiles_, first = id_of_four(0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const float4 at = fours[tile * kTeamThreads];
      const float logits[4] = {at.x + 0.0f, at.y + 0.0f, at.z + 0.0f, at.w + 0.0f};
      f(first + tile * kTileOfCluster, logits);
    }
  }
  template <class T, class Op>
  __device__ T combine(const T& value, Op op) {
    return team_.over_cluster(value, op);
  }

  __device__ void start_listing() {
    if (thread() == 0) s_.listings = 0;
    __syncthreads();
  }
  __device__ bool list(Sum, int place) {
    if (*static_cast<volatile int*>(&s_.listings) >= ClusterShared::kMostListed) return false;
    const int at = atomicAdd(&s_.listings, 1);
    if (at >= ClusterShared::kMostListed) return false;
    s_.listed[at] = static_cast<uint16_t>(place);
    return true;
  }
  __device__ __noinline__ int gather() {
    if (block_ > 0) {
      sync_cluster();  // the first block has read what this one holds
      asm volatile("exit;");
    }
    Sum keys[SortedTokens::kMostOfThread];
    int counts[kTeamBlocks], all = 0;
#pragma unroll
    for (int block = 0; block < kTeamBlocks; ++block) all += counts[block] = *in_block(block, &s_.listings);
#pragma unroll
    for (int i = 0; i < SortedTokens::kMostOfThread; ++i) {
      int at = thread() + i * kTeamThreads, block = 0;
      if (at >= all) continue;
#pragma unroll
      for (int other = 0; other < kTeamBlocks - 1; ++other) {
        if (block == other && at >= counts[other]) at -= counts[other], ++block;
      }
      const int place = *in_block(block, &s_.listed[at]);
      keys[i] = ops::order_key(*in_block(block, &logits_[place]), id_at(block, place));
    }
    sync_cluster();
#pragma unroll
    for (int i = 0; i < SortedTokens::kMostOfThread; ++i) {
      if (const int at = thread() + i * kTeamThreads; at < all) room().keys[at] = keys[i];
    }
    sort_keys(room().keys, all);
    return all;
  }
  // Called once.
  __device__ __noinline__ float likely_prefix(float top, int count) {
    const LogitBins bins(top, lowest_);
    s_.bins[thread()] = 0;
    __syncthreads();
    if (highest_ > -INFINITY) atomicAdd(&s_.bins[bins.bin(highest_)], 1);
    sync_cluster();
    int own = 0;
#pragma unroll
    for (int block = 0; block < kTeamBlocks; ++block) own += *in_block(block, &s_.bins[thread()]);
    return bins.end(bin_of(own, count, Scan(s_.list.scan), s_.last_bin));
  }
  __device__ float logit_of(int id) const { return *in_block(block_of(id), &logits_[place_of(id)]); }

  __device__ SortedTokens::Room& room() const { return *reinterpret_cast<SortedTokens::Room*>(logits_); }
  __device__ SortedTokens::Scratch& scratch() const { return s_.list; }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ int id_at(int block, int place) {
    return (place / kTile * kTeamBlocks + block) * kTile + place % kTile;
  }
  static __device__ int block_of(int id) { return id / kTile % kTeamBlocks; }
  static __device__ int place_of(int id) { return id / kTileOfCluster * kTile + id % kTile; }

  ClusterShared& s_;
  Team team_;
  float* logits_;
  int vocab_, block_, tiles_;
  float highest_ = 0.0f, lowest_ = 0.0f;
};

}  // namespace sluice::cuda
