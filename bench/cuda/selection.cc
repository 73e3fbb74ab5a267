// Benchmarks the selection of tokens and attention to them, at the sizes of DeepSeek-V3.2.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/parts.h"
#include "cuda/timing.h"
#include "ops/entries.h"
#include "ops/gathered_keys.h"

namespace sluice::cuda {
namespace {

constexpr int kTopK = 2048, kBlockSize = 16, kIndexHeads = 64, kIndexDim = 128, kDim = 576, kValueDim = 512;

// The last `rows` rows of each sequence of `keys` tokens.
void bench_selection(int sequences, int keys, int rows, int heads) {
  const int stride = keys / kBlockSize, blocks = sequences * stride, tokens = sequences * rows;
  std::vector<int32_t> start(static_cast<size_t>(sequences) + 1), length(static_cast<size_t>(sequences), keys);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  for (int s = 0; s <= sequences; ++s) start[static_cast<size_t>(s)] = s * rows;
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(6));
  const DeviceIndices start_on(start), length_on(length), table_on(table);
  const Random index_keys(&kBFloat16, int64_t{blocks} * kBlockSize * kIndexDim, 1.0f, 1);
  const Random index_q(&kFloat32, int64_t{tokens} * kIndexHeads * kIndexDim, 1.0f, 2);
  const Random weights(&kFloat32, int64_t{tokens} * kIndexHeads, 1.0f, 3);
  const Random latents(&kBFloat16, int64_t{blocks} * kBlockSize * kDim, 1.0f, 4);
  const Random q(&kFloat32, int64_t{tokens} * heads * kDim, 1.0f, 5);
  Buffer out(static_cast<size_t>(tokens) * heads * kValueDim * sizeof(float), device_memory());
  Buffer selected(static_cast<size_t>(tokens) * kTopK * sizeof(int32_t), device_memory());
  const int64_t scratch = ops::GatheredKeys::bytes(16, kTopK, 2 * kDim);
  Buffer gathered(static_cast<size_t>(scratch), device_memory());

  const Indices starts(start, start_on.data()), lengths(length, length_on.data()), tables(table, table_on.data());
  const ops::SelectEntriesArgs select{
      .selected = Tensor(selected.data(), &kInt32, {tokens, kTopK}),
      .q = Tensor(index_q.data(), &kFloat32, {tokens, kIndexHeads * kIndexDim}),
      .weights = Tensor(weights.data(), &kFloat32, {tokens, kIndexHeads}),
      .entries = ops::EntryCache::of_tokens(Tensor(index_keys.data(), &kBFloat16, {blocks, 1, kBlockSize, kIndexDim})),
      .sequences = {starts, lengths, tables, stride}};
  ops::AttentionArgs args{.out = Tensor(out.data(), &kFloat32, {tokens, int64_t{heads} * kValueDim}),
                          .q = Tensor(q.data(), &kFloat32, {tokens, int64_t{heads} * kDim}),
                          .k_cache = Tensor(latents.data(), &kBFloat16, {blocks, 1, kBlockSize, kDim}),
                          .v_cache = {},
                          .value_dim = kValueDim,
                          .query_start = starts,
                          .kv_len = lengths,
                          .block_table = tables,
                          .block_table_stride = stride,
                          .heads = heads,
                          .scale = 0.04f,
                          .selected = select.selected,
                          .gathered = Tensor(gathered.data(), &kInt8, {scratch})};
  AttentionIndices at{.query_start = start_on.data(),
                      .kv_len = length_on.data(),
                      .block_table = table_on.data(),
                      .sequences = sequences};
  const int runs = rows > 1 ? 1 : 8;
  const double choose = seconds_per_call(runs, [&](int) { select_entries(launch(), select, Arithmetic::kTensor); });
  const double attend =
      seconds_per_call(runs, [&](int) { attention_selected(launch(), args, at, Arithmetic::kTensor); });
  for (int s = 0; s < sequences; ++s) at.count(rows, keys, heads);
  ops::AttentionArgs whole = args;
  whole.selected = whole.gathered = {};
  const double all = seconds_per_call(runs, [&](int) { attention_tensor(launch(), whole, at); });
  const double flops = 2.0 * kIndexHeads * kIndexDim * tokens * (keys - (rows - 1) / 2.0);
  fmt::print(
      "selection {:3} x {:4} rows of {:6} tokens: select {:9.1f} us {:6.1f} TFLOP/s, attend {:9.1f} us with {:3} "
      "heads; attend to all {:9.1f} us\n",
      sequences, rows, keys, choose * 1e6, flops / choose * 1e-12, attend * 1e6, heads, all * 1e6);
}

}  // namespace

void bench_selections() {
  for (const int keys : {32768, 131072}) {
    for (const int heads : {16, 128}) {
      bench_selection(1, keys, 1, heads);
      bench_selection(16, keys, 1, heads);
      bench_selection(1, keys, 1024, heads);
    }
  }
}

}  // namespace sluice::cuda
