// Sums of the rows of sequences. A piece of work is some columns of one sequence, whose rows are added in ascending
// order; the sums of a piece stay in L1. Bound by reading the rows once.
#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kColumns = 256;    // in a piece
constexpr int64_t kGrain = 1 << 15;  // elements worth handing to another thread

// Adds rows [begin, end) of `count` columns.
void add_up(double* sums, const float* x, int64_t stride, int64_t begin, int64_t end, int64_t count, bool first) {
  for (int64_t i = 0; first && i < count; ++i) sums[i] = 0;
  for (int64_t row = begin; row < end; ++row) {
    const float* values = x + row * stride;
    for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(values[i]);
  }
}

}  // namespace

void sum_rows(ops::Queue& queue, const ops::SumRowsArgs& args) {
  const int64_t columns = args.x.shape[1], parts = (columns + kColumns - 1) / kColumns;
  const int64_t pieces = static_cast<int64_t>(args.sequences.kv_len.size()) * parts;
  if (pieces == 0) return;
  const int64_t elements = args.x.shape[0] * columns / pieces;  // in a piece, on average
  queue.threads().parallel_for(pieces, kGrain / (elements + 1) + 1, [&](int64_t first_piece, int64_t last_piece) {
    for (int64_t piece = first_piece; piece < last_piece; ++piece) {
      const int64_t s = piece / parts, at = piece % parts * kColumns;
      const int64_t count = columns - at < kColumns ? columns - at : kColumns;
      const int32_t begin = args.sequences.query_start.data()[s], end = args.sequences.query_start.data()[s + 1];
      if (begin == end) continue;
      const int64_t slot = args.sequences.slots.data()[s];
      add_up(reinterpret_cast<double*>(args.sums.data) + slot * args.sums.row_stride + at,
             reinterpret_cast<const float*>(args.x.data) + at, args.x.row_stride, begin, end, count,
             args.sequences.kv_len.data()[s] == end - begin);
    }
  });
}

}  // namespace sluice::SLUICE_ISA
