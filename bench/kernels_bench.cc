// kernels_bench [all|matmul|attention|selection|sample|barrier|TYPE,TYPE] [backend] [threads]
// Speed of the CPU kernels at the shapes of a 1.1B Llama, beside the machine's limits. Weights rotate through more
// copies than the caches hold, as in a model. Reports the best of many runs, because other load only makes a kernel
// look slower. With one thread, times are CPU time.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cpu/dispatch/machine.h"
#include "ops/entries.h"
#include "ops/gathered_keys.h"
#include "ops/sample.h"

namespace sluice::bench {
namespace {

using kernels::fastest;
using Limits = kernels::MachineLimits;

// Measured again before every table: on a shared machine the limits change during the benchmark.
Limits measure(ThreadPool& pool) {
  const Limits limits = kernels::measure_machine(pool);
  fmt::print(
      "{:>9} reads {:.1f} GB/s, fp32 {:.0f} GFLOP/s, bf16 dot {:.0f}, int8 dot {:.0f}, AMX bf16 {:.0f}, int8 {:.0f}\n",
      "limits", limits.read_bandwidth * 1e-9, limits.fma * 1e-9, limits.bf16_dot * 1e-9, limits.int8_dot * 1e-9,
      limits.amx_bf16 * 1e-9, limits.amx_int8 * 1e-9);
  return limits;
}

void fill(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  uint32_t state = 1;
  for (float& v : values) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  if (tensor.dtype->encode != nullptr) {
    from_float(tensor.dtype, values.data(), tensor.data, values.size());
  } else {  // speed does not depend on the values
    std::memset(tensor.data, 1, tensor.bytes());
  }
}

struct Owned {
  Buffer memory;
  Tensor tensor;
  Owned(DType dtype, Shape shape) : tensor(nullptr, dtype, shape) {
    memory = Buffer(tensor.bytes());
    tensor.data = memory.data();
    fill(tensor);
  }
};

// Operations per second that matmuls with weights of this type can reach on this machine.
double peak_of(const Limits& limits, const ops::MatmulKernels& kernels, DType type) {
  if (kernels.int8_block > 0) return std::max({limits.amx_int8, limits.int8_dot, limits.fma});
  if (type == &kBFloat16) return std::max({limits.amx_bf16, limits.bf16_dot, limits.fma});
  return limits.fma;
}

void matmul_table(ops::Ctx& ctx, const Limits& limits, DType type, int64_t n, int64_t k) {
  const ops::MatmulKernels& kernels = ctx.ops.matmul.at(type);
  const size_t bytes = kernels.packed_bytes(n, k);
  const int64_t copies = kernels::uncached_bytes() / static_cast<int64_t>(bytes) + 1;
  const Owned source(type, {n, k});
  const Buffer storage(bytes * static_cast<size_t>(copies));
  std::vector<ops::Weight> weights;
  for (int64_t i = 0; i < copies; ++i) {
    const ops::Weight& weight =
        weights.emplace_back(ops::Weight{.dtype = type, .n = n, .k = k, .data = storage.data() + i * bytes});
    kernels.pack(ctx.queue, weight, 0, source.tensor);
  }
  const double peak = peak_of(limits, kernels, type);
  for (int64_t rows : {1, 2, 4, 8, 12, 16, 32, 64, 128, 512}) {
    const Owned x(&kFloat32, {rows, k}), out(&kFloat32, {rows, n});
    size_t next = 0;
    const double seconds = fastest(0.25, [&] {
      ops::matmul(ctx, {.out = out.tensor, .x = x.tensor, .weight = &weights[next++ % weights.size()]});
    });
    const double gbs = static_cast<double>(bytes) / seconds, flops = 2.0 * static_cast<double>(rows * n * k) / seconds;
    fmt::print("{:>9} {:>6}x{:<5} {:>4} {:>9.1f} {:>8.1f} {:>5.0f}% {:>9.1f} {:>5.0f}%\n", type->name, n, k, rows,
               seconds * 1e6, gbs * 1e-9, 100 * gbs / limits.read_bandwidth, flops * 1e-9, 100 * flops / peak);
  }
}

void attention_row(ops::Ctx& ctx, const Limits& limits, DType type, int sequences, int rows, int context) {
  constexpr int kHeads = 32, kKvHeads = 4, kHeadDim = 64, kBlock = 16;
  const int blocks = (context + kBlock - 1) / kBlock;
  const Shape cache{int64_t{sequences} * blocks, kKvHeads, kBlock, kHeadDim};
  const Owned k(type, cache), v(type, cache), scales(&kFloat32, {cache.elements() / kHeadDim});
  float* scaled = type == &kInt8 ? scales.tensor.f32() : nullptr;
  const Owned q(&kFloat32, {int64_t{sequences} * rows, kHeads * kHeadDim});
  const Owned out(&kFloat32, {int64_t{sequences} * rows, kHeads * kHeadDim});
  std::vector<int32_t> start = {0}, kv_len, table;
  for (int s = 0; s < sequences; ++s) {
    start.push_back(start.back() + rows);
    kv_len.push_back(context);
    for (int b = 0; b < blocks; ++b) table.push_back(b * sequences + s);
  }
  const double seconds = fastest(0.25, [&] {
    ops::attention(ctx, {.out = out.tensor,
                         .q = q.tensor,
                         .k_cache = {k.tensor, scaled},
                         .v_cache = {v.tensor, scaled},
                         .query_start = start,
                         .kv_len = kv_len,
                         .block_table = table,
                         .block_table_stride = blocks,
                         .heads = kHeads,
                         .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))});
  });
  const double bytes = 2.0 * static_cast<double>(k.tensor.bytes() + (scaled != nullptr ? scales.tensor.bytes() : 0));
  const double pairs = static_cast<double>(sequences) * rows * (context - (rows - 1) / 2.0);
  const double flops = 4.0 * pairs * kHeads * kHeadDim / seconds;
  fmt::print("{:>9} {:>4} x {:>4} rows, context {:>5} {:>9.1f} {:>8.1f} {:>5.0f}% {:>9.1f} {:>5.0f}%\n", type->name,
             sequences, rows, context, seconds * 1e6, bytes / seconds * 1e-9,
             100 * bytes / seconds / limits.read_bandwidth, flops * 1e-9, 100 * flops / limits.fma);
}

void matmuls(ops::Ctx& ctx, const std::vector<DType>& types) {
  fmt::print("\n{:>9} {:>12} {:>4} {:>9} {:>8} {:>6} {:>9} {:>6}\n", "matmul", "n x k", "rows", "us", "GB/s", "limit",
             "GFLOP/s", "peak");
  for (DType type : types) {
    for (auto [n, k] : {std::pair{2048, 2048}, {5632, 2048}, {2048, 5632}, {32000, 2048}}) {
      matmul_table(ctx, measure(ctx.queue.threads()), type, n, k);
    }
  }
}

void attentions(ops::Ctx& ctx) {
  fmt::print("\n{:>9} {:>33} {:>9} {:>8} {:>6} {:>9} {:>6}\n", "attention", "32 heads, 4 kv heads, 64", "us", "GB/s",
             "limit", "GFLOP/s", "peak");
  for (DType type : {&kBFloat16, &kFloat8E4M3, &kInt8, &kFloat16, &kFloat32}) {
    const Limits limits = measure(ctx.queue.threads());
    for (int context : {128, 1024, 8192, 32768}) {
      attention_row(ctx, limits, type, 1, 1, context);
      if (context < 32768) attention_row(ctx, limits, type, 32, 1, context);
    }
    attention_row(ctx, limits, type, 1, 512, 512);
    attention_row(ctx, limits, type, 1, 512, 4096);
  }
}

// The last rows of one text: tokens selected as in DeepSeek-V3.2, and 16 heads attending to them.
void selection_row(ops::Ctx& ctx, DType type, int rows, int context) {
  constexpr int kTopK = 2048, kIndexHeads = 64, kIndexDim = 128, kHeads = 16, kDim = 576, kValueDim = 512, kBlock = 16;
  const int blocks = context / kBlock;
  const Owned index_keys(type, {blocks, 1, kBlock, kIndexDim}), latents(type, {blocks, 1, kBlock, kDim});
  const Owned index_q(&kFloat32, {rows, kIndexHeads * kIndexDim}), weights(&kFloat32, {rows, kIndexHeads});
  const Owned q(&kFloat32, {rows, kHeads * kDim}), out(&kFloat32, {rows, kHeads * kValueDim});
  Buffer selected(static_cast<size_t>(rows) * kTopK * sizeof(int32_t));
  const int64_t bytes = ops::GatheredKeys::bytes(16, kTopK, kDim * int64_t{type->block_bytes});
  Buffer gathered(static_cast<size_t>(bytes));
  const std::vector<int32_t> start{0, rows}, kv_len{context};
  std::vector<int32_t> table;
  for (int b = 0; b < blocks; ++b) table.push_back(b);
  const double select = fastest(0.25, [&] {
    ops::select_entries(ctx, {.selected = Tensor(selected.data(), &kInt32, {rows, kTopK}),
                              .q = index_q.tensor,
                              .weights = weights.tensor,
                              .entries = ops::EntryCache::of_tokens(index_keys.tensor),
                              .sequences = {start, kv_len, table, blocks}});
  });
  ops::AttentionArgs args{.out = out.tensor,
                          .q = q.tensor,
                          .k_cache = latents.tensor,
                          .v_cache = {},
                          .value_dim = kValueDim,
                          .query_start = start,
                          .kv_len = kv_len,
                          .block_table = table,
                          .block_table_stride = blocks,
                          .heads = kHeads,
                          .scale = 0.04f};
  const double all = fastest(0.25, [&] { ops::attention(ctx, args); });
  args.selected = Tensor(selected.data(), &kInt32, {rows, kTopK});
  args.gathered = Tensor(gathered.data(), &kInt8, {bytes});
  const double attend = fastest(0.25, [&] { ops::attention(ctx, args); });
  const double flops = 2.0 * rows * (context - (rows - 1) / 2.0) * kIndexHeads * kIndexDim;
  fmt::print("{:>9} {:>4} rows, context {:>6} {:>10.1f} {:>8.1f} {:>10.1f} {:>10.1f}\n", type->name, rows, context,
             select * 1e6, flops / select * 1e-9, attend * 1e6, all * 1e6);
}

void selections(ops::Ctx& ctx) {
  fmt::print("\n{:>9} {:>25} {:>10} {:>8} {:>10} {:>10}\n", "selection", "", "select us", "GFLOP/s", "attend us",
             "to all us");
  for (DType type : {&kBFloat16, &kFloat32}) {
    for (const int context : {4096, 32768, 131072}) selection_row(ctx, type, 1, context);
    for (const int context : {4096, 32768}) selection_row(ctx, type, 64, context);
  }
}

// Measures what an op costs only because all threads start and end together.
void barrier(ThreadPool& pool) {
  constexpr int kRuns = 1000;
  const double seconds = fastest(1.0, [&] {
    for (int i = 0; i < kRuns; ++i) pool.run([](int, int) {});
  });
  fmt::print("\n{:>9} {:.0f} ns\n", "barrier", seconds / kRuns * 1e9);
}

// Logits like those of a language model: normally distributed with a few large ones.
Owned logits_like(int64_t rows, int64_t vocab) {
  Owned logits(&kFloat32, {rows, vocab});
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  for (int64_t i = 0; i < rows * vocab; ++i) logits.tensor.f32()[i] = normal(random);
  for (int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < 20; ++i) logits.tensor.f32()[row * vocab + int64_t(random()) % vocab] = 10.0f + 0.5f * float(i);
  }
  return logits;
}

void sampling(ops::Ctx& ctx) {
  constexpr int64_t kVocab = 128'256;
  const std::pair<const char*, ops::SampleRow> cases[] = {
      {"greedy", {}},
      {"temperature 1", {.scale = 1.0f}},
      {"top-k 50", {.scale = 1.0f, .count = 50}},
      {"top-p 0.9", {.scale = 1.0f, .mass = 0.9}},
      {"top-k 50, top-p 0.9", {.scale = 1.0f, .count = 50, .mass = 0.9}},
      {"min-p 0.05", {.scale = 1.0f, .least = 0.05f}},
  };
  fmt::print("\n{:>20} {:>6} {:>10}  (logits of {} tokens)\n", "sample", "rows", "us", kVocab);
  constexpr uint32_t kPositions = 16;  // noise decides how many tokens are compared
  for (const int64_t rows : {int64_t{1}, int64_t{32}}) {
    const Owned logits = logits_like(rows, kVocab);
    Owned out(&kUInt8, {rows * int64_t(sizeof(ops::SampledRow))});
    Owned asked(&kUInt8, {rows * int64_t(sizeof(ops::SampleRow))});
    for (const auto& [name, row] : cases) {
      for (int64_t i = 0; i < rows; ++i) {
        auto& one = asked.tensor.as<ops::SampleRow>()[i] = row;
        one.row = int32_t(i), one.key[0] = uint32_t(i);
      }
      const ops::SampleArgs args{.logits = logits.tensor,
                                 .rows = asked.tensor,
                                 .sampled = out.tensor,
                                 .for_host = {},
                                 .edits = {},
                                 .steps = {},
                                 .masks = {},
                                 .top = {}};
      const double seconds = fastest(0.25,
                                     [&] {
                                       for (uint32_t position = 0; position < kPositions; ++position) {
                                         for (int64_t i = 0; i < rows; ++i)
                                           asked.tensor.as<ops::SampleRow>()[i].position = position;
                                         ops::sample(ctx, args);
                                       }
                                     }) /
                             kPositions;
      fmt::print("{:>20} {:>6} {:>10.1f}\n", name, rows, seconds * 1e6);
    }
  }
}

// Parses "q4_0,q8_0"; returns an empty list if a name is not a type.
std::vector<DType> parse_types(std::string_view names) {
  std::vector<DType> types;
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    types.push_back(find_dtype(names.substr(0, comma)));
    if (types.back() == nullptr) return {};
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return types;
}

int run(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "all";
  const std::vector<DType> types = parse_types(what);
  const bool all = what == "all";
  constexpr std::string_view kParts[] = {"all", "matmul", "attention", "selection", "sample", "barrier"};
  if (std::ranges::find(kParts, what) == std::end(kParts) && types.empty()) {
    fmt::print(stderr,
               "usage: kernels_bench [all|matmul|attention|selection|sample|barrier|TYPE,TYPE] [backend] [threads]\n");
    return 2;
  }
  const ops::Backend& backend = ops::select_backend(argc > 2 ? argv[2] : "");
  ThreadPool pool(argc > 3 ? std::atoi(argv[3]) : 0);
  if (pool.threads() == 1) kernels::use_cpu_time();
  Arena arena(0);
  ops::Queue queue(backend.open(0), pool);
  ops::Ctx ctx(queue, arena);
  fmt::print("{}, {} threads\n", backend.name, pool.threads());
  if (all || what == "matmul") matmuls(ctx, {&kBFloat16, &kFloat16, &kFloat32});
  if (!types.empty()) matmuls(ctx, types);
  if (all || what == "attention") attentions(ctx);
  if (all || what == "selection") selections(ctx);
  if (all || what == "sample") sampling(ctx);
  if (all || what == "barrier") barrier(pool);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::run(argc, argv); }
