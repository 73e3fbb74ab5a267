// Benchmarks attention over caches of every type and over latent caches.
#include <fmt/core.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "cuda/parts.h"
#include "cuda/timing.h"
#include "kernels/cuda/attention/splits.h"

namespace sluice::cuda {
namespace {

struct AttentionShape {
  DType type = &kBFloat16;
  std::vector<int> keys;  // keys of each sequence
  int rows = 1;           // query rows of each sequence
  bool check = true;
  int heads = 32, kv_heads = 8, dim = 128, block_size = 16;
  bool warpgroups = true;  // false: the kernels for devices before 9.0
  DType queries = &kFloat32;
  int value_dim = 0;  // > 0: a latent cache, whose values are the first columns of the keys
  int parts = 1;      // > 1: so many ranks divide the keys, and the cache has those of the first
};

void bench_attention(const AttentionShape& s) {
  const int sequences = static_cast<int>(s.keys.size()), rows = s.rows;
  const int longest = *std::max_element(s.keys.begin(), s.keys.end());
  const ops::KeyShare share{.parts = s.parts};
  const int stride = (static_cast<int>(share.count(longest)) + s.block_size - 1) / s.block_size;
  const int64_t blocks = int64_t{sequences} * stride, tokens = int64_t{sequences} * rows;
  const DType type = s.type;
  const int64_t cache = blocks * s.kv_heads * s.block_size * s.dim;
  const bool latent = s.value_dim > 0;
  const int value_dim = latent ? s.value_dim : s.dim;
  // int8 caches hold random bytes, with scales that make values of about one.
  const bool scaled = type == &kInt8;
  const Random k(scaled ? &kFloat8E4M3 : type, cache, 1.0f, 3),
      v(scaled ? &kFloat8E4M3 : type, latent ? 1 : cache, 1.0f, 4);
  const Random scales(&kFloat32, scaled ? cache / s.dim : 1, 0.01f, 7), q(s.queries, tokens * s.heads * s.dim, 1.0f, 5);
  Buffer memory(static_cast<size_t>(2 * tokens * s.heads * value_dim) * sizeof(float), device_memory());
  Buffer sums(static_cast<size_t>(tokens * s.heads) * sizeof(float), device_memory());
  std::vector<int32_t> start = {0}, len, table(static_cast<size_t>(blocks));
  double bytes = 0, pairs = 0;
  for (const int positions : s.keys) {
    start.push_back(start.back() + rows), len.push_back(positions);
    const auto keys = static_cast<double>(share.count(positions));
    bytes += (latent ? 1.0 : 2.0) * keys * s.kv_heads * (s.dim * type->block_bytes + (scaled ? 4 : 0));
    pairs += static_cast<double>(rows) * (positions - (rows - 1) / 2.0) / s.parts;
  }
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  std::shuffle(table.begin(), table.end(), std::mt19937(6));
  const DeviceIndices start_on(start), len_on(len), table_on(table);
  float* scale_data = scaled ? reinterpret_cast<float*>(scales.data()) : nullptr;
  const Shape cache_shape{blocks, s.kv_heads, s.block_size, s.dim};
  const int64_t width = int64_t{s.heads} * s.dim, out_width = int64_t{s.heads} * value_dim;
  ops::AttentionArgs args{
      .out = Tensor(memory.data(), &kFloat32, {tokens, out_width}),
      .q = Tensor(q.data(), s.queries, {tokens, width}),
      .k_cache = {Tensor(k.data(), type, cache_shape), scale_data},
      .v_cache = latent ? ops::CacheTensor() : ops::CacheTensor{Tensor(v.data(), type, cache_shape), scale_data},
      .value_dim = s.value_dim,
      .query_start = start,
      .kv_len = len,
      .block_table = table,
      .block_table_stride = stride,
      .heads = s.heads,
      .scale = 1.0f / std::sqrt(static_cast<float>(s.dim)),
      .share = share};
  if (s.parts > 1) args.log_sums = Tensor(sums.data(), &kFloat32, {tokens, s.heads});
  AttentionIndices at{
      .query_start = start_on.data(), .kv_len = len_on.data(), .block_table = table_on.data(), .sequences = sequences};
  for (const int positions : s.keys) {
    at.count(rows, static_cast<int>(share.count(positions)), s.heads / s.kv_heads);
  }
  bench_queue().reserve_workspace(attention_workspace(sequences, s.heads, value_dim, longest));
  Launch to = launch();
  if (!s.warpgroups) to.compute_capability = 80;
  const Tensor exact(memory.data() + tokens * out_width * sizeof(float), &kFloat32, {tokens, out_width});
  if (s.check) {
    ops::AttentionArgs checked = args;
    checked.out = exact;
    attention_exact(launch(), checked, at);
  }
  const int shortest = *std::min_element(s.keys.begin(), s.keys.end());
  const auto report = [&](std::string_view kernel, const auto& attend) {
    bool done = true;
    const double seconds = seconds_per_call(rows > 1 ? 2 : 8, [&](int) { done &= attend(to, args, at); });
    if (!done) return;
    const std::string error = s.check ? fmt::format("  error {:.1e}", relative_error(args.out, exact)) : "";
    const std::string part = s.parts > 1 ? fmt::format(", 1/{} of the keys", s.parts) : "";
    fmt::print(
        "attention {:>8} {:2}/{} x {:3}, blocks of {:2}{}{}{}: {:4} x {:5} rows {:6}-{:6} keys: {:9.1f} us "
        "{:5.2f} TB/s {:6.1f} TFLOP/s{}\n",
        type->name, s.heads, s.kv_heads, s.dim, s.block_size, kernel, s.queries == &kFloat32 ? "" : ", bf16 queries",
        part, sequences, rows, shortest, longest, seconds * 1e6, bytes / seconds * 1e-12,
        2.0 * pairs * static_cast<double>(width + out_width) / seconds * 1e-12, error);
  };
  report(s.warpgroups ? "" : ", mma.sync", attention_tensor);
  report(", splits", attention_by_splits);
}

std::vector<int> all(int sequences, int keys) { return std::vector<int>(static_cast<size_t>(sequences), keys); }

}  // namespace

void bench_narrow_decode(const std::vector<DType>& types) {
  for (DType type : types) {
    bench_attention({.type = type, .keys = all(1, 131072)});
    for (const int sequences : {8, 24, 32, 48, 64, 96, 128}) {
      bench_attention({.type = type, .keys = all(sequences, 1024)});
    }
    bench_attention({.type = type, .keys = all(32, 4096)});
    bench_attention({.type = type, .keys = all(256, 1500)});
    bench_attention({.type = type, .keys = all(512, 200)});
    bench_attention({.type = type, .keys = all(512, 1500), .check = false});
    bench_attention({.type = type, .keys = all(256, 3072), .check = false});
    bench_attention({.type = type, .keys = all(64, 21000), .check = false});
    bench_attention({.type = type, .keys = all(32, 8192), .dim = 64});
  }
}

void bench_narrow_prefill(const std::vector<DType>& types) {
  for (DType type : types) {
    bench_attention({.type = type, .keys = all(1, 8192), .rows = 8192});
    bench_attention({.type = type, .keys = all(8, 1024), .rows = 1024});
    const bool check = type == &kFloat8E4M3;
    bench_attention({.type = type, .keys = all(4, 8192), .rows = 2048, .check = check});
    bench_attention({.type = type, .keys = all(1, 20000), .rows = 20000, .check = check});
  }
}

void bench_attentions() {
  std::vector<int> mixed;  // one long sequence among short ones
  for (int i = 0; i < 64; ++i) mixed.push_back(i == 17 ? 65536 : 200 + i * 60);
  bench_attention({.keys = all(1, 1024)});
  bench_attention({.keys = all(1, 8192)});
  bench_attention({.keys = all(1, 131072)});
  bench_attention({.keys = all(32, 1024)});
  for (const int block_size : {8, 16, 32, 64}) bench_attention({.keys = all(32, 4096), .block_size = block_size});
  bench_attention({.type = &kFloat16, .keys = all(128, 1024)});
  bench_attention({.keys = all(256, 2048)});
  bench_attention({.keys = mixed});
  bench_attention({.keys = all(32, 4096), .rows = 4});
  bench_attention({.keys = all(32, 4096), .kv_heads = 32});
  bench_attention({.keys = all(32, 8192), .dim = 64});
  bench_attention({.keys = all(32, 2048), .heads = 16, .dim = 256});
  for (const bool warpgroups : {false, true}) {
    bench_attention({.keys = all(1, 2048), .rows = 2048, .warpgroups = warpgroups});
    bench_attention({.keys = all(1, 8192), .rows = 8192, .check = warpgroups, .warpgroups = warpgroups});
    bench_attention({.keys = all(4, 8192), .rows = 2048, .check = false, .warpgroups = warpgroups});
    bench_attention({.keys = all(1, 8192), .rows = 8192, .check = false, .dim = 64, .warpgroups = warpgroups});
    bench_attention(
        {.keys = all(1, 8192), .rows = 8192, .check = false, .heads = 16, .dim = 256, .warpgroups = warpgroups});
  }
  bench_attention({.keys = all(1, 8192), .rows = 8192, .check = false, .queries = &kBFloat16});
  bench_attention({.keys = all(256, 2048), .check = false, .queries = &kBFloat16});
}

// Two ranks or more with the heads of all of them. Whole caches of as many keys are for comparison.
void bench_key_parts() {
  for (const DType type : {&kBFloat16, &kFloat8E4M3}) {
    for (const int parts : {1, 4}) {
      const auto bench = [&](int sequences, int keys, int rows) {
        const int positions = rows == 1 ? keys * parts : keys;
        bench_attention({.type = type,
                         .keys = all(sequences, positions),
                         .rows = rows,
                         .heads = 16,
                         .kv_heads = 1,
                         .parts = parts});
      };
      bench(1, 32768, 1), bench(32, 4096, 1), bench(256, 4096, 1), bench(1, 8192, 4096);
    }
  }
  for (const int parts : {1, 8}) {
    for (const int sequences : {1, 64}) {
      bench_attention({.keys = all(sequences, 4096 * parts),
                       .heads = 128,
                       .kv_heads = 1,
                       .dim = 576,
                       .value_dim = 512,
                       .parts = parts});
    }
  }
}

void bench_wide_decode() {
  std::vector<int> spread;  // as sequences that came one after another
  for (int i = 0; i < 448; ++i) spread.push_back(1000 + i * 2);
  std::vector<int> padded = all(490, 1400);  // as in a captured graph
  padded.resize(512, 1);
  bench_attention({.keys = all(256, 1500), .check = false});
  for (const std::vector<int>& keys :
       {all(64, 1500), all(128, 1500), all(256, 1500), all(350, 1700), all(512, 1400), spread, padded}) {
    bench_attention({.keys = keys, .check = false, .kv_heads = 4, .queries = &kBFloat16});
  }
}

void bench_latent() {
  const auto bench = [](std::vector<int> keys, int rows, int heads, bool check) {
    bench_attention({.keys = std::move(keys),
                     .rows = rows,
                     .check = check,
                     .heads = heads,
                     .kv_heads = 1,
                     .dim = 576,
                     .value_dim = 512});
  };
  std::vector<int> mixed = all(50, 500);
  mixed.insert(mixed.end(), {30000, 9000, 100, 1});
  for (const int heads : {16, 128}) {
    bench(all(1, 32768), 1, heads, true);
    bench(all(8, 1000), 1, heads, true);
    bench(all(64, 4096), 1, heads, true);
    bench(all(256, 1500), 1, heads, heads == 16);
    bench(mixed, 1, heads, true);
  }
  bench(all(32, 4096), 4, 16, true);
  bench(all(1, 4096), 4096, 16, true);
  bench(all(1, 1024), 1024, 128, false);
  bench(all(8, 1024), 1024, 16, false);
  bench(all(2, 16384), 1024, 16, false);
}

}  // namespace sluice::cuda
