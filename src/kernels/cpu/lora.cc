// Low-rank changes by adapters: two thin matmuls per row. For few rows, threads share the rows of A and then the
// outputs; both are read once for each row that has the adapter. A sum runs over the inputs in an order that its length
// fixes.
#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kGrain = 1 << 14;  // multiplications that are worth a thread's attention

int64_t grain(int64_t each) { return each >= kGrain ? 1 : kGrain / (each + 1) + 1; }

float* row_of(const Tensor& x, int64_t row) { return reinterpret_cast<float*>(x.data) + row * x.row_stride; }

template <class T>
float dot(const T* a, const float* b, int64_t count) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    SLUICE_UNROLL for (int j = 0; j < 4; ++j) {
      sums[j] = fma(load(a + i + j * kLanes, All{}), load(b + i + j * kLanes, All{}), sums[j]);
    }
  }
  each_vec(count - i,
           [&](int64_t rest, auto n) { sums[0] = fma(load(a + i + rest, n), load(b + i + rest, n), sums[0]); });
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Calls body(row, slot, begin, end) for pieces of `count` items of every row that has an adapter.
template <class F>
void each_piece(ops::Queue& queue, const Indices& slots, int64_t count, int64_t each, F&& body) {
  const auto rows = static_cast<int64_t>(slots.size());
  queue.threads().parallel_for(rows * count, grain(each), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / count, first = begin % count;
      const int64_t last = first + (end - begin) < count ? first + (end - begin) : count;
      const int64_t slot = slots.data()[row];
      if (slot >= 0) body(row, slot, first, last);
      begin += last - first;
    }
  });
}

// Calls f(matrix) with a pointer of the matrices' type.
template <class F>
void with_type(DType type, const std::byte* matrix, F&& f) {
  if (type == &kBFloat16) return f(reinterpret_cast<const Bf16*>(matrix));
  f(reinterpret_cast<const float*>(matrix));
}

}  // namespace

void lora_shrink(ops::Queue& queue, const ops::LoraShrinkArgs& args) {
  const ops::LoraWeight& w = *args.weight;
  const int64_t inner = w.inner();
  CHECK(args.x.dtype == &kFloat32, "x is {}", args.x.dtype->name);
  with_type(w.type, w.a, [&](const auto* a) {
    each_piece(queue, args.slots, inner, w.k, [&](int64_t row, int64_t slot, int64_t begin, int64_t end) {
      const float* x = row_of(args.x, row);
      float* to = row_of(args.inner, row);
      for (int64_t j = begin; j < end; ++j) {
        to[j] = w.scales[slot * w.parts + j / w.rank] * dot(a + (slot * inner + j) * w.k, x, w.k);
      }
    });
  });
}

void lora_expand(ops::Queue& queue, const ops::LoraExpandArgs& args) {
  const ops::LoraWeight& w = *args.weight;
  CHECK(args.out.dtype == &kFloat32, "out is {}", args.out.dtype->name);
  with_type(w.type, w.b, [&](const auto* b) {
    each_piece(queue, args.slots, w.n, w.rank, [&](int64_t row, int64_t slot, int64_t begin, int64_t end) {
      const float* from = row_of(args.inner, row);
      float* out = row_of(args.out, row);
      int part = 0;
      for (int64_t o = begin; o < end; ++o) {
        while (o >= w.part_ends[part]) ++part;
        out[o] += dot(b + (slot * w.n + o) * w.rank, from + part * w.rank, w.rank);
      }
    });
  });
}

}  // namespace sluice::SLUICE_ISA
