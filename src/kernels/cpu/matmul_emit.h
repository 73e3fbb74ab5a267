// Epilogue of a matmul: writes a row's sums of a vector of columns.
#pragma once

#include "kernels/cpu/simd.h"
#include "ops/ops.h"

namespace sluice::SLUICE_ISA {

// Prefetches the place where a row's vector of columns will be written.
SLUICE_INLINE void expect_emit(const ops::MatmulArgs& args, int64_t row, int64_t column) {
  __builtin_prefetch(reinterpret_cast<float*>(args.out.data) + row * args.out.row_stride + column, 1, 3);
}

// out = acc + bias, or out + acc + bias. Columns past the last one are not written.
SLUICE_INLINE void emit(const ops::MatmulArgs& args, int64_t row, int64_t column, Vec acc) {
  const int64_t n = args.weight->n;
  float* out = reinterpret_cast<float*>(args.out.data) + row * args.out.row_stride + column;
  const auto write = [&](auto extent) {
    if (args.bias != nullptr) acc = acc + load(args.bias + column, extent);
    if (args.accumulate) acc = load(out, extent) + acc;
    store(out, acc, extent);
  };
  if (column + kLanes <= n) {
    write(All{});
  } else if (column < n) {
    write(First{static_cast<int>(n - column)});
  }
}

}  // namespace sluice::SLUICE_ISA
