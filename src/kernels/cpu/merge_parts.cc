// Merges the results of attention over several parts of the keys, one row at a time. Bound by reading the parts once.
#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements worth handing to another thread

float max_of(float a, float b) { return a > b ? a : b; }
float exponential(float x) { return first_lane(exp(broadcast(x))); }

// out[0 .. dim) = the sum of the parts' values times their weights; values of parts are `stride` apart.
void merge_head(float* out, int64_t dim, const float* x, int64_t stride, const float* logs, int64_t log_stride,
                int64_t parts, const float* sink) {
  float top = sink != nullptr ? *sink : -__builtin_inff();
  for (int64_t p = 0; p < parts; ++p) top = max_of(top, logs[p * log_stride]);
  float sum = sink != nullptr ? exponential(*sink - top) : 0.0f;
  for (int64_t p = 0; p < parts; ++p) sum += exponential(logs[p * log_stride] - top);
  for (int64_t p = 0; p < parts; ++p) {
    const Vec weight = broadcast(exponential(logs[p * log_stride] - top) / sum);
    each_vec(dim, [&](int64_t d, auto n) {
      const Vec own = load(x + p * stride + d, n) * weight;
      store(out + d, p == 0 ? own : load(out + d, n) + own, n);
    });
  }
}

}  // namespace

void merge_parts(ops::Queue& queue, const ops::MergePartsArgs& args) {
  const int64_t heads = args.heads, columns = args.out.shape[1], dim = columns / heads;
  const auto row_of = [](const Tensor& x, int64_t t) { return reinterpret_cast<float*>(x.data) + t * x.row_stride; };
  queue.threads().parallel_for(args.out.shape[0], kGrain / (args.parts * columns) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        merge_head(row_of(args.out, t) + h * dim, dim, row_of(args.x, t) + h * dim, columns,
                   row_of(args.log_sums, t) + h, heads, args.parts, args.sinks != nullptr ? args.sinks + h : nullptr);
      }
    }
  });
}

}  // namespace sluice::SLUICE_ISA
