// RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), LayerNorm (Ba et al. 2016, arXiv:1607.06450) and related norms
// over the last dimension. Sums use four vectors of partial sums, added in a fixed order. A step's rows fit in L2.
// Memory-bound: x is read twice and out written once.
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements worth handing to another thread

// Sums f over x. Lanes past the end reach f as zeros, and their results are masked out.
template <class F>
SLUICE_INLINE float sum(const float* x, int64_t count, F&& f) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sums[j] = sums[j] + f(load(x + i + j * kLanes, All{}));
  }
  for (; i + kLanes <= count; i += kLanes) sums[0] = sums[0] + f(load(x + i, All{}));
  if (i < count) {
    const int left = static_cast<int>(count - i);
    sums[1] = sums[1] + select(first_lanes(left), f(load(x + i, First{left})), zero());
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Calls body(out, x) for every vector of the last dimension of [rows, columns] or [rows, groups, columns].
template <class F>
void each_vector(ops::Queue& queue, const Tensor& out, const Tensor& x, int64_t columns, F&& body) {
  const int64_t groups = x.shape.rank() == 3 ? x.shape[1] : 1;
  queue.threads().parallel_for(x.shape[0] * groups, kGrain / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / groups, at = i % groups * columns;
      body(reinterpret_cast<float*>(out.data) + row * out.row_stride + at,
           reinterpret_cast<const float*>(x.data) + row * x.row_stride + at);
    }
  });
}

}  // namespace

void rms_norm(ops::Queue& queue, Tensor out, Tensor x, const float* weight, float eps, float weight_offset) {
  const int64_t columns = x.shape[x.shape.rank() - 1];
  each_vector(queue, out, x, columns, [&](float* to, const float* from) {
    const float squares = sum(from, columns, [](Vec v) { return v * v; });
    const Vec scale = broadcast(1.0f / std::sqrt(squares / static_cast<float>(columns) + eps));
    each_vec(columns, [&](int64_t i, auto n) {
      Vec y = load(from + i, n) * scale;
      if (weight != nullptr) y = y * (load(weight + i, n) + broadcast(weight_offset));
      store(to + i, y, n);
    });
  });
}

void layer_norm(ops::Queue& queue, Tensor out, Tensor x, const float* weight, const float* bias, float eps) {
  const int64_t columns = x.shape[x.shape.rank() - 1];
  each_vector(queue, out, x, columns, [&](float* to, const float* from) {
    const Vec mean = broadcast(sum(from, columns, [](Vec v) { return v; }) / static_cast<float>(columns));
    const float squares = sum(from, columns, [=](Vec v) { return (v - mean) * (v - mean); });
    const Vec scale = broadcast(1.0f / std::sqrt(squares / static_cast<float>(columns) + eps));
    each_vec(columns, [&](int64_t i, auto n) {
      Vec y = (load(from + i, n) - mean) * scale;
      if (weight != nullptr) y = y * load(weight + i, n);
      if (bias != nullptr) y = y + load(bias + i, n);
      store(to + i, y, n);
    });
  });
}

void match_rms(ops::Queue& queue, Tensor x, Tensor like, float floor) {
  const int64_t columns = x.shape[1];
  const auto square = [](Vec v) { return v * v; };
  each_vector(queue, x, like, columns, [&](float* to, const float* other) {
    const auto count = static_cast<float>(columns);
    const float own = sum(to, columns, square) / count, wanted = sum(other, columns, square) / count;
    const Vec scale = broadcast(std::sqrt(wanted / (own > floor ? own : floor)));
    each_vec(columns, [&](int64_t i, auto n) { store(to + i, load(to + i, n) * scale, n); });
  });
}

void gaussian_top_k(ops::Queue& queue, Tensor x, float deviations) {
  const int64_t columns = x.shape[1];
  each_vector(queue, x, x, columns, [&](float* to, const float*) {
    const auto count = static_cast<float>(columns);
    const float mean = sum(to, columns, [](Vec v) { return v; }) / count;
    const float squares = sum(to, columns, [=](Vec v) { return (v - broadcast(mean)) * (v - broadcast(mean)); });
    const Vec cutoff = broadcast(mean + deviations * std::sqrt(squares / count));
    each_vec(columns, [&](int64_t i, auto n) { store(to + i, max(load(to + i, n) - cutoff, zero()), n); });
  });
}

}  // namespace sluice::SLUICE_ISA
