// Attention to copies of the keys that some rows see, where each row is a sequence of its own (ops/gathered_keys.h).
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/kernels.h"
#include "ops/gathered_keys.h"

namespace sluice::cuda {

// Calls copy(first row, grid) for as many rows at a time as the copies have room for, and attends to what it launches:
// block x of row y of the grid is block x of the keys of row `first + y`. `args` are those from which the copies were
// made; args.selected.shape[1] is the most keys of a row.
template <class Copy>
void attend_to_copies(const Launch& l, const ops::AttentionArgs& args, const ops::GatheredKeys& copies,
                      Arithmetic arithmetic, Copy&& copy) {
  constexpr int64_t kMostRows = 1 << 15;  // of a launch
  const int64_t tokens = args.q.rows(), at_once = std::min(copies.rows, kMostRows);
  const int most = static_cast<int>(args.selected.shape[1]);
  Launch behind = l;
  behind.captured = false;  // kernels must not read the copies before they are made
  for (int64_t first = 0; first < tokens; first += at_once) {
    const int64_t rows = std::min(at_once, tokens - first);
    copy(static_cast<int>(first), dim3(static_cast<unsigned>(copies.blocks), static_cast<unsigned>(rows)));
    check_launch("copies of keys");
    const ops::AttentionArgs part = copies.of_rows(args, first, rows);
    AttentionIndices own{.query_start = copies.query_start,
                         .kv_len = copies.kv_len,
                         .block_table = copies.block_table,
                         .sequences = static_cast<int>(rows)};
    for (int64_t i = 0; i < rows; ++i) own.count(1, most, args.heads);
    if (arithmetic != Arithmetic::kTensor || !attention_tensor(behind, part, own)) attention_exact(behind, part, own);
  }
}

}  // namespace sluice::cuda
