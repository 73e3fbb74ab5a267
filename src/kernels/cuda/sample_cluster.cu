// Samples tokens on clusters of eight blocks (compute capability 9.0), which read a row once and hold it in their
// shared memory. Bound by memory traffic and by the instructions of the passes over a row; with 128 k logits, three
// blocks share an SM, so that one row loads while another one is sampled.
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/sample_cluster.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/sample_rows.h"

namespace sluice::cuda {
namespace {

using ops::LogitEdit;
using ops::SampledRow;

// The largest logit of a thread's own.
struct Highest {
  float logit = -INFINITY;
  int tile = 0;

  __device__ void take(const float4& four, int at) {
    const float most = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
    if (most > logit) logit = most, tile = at;
  }
};

// Copies the raw logits to shared memory. `barrier` is not yet initialized.
[[maybe_unused]] __device__ void load(const ClusterRow& own, const float* row, uint64_t* barrier) {
  const bool packed = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t at = shared_address(barrier);
  if (packed && thread < 32) {
    const auto bytes_of = [&](int tile) {
      return max(min(own.vocab() - own.id_of_tile(tile), ClusterRow::kTile) / 4 * 16, 0);
    };
    if (thread == 0) {
      init_barrier(at, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      int all = 0;
      for (int tile = 0; tile < own.tiles(); ++tile) all += bytes_of(tile);
      arrive_expecting(at, static_cast<uint32_t>(all));
    }
    __syncwarp();
    for (int tile = thread; tile < own.tiles(); tile += 32) {
      if (const int bytes = bytes_of(tile); bytes > 0) {
        copy_bulk(shared_address(own.logits() + tile * ClusterRow::kTile), row + own.id_of_tile(tile),
                  static_cast<uint32_t>(bytes), at);
      }
    }
  }
  for (int tile = packed ? own.tiles() - 1 : 0; tile < own.tiles(); ++tile) {
    const int id = own.id_of_four(tile);
    if (packed && id + 4 <= own.vocab()) continue;
    const auto one = [&](int i) { return id + i < own.vocab() ? row[id + i] : -INFINITY; };
    own.four(tile) = {one(0), one(1), one(2), one(3)};
  }
  __syncthreads();
  if (packed) wait_barrier(at, 0);
}

// Looks at the raw logits of this thread.
[[maybe_unused]] __device__ Highest look(const ClusterRow& own, uint32_t& flags) {
  Highest highest;
  bool bad = false;
#pragma unroll 4
  for (int tile = 0; tile < own.tiles(); ++tile) {
    const float4 four = own.four(tile);
    bad |= !(four.x < INFINITY) | !(four.y < INFINITY) | !(four.z < INFINITY) | !(four.w < INFINITY);
    highest.take(four, tile);
  }
  flags |= bad ? Found::kBad : 0;
  flags |= highest.logit > -INFINITY ? Found::kAlive : 0;
  return highest;
}

// Edits and masks the logits in shared memory.
[[maybe_unused]] __device__ Highest change(const ClusterRow& own, const SampleRow& request, const LogitEdit* edits,
                                           const Row& row, uint32_t& flags) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < request.edits; i += kTeamThreads) {
    const LogitEdit edit = edits[i];
    float* to = own.find(edit.id);
    if (to == nullptr) continue;
    float logit = edited(request, edit, *to);
    if (!(logit < INFINITY)) {
      if (row.allows(edit.id)) flags |= Found::kSpoiled;
      logit = -INFINITY;
    }
    *to = logit;
  }
  __syncthreads();
  Highest highest;
  for (int tile = 0; tile < own.tiles(); ++tile) {
    const int id = own.id_of_four(tile);
    if (id >= own.vocab()) break;
    const float4 four = own.four(tile);
    float logits[4] = {four.x, four.y, four.z, four.w};
    row.hide(id / 4, logits);
    own.four(tile) = {logits[0], logits[1], logits[2], logits[3]};
    highest.take(own.four(tile), tile);
  }
  return highest;
}

[[maybe_unused]] __device__ Best first_of(const ClusterRow& own, const Highest& highest) {
  if (highest.logit == -INFINITY) return {-INFINITY, INT32_MAX};
  const float4 four = own.four(highest.tile);
  const int i = four.x == highest.logit ? 0 : four.y == highest.logit ? 1 : four.z == highest.logit ? 2 : 3;
  return {highest.logit, own.id_of_four(highest.tile) + i};
}

// Grid: (blocks of a cluster, samples). Three blocks of an SM leave 80 registers to a thread.
__global__ void __launch_bounds__(kTeamThreads, 3)
    sample_by_cluster(SamplePointers p, const __grid_constant__ GivenRows given) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ float4 room[];
  __shared__ ClusterShared s;
  __shared__ SampleRow request;
  __shared__ uint64_t barrier;
  wait_for_earlier();
  const unsigned sample = blockIdx.y;
  if (threadIdx.x == 0) request = p.rows != nullptr ? p.rows[sample] : given.rows[sample];
  __syncthreads();
  const ops::SamplerStep* steps = p.steps + request.first_step;
  if (!for_teams(request) || first_cut(request, steps) == FirstCut::kRank) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p.left[sample] = 1;
    return;
  }
  ClusterRow own(s, reinterpret_cast<float*>(room), p.vocab);
  load(own, p.logits + request.row * p.stride, &barrier);
  Found found;
  Highest highest = look(own, found.flags);
  if (request.edits > 0 || request.mask >= 0) {
    const uint32_t* mask = request.mask < 0 ? nullptr : p.masks + request.mask * ops::mask_words(p.vocab);
    highest = change(own, request, p.edits + request.first_edit, {own.logits(), mask, p.vocab}, found.flags);
  }
  found.first = first_of(own, highest);
  if (highest.logit > -INFINITY) found.lowest = highest.logit;
  found = own.combine(found, Found::Both());
  own.know(highest.logit, found.lowest);
  SampledRow sampled;
  sampled.token = found.error();
  bool left = false, listed = false;
  if (sampled.token == 0) {
    RowTokens tokens(own, found.first);
    sampled = sample_tokens(tokens, request, steps);
    left = tokens.gave_up(), listed = tokens.listed();
  }
  if (!listed) sync_cluster();  // blocks end when no other one reads them
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  p.left[sample] = left ? 1 : 0;
  if (!left) p.put(sample, sampled);
#endif
}

// A block's shared memory: a share of a row, and this much for all else.
constexpr size_t kOther = size_t{6} << 10;
static_assert(sizeof(ClusterShared) + sizeof(SampleRow) + sizeof(uint64_t) <= kOther);
size_t room_for(int vocab) {
  return std::max(static_cast<size_t>(ClusterRow::tiles_of(vocab)) * ClusterRow::kTile * sizeof(float),
                  sizeof(SortedTokens::Room));
}

}  // namespace

bool clusters_hold(const Launch& l, int vocab) {
  return l.compute_capability >= 90 && room_for(vocab) + kOther <= static_cast<size_t>(shared_of_block(l));
}

void sample_by_clusters(const Launch& l, const SamplePointers& p, const GivenRows& given, unsigned samples) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, sample_by_cluster, static_cast<size_t>(shared_of_block(l)) - kOther);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kTeamBlocks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kTeamBlocks, samples);
  config.blockDim = dim3(kTeamThreads);
  config.dynamicSmemBytes = room_for(p.vocab);
  config.stream = l.stream;
  config.attrs = attributes;
  config.numAttrs = l.pdl ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, sample_by_cluster, p, given), "sample by clusters");
}

}  // namespace sluice::cuda
