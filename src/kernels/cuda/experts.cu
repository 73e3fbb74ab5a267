// Ops on experts: the choice (one warp per row), a stable sort of the choices by expert, and the weighted sum back.
// Small data; bound by launches.
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr float kNever = -INFINITY;
constexpr int kRouteWarps = 4;

struct Ranked {
  float value;
  int index;
};

// The larger value, the lower index among equals. NaN loses against everything but stays a candidate.
__device__ Ranked better(const Ranked& a, const Ranked& b) {
  if (a.index < 0) return b;
  if (b.index < 0) return a;
  const float x = isnan(a.value) ? kNever : a.value, y = isnan(b.value) ? kNever : b.value;
  return x > y || (x == y && a.index < b.index) ? a : b;
}

__device__ Ranked warp_best(Ranked best) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Ranked other{__shfl_xor_sync(kFullWarp, best.value, offset), __shfl_xor_sync(kFullWarp, best.index, offset)};
    best = better(best, other);
  }
  return best;
}

// The best of scores[begin, end) that `taken` does not name; index -1 when all are taken.
__device__ Ranked best_of(const float* scores, const bool* taken, int begin, int end) {
  Ranked best{0.0f, -1};
  for (int i = begin + static_cast<int>(threadIdx.x % kWarp); i < end; i += kWarp) {
    if (!taken[i]) best = better(best, {scores[i], i});
  }
  return warp_best(best);
}

// The memory of one row's warp.
struct RouteRow {
  float *scores, *choice, *sums;  // [experts], [experts], [groups]
  bool *taken, *taken_groups;     // [experts], [groups]
};

size_t row_bytes(int experts, int groups) {
  return (static_cast<size_t>(2 * experts + groups) * sizeof(float) + experts + groups + 15) / 16 * 16;
}

struct RouteParams {
  int32_t* experts_out;
  float* weights_out;
  const float *logits, *correction;
  int64_t weights_stride, logits_stride;
  int rows, experts;
  ops::Routing routing;
};

class Router {
 public:
  __device__ Router(const RouteParams& p, const RouteRow& at, int64_t row)
      : p_(p),
        at_(at),
        lane_(threadIdx.x % kWarp),
        logits_(p.logits + row * p.logits_stride),
        chosen_(p.experts_out + row * p.routing.top_k),
        weights_(p.weights_out + row * p.weights_stride) {}

  __device__ void run() {
    if (p_.routing.score == ops::Routing::Score::kSparseMixer) return mix_sparsely();
    score();
    if (p_.routing.top_groups < p_.routing.groups) keep_best_groups();
    take(at_.choice, at_.taken, p_.experts, p_.routing.top_k);
    write();
  }

 private:
  __device__ void score() {
    const bool softmax = p_.routing.score == ops::Routing::Score::kSoftmax;
    float largest = kNever, sum = 0.0f;
    bool spoiled = false;
    for (int i = lane_; i < p_.experts; i += kWarp) {
      largest = fmaxf(largest, logits_[i]);
      spoiled |= isnan(logits_[i]);
    }
    largest = warp_max(largest);
    if (__any_sync(kFullWarp, spoiled)) largest = NAN;
    for (int i = lane_; i < p_.experts; i += kWarp) {
      const float x = logits_[i];
      at_.scores[i] = softmax ? expf(x - largest) : 1.0f / (1.0f + expf(-x));
      sum += at_.scores[i];
      at_.taken[i] = false;
    }
    sum = warp_sum(sum);
    for (int i = lane_; i < p_.experts; i += kWarp) {
      if (softmax) at_.scores[i] /= sum;
      at_.choice[i] = at_.scores[i] + (p_.correction != nullptr ? p_.correction[i] : 0.0f);
    }
    __syncwarp();
  }

  // Marks the k best; `taken` was false.
  __device__ void take(const float* scores, bool* taken, int count, int k) {
    for (int j = 0; j < k; ++j) {
      const Ranked best = best_of(scores, taken, 0, count);
      if (lane_ == 0) taken[best.index] = true;
      __syncwarp();
    }
  }

  // A group is worth the sum of its best, in the order of their indices, as the reference adds them.
  __device__ void keep_best_groups() {
    const int size = p_.experts / p_.routing.groups, best = min(p_.routing.group_best, size);
    for (int g = 0; g < p_.routing.groups; ++g) {
      for (int j = 0; j < best; ++j) {
        const Ranked found = best_of(at_.choice, at_.taken, g * size, (g + 1) * size);
        if (lane_ == 0) at_.taken[found.index] = true;
        __syncwarp();
      }
      if (lane_ == 0) {
        float sum = 0.0f;
        for (int i = g * size; i < (g + 1) * size; ++i) sum += at_.taken[i] ? at_.choice[i] : 0.0f;
        at_.sums[g] = sum;
        at_.taken_groups[g] = false;
      }
    }
    __syncwarp();
    take(at_.sums, at_.taken_groups, p_.routing.groups, p_.routing.top_groups);
    for (int i = lane_; i < p_.experts; i += kWarp) {
      at_.taken[i] = false;
      if (!at_.taken_groups[i / size]) at_.choice[i] = kNever;
    }
    __syncwarp();
  }

  // The marked experts in ascending order with their weights.
  __device__ void write() {
    if (lane_ != 0) return;
    const ops::Routing& r = p_.routing;
    float scale = r.scale;
    if (r.normalize) {
      float sum = 0.0f;
      for (int i = 0; i < p_.experts; ++i) sum += at_.taken[i] ? at_.scores[i] : 0.0f;
      scale /= sum < r.smallest_sum ? r.smallest_sum : sum;
    }
    int j = 0;
    for (int i = 0; i < p_.experts; ++i) {
      if (!at_.taken[i]) continue;
      chosen_[j] = i;
      weights_[j++] = at_.scores[i] * scale;
    }
  }

  // See the reference: the largest, by its share of a softmax over those close to it, twice.
  __device__ Ranked take_largest() {
    const Ranked largest = best_of(at_.scores, at_.taken, 0, p_.experts);
    float sum = 0.0f;
    for (int i = lane_; i < p_.experts; i += kWarp) {
      const float magnitude = fmaxf(fabsf(logits_[i]), largest.value);
      if (!((largest.value - logits_[i]) / magnitude > 2 * p_.routing.jitter)) {
        sum += at_.taken[i] ? 0.0f : expf(at_.scores[i] - largest.value);
      }
    }
    sum = warp_sum(sum);
    __syncwarp();
    if (lane_ == 0) at_.taken[largest.index] = true;
    __syncwarp();
    return {1.0f / sum, largest.index};
  }

  __device__ void mix_sparsely() {
    for (int i = lane_; i < p_.experts; i += kWarp) at_.scores[i] = logits_[i], at_.taken[i] = false;
    __syncwarp();
    const Ranked a = take_largest(), b = take_largest();
    if (lane_ != 0) return;
    const Ranked &first = a.index < b.index ? a : b, &second = a.index < b.index ? b : a;
    chosen_[0] = first.index, chosen_[1] = second.index;
    weights_[0] = first.value * p_.routing.scale, weights_[1] = second.value * p_.routing.scale;
  }

  const RouteParams& p_;
  const RouteRow& at_;
  const int lane_;
  const float* logits_;
  int32_t* chosen_;
  float* weights_;
};

__global__ void route_kernel(const __grid_constant__ RouteParams p, size_t bytes) {
  extern __shared__ __align__(16) std::byte memory[];
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  auto* floats = reinterpret_cast<float*>(memory + threadIdx.x / kWarp * bytes);
  auto* flags = reinterpret_cast<bool*>(floats + 2 * p.experts + p.routing.groups);
  const RouteRow at{floats, floats + p.experts, floats + 2 * p.experts, flags, flags + p.experts};
  Router(p, at, row).run();
}

// starts[e]: choices of experts below e. One block; counts in shared memory.
__global__ void count_experts(int32_t* starts, const int32_t* chosen, int entries, int experts) {
  extern __shared__ int counts[];
  for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += blockDim.x) atomicAdd(&counts[chosen[i]], 1);
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  int sum = 0;
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + static_cast<int>(threadIdx.x);
    const int own = e < experts ? counts[e] : 0, running = sum_upto(own);
    if (e < experts) starts[e] = sum + running - own;
    sum += __shfl_sync(kFullWarp, running, kWarp - 1);
  }
  if (threadIdx.x == 0) starts[experts] = sum;
}

struct Placement {
  int32_t *entries_out, *rows_out, *places_out;
  const int32_t *starts, *chosen;
  int entries, top_k;
};

// One block per expert walks the choices in order and gives its own the next places: stable.
constexpr int kPlaceThreads = 256;
__global__ void place_entries(const __grid_constant__ Placement p) {
  __shared__ int warp_counts[kPlaceThreads / kWarp];
  const int expert = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int place = p.starts[expert];
  if (place == p.starts[expert + 1]) return;
  for (int first = 0; first < p.entries; first += kPlaceThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mine = i < p.entries && p.chosen[i] == expert;
    const unsigned votes = __ballot_sync(kFullWarp, mine);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < kPlaceThreads / kWarp; ++w) {
      if (w < warp) before += warp_counts[w];
      all += warp_counts[w];
    }
    if (mine) {
      const int at = place + before + __popc(votes & ((1u << lane) - 1));
      p.places_out[i] = at;
      p.entries_out[at] = i;
      p.rows_out[at] = i / p.top_k;
    }
    place += all;
    __syncthreads();
  }
}

struct CombineParams {
  float* out;
  const float *x, *weights;
  const int32_t* places;
  int64_t out_stride, x_stride, weights_stride, columns;
  int top_k;
  bool accumulate;
};

// Blocks: (columns / threads, rows).
__global__ void combine_kernel(const __grid_constant__ CombineParams p) {
  const int64_t row = blockIdx.y, column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= p.columns) return;
  float& to = p.out[row * p.out_stride + column];
  float sum = p.accumulate ? to : 0.0f;
  for (int j = 0; j < p.top_k; ++j) {
    const int64_t entry = row * p.top_k + j;
    const int64_t place = p.places != nullptr ? p.places[entry] : entry;
    sum = fmaf(p.weights[row * p.weights_stride + j], p.x[place * p.x_stride + column], sum);
  }
  to = sum;
}

}  // namespace

void route(const Launch& l, const ops::RouteArgs& args) {
  const int rows = static_cast<int>(args.logits.rows()), experts = static_cast<int>(args.logits.shape[1]);
  if (rows == 0) return;
  const RouteParams p{.experts_out = args.experts.as<int32_t>(),
                      .weights_out = args.weights.f32(),
                      .logits = args.logits.f32(),
                      .correction = args.correction,
                      .weights_stride = args.weights.row_stride,
                      .logits_stride = args.logits.row_stride,
                      .rows = rows,
                      .experts = experts,
                      .routing = args.routing};
  const size_t bytes = row_bytes(experts, args.routing.groups);
  CHECK(bytes * kRouteWarps <= 48 << 10, "{} experts", experts);
  route_kernel<<<static_cast<unsigned>(pieces(rows, kRouteWarps)), kRouteWarps * kWarp, bytes * kRouteWarps,
                 l.stream>>>(p, bytes);
  check_launch("route");
}

void group_by_expert(const Launch& l, const ops::GroupByExpertArgs& args) {
  const int entries = static_cast<int>(args.experts.shape.elements());
  const int experts = static_cast<int>(args.starts.shape.elements()) - 1;
  CHECK(experts * sizeof(int) <= 48 << 10, "{} experts", experts);
  count_experts<<<1, 1024, experts * sizeof(int), l.stream>>>(args.starts.as<int32_t>(),
                                                              args.experts.as<const int32_t>(), entries, experts);
  check_launch("group_by_expert: count");
  const Placement p{.entries_out = args.entries.as<int32_t>(),
                    .rows_out = args.rows.as<int32_t>(),
                    .places_out = args.places.as<int32_t>(),
                    .starts = args.starts.as<const int32_t>(),
                    .chosen = args.experts.as<const int32_t>(),
                    .entries = entries,
                    .top_k = static_cast<int>(args.experts.shape[1])};
  place_entries<<<static_cast<unsigned>(experts), kPlaceThreads, 0, l.stream>>>(p);
  check_launch("group_by_expert: place");
}

void combine(const Launch& l, const ops::CombineArgs& args) {
  if (args.out.rows() == 0) return;
  const CombineParams p{.out = args.out.f32(),
                        .x = args.x.f32(),
                        .weights = args.weights.f32(),
                        .places = args.places.data != nullptr ? args.places.as<const int32_t>() : nullptr,
                        .out_stride = args.out.row_stride,
                        .x_stride = args.x.row_stride,
                        .weights_stride = args.weights.row_stride,
                        .columns = args.out.shape[1],
                        .top_k = static_cast<int>(args.weights.shape[1]),
                        .accumulate = args.accumulate};
  constexpr int kThreads = 256;
  constexpr int64_t kMostRows = 65535;  // of a grid's second dimension
  for (int64_t row = 0; row < args.out.rows(); row += kMostRows) {
    CombineParams part = p;
    part.out += row * p.out_stride, part.weights += row * p.weights_stride;
    if (p.places != nullptr) {
      part.places += row * p.top_k;
    } else {
      part.x += row * p.top_k * p.x_stride;
    }
    const dim3 grid(static_cast<unsigned>(pieces(p.columns, kThreads)),
                    static_cast<unsigned>(std::min(kMostRows, args.out.rows() - row)));
    combine_kernel<<<grid, kThreads, 0, l.stream>>>(part);
    check_launch("combine");
  }
}

}  // namespace sluice::cuda
