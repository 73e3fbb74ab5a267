// Ops on experts: routing (one warp per row), the choice of physical experts (one thread per entry), a stable sort of
// the choices by expert (one block, or one per expert), and the weighted sum of the experts' results. A decode step has
// little data here, so it is bound by the latency of dependent loads and barriers.
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/route.cuh"
#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"
#include "ops/physical_experts.h"

namespace sluice::cuda {
namespace {

constexpr int kRouteWarps = 4;

struct Ranked {
  float value;
  int index;
};

// The largest of a lane's share of scores[begin, end) that is not marked in `taken`; the first among equals. Order 0:
// there is none.
__device__ Candidate own_best(const float* scores, const bool* taken, int begin, int end) {
  Candidate best{0, 0};
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x % kWarp); i < end; i += kWarp) {
    const uint32_t order = taken[i] ? 0 : order_of(scores[i]);
    if (order > best.order) best = {order, i};
  }
  return best;
}
// The best of scores[begin, end) that is not marked in `taken`. Index -1: all are taken.
__device__ Ranked best_of(const float* scores, const bool* taken, int begin, int end) {
  const int index = best_index(own_best(scores, taken, begin, end));
  return {index < 0 ? 0.0f : scores[index], index};
}

// The shared memory of one row's warp.
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
  const float *logits, *correction, *given;
  int64_t weights_stride, logits_stride, given_stride;
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
        given_(p.given != nullptr ? p.given + row * p.given_stride : nullptr),
        chosen_(p.experts_out + row * p.routing.top_k),
        weights_(p.weights_out + row * p.weights_stride) {}

  __device__ void run() {
    if (p_.routing.score == ops::Routing::Score::kSparseMixer) return mix_sparsely();
    score();
    if (given_ != nullptr) return write_given();
    if (p_.routing.top_groups < p_.routing.groups) keep_best_groups();
    take(at_.choice, at_.taken, p_.experts, p_.routing.top_k);
    write();
  }

 private:
  __device__ void score() {
    const bool softmax = p_.routing.score == ops::Routing::Score::kSoftmax;
    const bool softplus = p_.routing.score == ops::Routing::Score::kSqrtSoftplus;
    float largest = kNever, sum = 0.0f;
    bool spoiled = false;
#pragma unroll 4
    for (int i = lane_; i < p_.experts; i += kWarp) {
      const float x = logits_[i];
      largest = fmaxf(largest, x);
      spoiled |= isnan(x);
      at_.scores[i] = x;
    }
    largest = warp_max(largest);
    if (__any_sync(kFullWarp, spoiled)) largest = NAN;
#pragma unroll 4
    for (int i = lane_; i < p_.experts; i += kWarp) {
      const float x = at_.scores[i];
      at_.scores[i] = softmax    ? expf(x - largest)
                      : softplus ? sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))))
                                 : 1.0f / (1.0f + expf(-x));
      sum += at_.scores[i];
      at_.taken[i] = false;
    }
    sum = warp_sum(sum);
#pragma unroll 4
    for (int i = lane_; i < p_.experts; i += kWarp) {
      if (softmax) at_.scores[i] /= sum;
      at_.choice[i] = at_.scores[i] + (p_.correction != nullptr ? p_.correction[i] : 0.0f);
    }
    __syncwarp();
  }

  // Marks the k best in `taken`, which must be all false. Only the lane whose best is taken has to search again.
  __device__ void take(const float* scores, bool* taken, int count, int k) {
    Candidate own = own_best(scores, taken, 0, count);
    for (int j = 0; j < k; ++j) {
      const int best = best_index(own);
      if (best % kWarp != lane_) continue;
      taken[best] = true;
      own = own_best(scores, taken, 0, count);
    }
    __syncwarp();
  }

  // A group's score is the sum of its best experts, added in the order of their indices, as in the reference.
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

  // Writes the marked experts in ascending order with their weights. Overwrites `choice`, which is no longer needed.
  __device__ void write() {
    int before = 0;
    for (int first = 0; first < p_.experts; first += kWarp) {
      const int i = first + lane_;
      const bool taken = i < p_.experts && at_.taken[i];
      const unsigned votes = __ballot_sync(kFullWarp, taken);
      if (taken) {
        const int j = before + __popc(votes & ((1u << lane_) - 1));
        chosen_[j] = i;
        at_.choice[j] = at_.scores[i];
      }
      before += __popc(votes);
    }
    write_weights();
  }

  // Writes the given experts in ascending order with their weights.
  __device__ void write_given() {
    const int top_k = p_.routing.top_k;
    const auto given = [&](int j) { return static_cast<int>(fminf(fmaxf(given_[j], 0.0f), p_.experts - 1.0f)); };
    for (int j = lane_; j < top_k; j += kWarp) {
      const int expert = given(j);
      int before = 0;
      for (int i = 0; i < top_k; ++i) before += given(i) < expert || (given(i) == expert && i < j) ? 1 : 0;
      chosen_[before] = expert;
      at_.choice[before] = at_.scores[expert];
    }
    write_weights();
  }

  // Writes the weights of the chosen experts, whose scores `choice` has by now.
  __device__ void write_weights() {
    const ops::Routing& r = p_.routing;
    __syncwarp();
    float scale = r.scale;
    if (r.normalize) {
      float sum = 0.0f;
#pragma unroll 4
      for (int j = 0; j < r.top_k; ++j) sum += at_.choice[j];
      scale /= sum < r.smallest_sum ? r.smallest_sum : sum;
    }
    for (int j = lane_; j < r.top_k; j += kWarp) weights_[j] = at_.choice[j] * scale;
  }

  // As in the reference: takes the largest score, weighted by its share of a softmax over the scores close to it.
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
  const float *logits_, *given_;
  int32_t* chosen_;
  float* weights_;
};

__global__ void route_kernel(const __grid_constant__ RouteParams p, size_t bytes) {
  extern __shared__ __align__(16) std::byte memory[];
  wait_for_earlier();
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  auto* floats = reinterpret_cast<float*>(memory + threadIdx.x / kWarp * bytes);
  auto* flags = reinterpret_cast<bool*>(floats + 2 * p.experts + p.routing.groups);
  const RouteRow at{floats, floats + p.experts, floats + 2 * p.experts, flags, flags + p.experts};
  Router(p, at, row).run();
}

// Routing without groups, with a lane's share of the experts in registers. Shared memory: [warps][top_k] scores.
template <int kShare>
__global__ void route_in_registers(const __grid_constant__ RouteParams p, const ExpertChoice r) {
  extern __shared__ float memory_of_scores[];
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (row >= p.rows) return;
  const float* logits = p.logits + row * p.logits_stride;
  float scores[kShare];
#pragma unroll
  for (int s = 0; s < kShare; ++s) scores[s] = s * kWarp + lane < p.experts ? logits[s * kWarp + lane] : kNever;
  float* chosen = memory_of_scores + warp * r.top_k;
  choose_experts<kShare>(r, p.correction, p.experts, scores, [&](int j, int expert, float score) {
    p.experts_out[row * r.top_k + j] = expert, chosen[j] = score;
  });
  const float factor = weight_factor(r, [&](int j) { return chosen[j]; });
  for (int j = lane; j < r.top_k; j += kWarp) p.weights_out[row * p.weights_stride + j] = chosen[j] * factor;
}

struct PhysicalParams {
  int32_t* chosen;
  const float* logits;
  const int32_t *first, *physical;
  unsigned long long* counts;
  int64_t logits_stride;
  int entries, top_k, choices;
};

// A thread takes one entry at a time. Each block adds its counts at the end.
constexpr int kPhysicalThreads = 256, kPhysicalBlocks = 64;
__global__ void __launch_bounds__(kPhysicalThreads) choose_physical_kernel(const __grid_constant__ PhysicalParams p) {
  extern __shared__ int counts[];  // [choices]
  for (int e = threadIdx.x; e < p.choices; e += kPhysicalThreads) counts[e] = 0;
  wait_for_earlier();
  __syncthreads();
  const int threads = static_cast<int>(gridDim.x) * kPhysicalThreads;
  for (int i = static_cast<int>(blockIdx.x) * kPhysicalThreads + threadIdx.x; i < p.entries; i += threads) {
    const int expert = p.chosen[i], first = p.first[expert], several = p.first[expert + 1] - first;
    const float logit = p.logits[i / p.top_k * p.logits_stride + expert];
    atomicAdd(&counts[expert], 1);
    p.chosen[i] = p.physical[first + static_cast<int>(ops::physical_of(__float_as_uint(logit), several))];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < p.choices; e += kPhysicalThreads) {
    if (counts[e] > 0) atomicAdd(&p.counts[e], static_cast<unsigned long long>(counts[e]));
  }
}

// Writes starts[e], the sum of the counts below e. Called by the first warp.
__device__ void write_starts(int32_t* starts, const int* counts, int experts) {
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
  int32_t *entries_out, *rows_out, *places_out, *starts;
  const int32_t* chosen;
  int entries, top_k, experts;

  __device__ void put(int entry, int place) const {
    places_out[entry] = place;
    entries_out[place] = entry;
    rows_out[place] = entry / top_k;
  }
};

// Sorts up to kFewEntries choices in one block, one thread each: by votes within a warp, by counts among warps.
constexpr int kFewEntries = 1024;
__global__ void __launch_bounds__(kFewEntries) group_few(const __grid_constant__ Placement p) {
  extern __shared__ int counts[];  // [experts] counts of all warps, then [experts + 1] starts
  int* begins = counts + p.experts;
  auto* of_warp = reinterpret_cast<uint16_t*>(begins + p.experts + 1);  // [warps][experts]: counts of each warp, then
                                                                        // those of the warps before it
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int i = static_cast<int>(threadIdx.x);
  for (int j = i; j < warps * p.experts; j += static_cast<int>(blockDim.x)) of_warp[j] = 0;
  wait_for_earlier();
  const int expert = i < p.entries ? p.chosen[i] : -1;
  const unsigned alike = __match_any_sync(kFullWarp, expert), before = alike & ((1u << lane) - 1);
  __syncthreads();
  if (expert >= 0 && before == 0) of_warp[warp * p.experts + expert] = static_cast<uint16_t>(__popc(alike));
  __syncthreads();
  for (int e = i; e < p.experts; e += static_cast<int>(blockDim.x)) {
    int sum = 0;
    for (int w = 0; w < warps; ++w) {
      uint16_t& own = of_warp[w * p.experts + e];
      const int count = own;
      own = static_cast<uint16_t>(sum);
      sum += count;
    }
    counts[e] = sum;
  }
  __syncthreads();
  if (warp == 0) write_starts(begins, counts, p.experts);
  __syncthreads();
  for (int e = i; e <= p.experts; e += static_cast<int>(blockDim.x)) p.starts[e] = begins[e];
  if (expert >= 0) p.put(i, begins[expert] + of_warp[warp * p.experts + expert] + __popc(before));
}

// Counts the choices of each expert in shared memory. One block.
__global__ void count_experts(const __grid_constant__ Placement p) {
  extern __shared__ int counts[];
  for (int e = threadIdx.x; e < p.experts; e += blockDim.x) counts[e] = 0;
  wait_for_earlier();
  __syncthreads();
  for (int i = threadIdx.x; i < p.entries; i += blockDim.x) atomicAdd(&counts[p.chosen[i]], 1);
  __syncthreads();
  if (threadIdx.x < kWarp) write_starts(p.starts, counts, p.experts);
}

// Each block takes one expert: it scans the choices in order and gives those of its expert the next places. So the sort
// is stable.
constexpr int kPlaceThreads = 512, kOfThread = 8;
__global__ void __launch_bounds__(kPlaceThreads) place_entries(const __grid_constant__ Placement p) {
  __shared__ int warp_counts[kPlaceThreads / kWarp];
  const int expert = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  wait_for_earlier();
  int place = p.starts[expert];
  const int end = p.starts[expert + 1];
  for (int first = 0; place < end; first += kPlaceThreads * kOfThread) {
    const int begin = first + static_cast<int>(threadIdx.x) * kOfThread;
    unsigned mine = 0;
#pragma unroll
    for (int j = 0; j < kOfThread; ++j) {
      if (begin + j < p.entries && p.chosen[begin + j] == expert) mine |= 1u << j;
    }
    const int own = __popc(mine), upto = sum_upto(own);
    if (lane == kWarp - 1) warp_counts[warp] = upto;
    __syncthreads();
    int before = upto - own, all = 0;
#pragma unroll
    for (int w = 0; w < kPlaceThreads / kWarp; ++w) {
      if (w < warp) before += warp_counts[w];
      all += warp_counts[w];
    }
    for (int at = place + before; mine != 0; mine &= mine - 1) p.put(begin + __ffs(static_cast<int>(mine)) - 1, at++);
    place += all;
    __syncthreads();
  }
}

template <class X>
struct CombineParams {
  float* out;
  const X* x;
  const float* weights;
  const int32_t* places;
  int64_t out_stride, x_stride, weights_stride, columns;
  int top_k;
  bool accumulate;
};

// How a thread adds: four columns of a row, or one.
struct Four {
  using Type = float4;
  static constexpr int kColumns = 4;
  template <class X>
  static __device__ float4 load(const X* x) {
    return load_four(x);
  }
  static __device__ float4 add(float4 sum, float weight, float4 x) {
    return {fmaf(weight, x.x, sum.x), fmaf(weight, x.y, sum.y), fmaf(weight, x.z, sum.z), fmaf(weight, x.w, sum.w)};
  }
};
struct One {
  using Type = float;
  static constexpr int kColumns = 1;
  template <class X>
  static __device__ float load(const X* x) {
    return static_cast<float>(*x);
  }
  static __device__ float add(float sum, float weight, float x) { return fmaf(weight, x, sum); }
};

// Grid: (columns / threads, rows).
template <class Part, class X>
__global__ void combine_kernel(const __grid_constant__ CombineParams<X> p) {
  using T = typename Part::Type;
  wait_for_earlier();
  const int64_t row = blockIdx.y, column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * Part::kColumns;
  if (column >= p.columns) return;
  T& to = *reinterpret_cast<T*>(p.out + row * p.out_stride + column);
  T sum = p.accumulate ? to : T{};
#pragma unroll 4
  for (int j = 0; j < p.top_k; ++j) {
    const int64_t entry = row * p.top_k + j;
    const int64_t place = p.places != nullptr ? p.places[entry] : entry;
    sum = Part::add(sum, p.weights[row * p.weights_stride + j], Part::load(p.x + place * p.x_stride + column));
  }
  to = sum;
}

template <class Part, class X>
void combine_by(const Launch& l, const CombineParams<X>& p, int64_t rows) {
  constexpr int kThreads = Part::kColumns == 4 ? 128 : 256;
  const dim3 grid(static_cast<unsigned>(pieces(p.columns, kThreads * Part::kColumns)), static_cast<unsigned>(rows));
  launch_pdl(l, "combine", combine_kernel<Part, X>, grid, kThreads, 0, p);
}

template <class X>
void combine_of(const Launch& l, const ops::CombineArgs& args) {
  const CombineParams<X> p{.out = args.out.f32(),
                           .x = args.x.as<const X>(),
                           .weights = args.weights.f32(),
                           .places = args.places.data != nullptr ? args.places.as<const int32_t>() : nullptr,
                           .out_stride = args.out.row_stride,
                           .x_stride = args.x.row_stride,
                           .weights_stride = args.weights.row_stride,
                           .columns = args.out.shape[1],
                           .top_k = static_cast<int>(args.weights.shape[1]),
                           .accumulate = args.accumulate};
  const bool quads = reinterpret_cast<uintptr_t>(p.out) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(p.x) % (4 * sizeof(X)) == 0 && p.out_stride % 4 == 0 &&
                     p.x_stride % 4 == 0 && p.columns % 4 == 0;
  constexpr int64_t kMostRows = 65535;  // of a grid's second dimension
  for (int64_t row = 0; row < args.out.rows(); row += kMostRows) {
    CombineParams<X> part = p;
    part.out += row * p.out_stride, part.weights += row * p.weights_stride;
    if (p.places != nullptr) {
      part.places += row * p.top_k;
    } else {
      part.x += row * p.top_k * p.x_stride;
    }
    const int64_t rows = std::min(kMostRows, args.out.rows() - row);
    quads ? combine_by<Four>(l, part, rows) : combine_by<One>(l, part, rows);
  }
}

}  // namespace

void route(const Launch& l, const ops::RouteArgs& args) {
  const int rows = static_cast<int>(args.logits.rows()), experts = static_cast<int>(args.logits.shape[1]);
  if (rows == 0) return;
  const RouteParams p{.experts_out = args.experts.as<int32_t>(),
                      .weights_out = args.weights.f32(),
                      .logits = args.logits.f32(),
                      .correction = args.correction,
                      .given = args.given.data != nullptr ? args.given.f32() : nullptr,
                      .weights_stride = args.weights.row_stride,
                      .logits_stride = args.logits.row_stride,
                      .given_stride = args.given.row_stride,
                      .rows = rows,
                      .experts = experts,
                      .routing = args.routing};
  const size_t bytes = row_bytes(experts, args.routing.groups);
  CHECK(bytes * kRouteWarps <= 48 << 10, "{} experts do not fit into shared memory", experts);
  const dim3 blocks(static_cast<unsigned>(pieces(rows, kRouteWarps)));
  if (chooses_without_groups(args) && experts <= 8 * kWarp) {
    const size_t scores = sizeof(float) * kRouteWarps * static_cast<size_t>(args.routing.top_k);
    const auto kernel = experts <= kWarp       ? route_in_registers<1>
                        : experts <= 2 * kWarp ? route_in_registers<2>
                        : experts <= 4 * kWarp ? route_in_registers<4>
                                               : route_in_registers<8>;
    launch_pdl(l, "route", kernel, blocks, kRouteWarps * kWarp, scores, p, expert_choice(args.routing));
    return;
  }
  launch_pdl(l, "route", route_kernel, blocks, kRouteWarps * kWarp, bytes * kRouteWarps, p, bytes);
}

void choose_physical(const Launch& l, const ops::PhysicalExpertsArgs& args) {
  const int entries = static_cast<int>(args.experts.shape.elements());
  const int choices = static_cast<int>(args.logits.shape[1]);
  if (entries == 0) return;
  CHECK(choices * sizeof(int) <= 48 << 10, "{} experts do not fit into shared memory", choices);
  const PhysicalParams p{.chosen = args.experts.as<int32_t>(),
                         .logits = args.logits.f32(),
                         .first = args.first,
                         .physical = args.physical,
                         .counts = reinterpret_cast<unsigned long long*>(args.counts),
                         .logits_stride = args.logits.row_stride,
                         .entries = entries,
                         .top_k = static_cast<int>(args.experts.shape[1]),
                         .choices = choices};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(pieces(entries, kPhysicalThreads), kPhysicalBlocks));
  launch_pdl(l, "choose_physical", choose_physical_kernel, dim3(blocks), kPhysicalThreads, choices * sizeof(int), p);
}

void group_by_expert(const Launch& l, const ops::GroupByExpertArgs& args) {
  const int entries = static_cast<int>(args.experts.shape.elements());
  const int experts = static_cast<int>(args.starts.shape.elements()) - 1;
  constexpr size_t kShared = 48 << 10;
  CHECK(experts * sizeof(int) <= kShared, "{} experts do not fit into shared memory", experts);
  const Placement p{.entries_out = args.entries.as<int32_t>(),
                    .rows_out = args.rows.as<int32_t>(),
                    .places_out = args.places.as<int32_t>(),
                    .starts = args.starts.as<int32_t>(),
                    .chosen = args.experts.as<const int32_t>(),
                    .entries = entries,
                    .top_k = static_cast<int>(args.experts.shape[1]),
                    .experts = experts};
  const unsigned warps = static_cast<unsigned>(pieces(std::max(entries, 1), kWarp));
  const size_t few_bytes = (2 * experts + 1) * sizeof(int) + experts * warps * sizeof(uint16_t);
  if (entries <= kFewEntries && few_bytes <= kShared) {
    launch_pdl(l, "group_by_expert", group_few, dim3(1), warps * kWarp, few_bytes, p);
    return;
  }
  launch_pdl(l, "group_by_expert: count", count_experts, dim3(1), 1024, experts * sizeof(int), p);
  launch_pdl(l, "group_by_expert: place", place_entries, dim3(static_cast<unsigned>(experts)), kPlaceThreads, 0, p);
}

void combine(const Launch& l, const ops::CombineArgs& args) {
  if (args.out.rows() == 0) return;
  args.x.dtype == &kBFloat16 ? combine_of<__nv_bfloat16>(l, args) : combine_of<float>(l, args);
}

}  // namespace sluice::cuda
