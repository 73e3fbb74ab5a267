// What samplers share: a block of 1024 threads that reads a row of logits, its maxima, sums and histograms.
#pragma once

#include "kernels/cuda/device/pdl.cuh"
#include "ops/sample_chain.h"

namespace sluice::cuda {
using ops::SampleRow;
using Sum = unsigned long long;  // sums of weights, or numbers of tokens

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// Maps floats to integers in their order, and back.
__device__ inline int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
__device__ inline float from_ordered(int x) { return __int_as_float(x ^ (x >> 31 & 0x7fffffff)); }

// The larger value; among equal values the lower id.
struct Best {
  float value;
  int id;
  __device__ void take(float v, int i) {
    if (v > value || (v == value && i < id)) value = v, id = i;
  }
};

__device__ inline Best best_of_warp(Best b) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    b.take(__shfl_xor_sync(~0u, b.value, lane), __shfl_xor_sync(~0u, b.id, lane));
  }
  return b;
}

__device__ inline Best best_of_block(Best (&of_warps)[kWarps], Best b) {
  b = best_of_warp(b);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = b;
  __syncthreads();
  for (const Best& other : of_warps) b.take(other.value, other.id);
  __syncthreads();
  return b;
}

__device__ inline float sum_of_warp(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// A part of a row, for blocks that work on the row together.
struct RowPart {
  int index = 0, count = 1;
};

// Calls f(block, logits) for every block of four ids in the thread's share of the row. The next four logits are loaded
// meanwhile.
template <class F>
__device__ void each_logit(const float* logits, int vocab, F f, RowPart part = {}) {
  const bool packed = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  const int step = kThreads * part.count, blocks = (vocab + 3) / 4;
  const auto load = [&](int block) {
    float4 four = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (packed && block * 4 + 4 <= vocab) return *reinterpret_cast<const float4*>(logits + block * 4);
    if (block * 4 < vocab) four.x = logits[block * 4];
    if (block * 4 + 1 < vocab) four.y = logits[block * 4 + 1];
    if (block * 4 + 2 < vocab) four.z = logits[block * 4 + 2];
    if (block * 4 + 3 < vocab) four.w = logits[block * 4 + 3];
    return four;
  };
  int block = part.index * kThreads + static_cast<int>(threadIdx.x);
  float4 next = load(block);
  for (; block < blocks; block += step) {
    float four[4] = {next.x, next.y, next.z, next.w};
    next = load(block + step);
    f(block, four);
  }
}

// A row to sample from. Tokens that the mask forbids, if there is one, count as -infinity.
struct Row {
  const float* logits;
  const uint32_t* mask;
  int vocab;

  __device__ bool allows(int id) const { return mask == nullptr || (mask[id / 32] >> (id % 32) & 1) != 0; }
  __device__ void hide(int block, float (&four)[4]) const {
    if (mask == nullptr) return;
    const uint32_t allowed = mask[block / 8] >> (block % 8 * 4);
    for (int i = 0; i < 4; ++i) {
      if ((allowed >> i & 1) == 0) four[i] = -INFINITY;
    }
  }
};

constexpr int kListed = 1024;  // most tokens that are ranked in shared memory
static_assert(kListed == kThreads);

struct Shared {
  Best max[kWarps], sampled[kWarps];
  Sum bins[ops::kLogitBins];
  Sum keys[kListed], weights[kListed], ranks[kListed];
  Sum sums[kWarps];
  float raw_sums[kWarps];
  int bad, alive, spoiled;  // bad: a raw logit is NaN or +infinity; alive: a raw logit is above -infinity; spoiled: an
                            // edited logit is NaN or +infinity
  int best_score;           // that a thread has found, as an integer in the order of floats
  int listed, before;
  int last_bin;         // kLogitBins: there is none
  Sum in_earlier_bins;  // the sum of the bins before the last one
  Sum total;
};

// Adds to a sum in shared memory by its halves. An atomic addition of 64 bits would be a loop of compare-and-swap.
__device__ inline void add_in_halves(Sum& sum, Sum amount) {
  auto* const halves = reinterpret_cast<uint32_t*>(&sum);
  const auto low = static_cast<uint32_t>(amount), before = atomicAdd(&halves[0], low);
  const uint32_t high = static_cast<uint32_t>(amount >> 32) + (before + low < low ? 1 : 0);
  if (high != 0) atomicAdd(&halves[1], high);
}

__device__ inline void clear_bins(Shared& s) {
  __syncthreads();
  for (int i = threadIdx.x; i < ops::kLogitBins; i += kThreads) s.bins[i] = 0;
  if (threadIdx.x == 0) s.last_bin = ops::kLogitBins, s.listed = 0;
  __syncthreads();
}

// Finds the first bin where `start` and all bins up to it add up to enough(the sum of all bins).
template <class F>
__device__ void find_last_bin(Shared& s, Sum start, F&& enough) {
  constexpr int kMine = ops::kLogitBins / kThreads;
  static_assert(ops::kLogitBins % kThreads == 0);
  __syncthreads();
  Sum mine = 0;
  for (int i = 0; i < kMine; ++i) mine += s.bins[threadIdx.x * kMine + i];
  Sum before = mine;  // an inclusive prefix sum; its own part is subtracted below
#pragma unroll
  for (int lane = 1; lane < 32; lane *= 2) {
    const Sum other = __shfl_up_sync(~0u, before, lane);
    if (threadIdx.x % 32 >= lane) before += other;
  }
  if (threadIdx.x % 32 == 31) s.sums[threadIdx.x / 32] = before;
  __syncthreads();
  before += start - mine;
  Sum total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < static_cast<int>(threadIdx.x) / 32) before += s.sums[warp];
    total += s.sums[warp];
  }
  const Sum wanted = enough(total);
  for (int i = 0; i < kMine; ++i) {
    const Sum here = s.bins[threadIdx.x * kMine + i];
    if (before < wanted && before + here >= wanted) {
      s.last_bin = static_cast<int>(threadIdx.x) * kMine + i;
      s.in_earlier_bins = before;
    }
    before += here;
  }
  if (threadIdx.x == 0) s.total = total;
  __syncthreads();
}

__device__ inline Sum sum_of_warp(Sum x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// Adds up numbers from 0 to 1 in units of 1 / kSampleWeightUnits, rounded as in ops::sample_units(). Conversions to
// 64-bit integers would take a quarter of the time of a pass. Instead, a number is h / 2^21 + r with an integer h, and
// additions of kRoundToInteger round both.
class UnitSum {
 public:
  static constexpr int kMostTerms = 512;

  __device__ void add(float x) {
    const float high = fmaf(x, 0x1p21f, ops::kRoundToInteger);
    const float rest = fmaf(ops::kRoundToInteger - high, 0x1p-21f, x);  // exact
    high_ += __float_as_uint(high), low_ += __float_as_uint(fmaf(rest, 0x1p43f, ops::kRoundToInteger));
  }
  // Takes the sum of so many terms.
  __device__ Sum take(int terms) {
    const uint32_t none = static_cast<uint32_t>(terms) * __float_as_uint(ops::kRoundToInteger);
    const auto low = static_cast<int64_t>(static_cast<int32_t>(low_ - none));
    const Sum sum = (Sum{high_ - none} << 22) + static_cast<Sum>(low);
    high_ = low_ = 0;
    return sum;
  }

 private:
  uint32_t high_ = 0, low_ = 0;
};

}  // namespace sluice::cuda
