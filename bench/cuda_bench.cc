// Kernels of the CUDA backends at the shapes of an 8B model: time, bandwidth and arithmetic rate against the device's
// ceilings, and the error of the tensor-core kernels against the exact ones on the same data. Launches are replayed
// from a graph over rotating weights, so that neither launch gaps nor the L2 cache are measured.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul_rows.h"
#include "kernels/cuda/panels.h"

namespace sluice::cuda {
namespace {

constexpr size_t kRotated = size_t{512} << 20;  // bytes of weights walked through, several times the L2 cache

const Launch& launch() { return DeviceContext::get().launch(); }

// Device memory of random values: normal, scaled, in any plain type; a block of them, repeated.
class Random {
 public:
  Random(DType type, int64_t count, float scale = 1.0f, unsigned seed = 1)
      : memory_(static_cast<size_t>(count) * type->block_bytes, device_memory()) {
    constexpr int64_t kBlock = 1 << 20;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(static_cast<size_t>(std::min(count, kBlock)));
    for (float& v : values) v = normal(random);
    std::vector<std::byte> stored(values.size() * type->block_bytes);
    from_float(type, values.data(), stored.data(), values.size());
    for (size_t at = 0; at < memory_.size(); at += stored.size()) {
      device_memory().copy(memory_.data() + at, stored.data(), std::min(stored.size(), memory_.size() - at));
    }
  }
  std::byte* data() const { return memory_.data(); }

 private:
  Buffer memory_;
};

// Median seconds of what body() puts on the stream.
double seconds(const std::function<void()>& body) {
  cudaStream_t stream = launch().stream;
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "event");
    body();
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaEventSynchronize(end), "graph");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (i >= 2) times.push_back(milliseconds);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

// Median seconds of one call of body(i) for i = 0 .. calls - 1, replayed from a graph.
double seconds_per_call(int calls, const std::function<void(int)>& body) {
  cudaStream_t stream = launch().stream;
  for (int i = 0; i < calls; ++i) body(i);  // libraries choose, shared memory is allowed
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < calls; ++i) body(i);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "graph");
  const double s = seconds([&] { check_cuda(cudaGraphLaunch(replay, stream), "graph"); });
  cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
  return s / calls;
}

std::vector<float> to_host(const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.shape.elements()));
  device_memory().copy(values.data(), t.data, values.size() * sizeof(float));
  return values;
}

// ||a - b|| / ||b||, and infinity where anything is not a number.
double relative_error(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = to_host(a), y = to_host(b);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    norm += double{y[i]} * y[i];
  }
  const double error = std::sqrt(difference / norm);
  return std::isnan(error) ? INFINITY : error;
}

struct Device {
  Buffer memory;
  explicit Device(const std::vector<int32_t>& values) : memory(values.size() * 4, device_memory()) {
    device_memory().copy(memory.data(), values.data(), memory.size());
  }
  const int32_t* data() const { return reinterpret_cast<const int32_t*>(memory.data()); }
};

void bench_copy() {
  const size_t bytes = size_t{2} << 30;
  Buffer a(bytes, device_memory()), b(bytes, device_memory());
  const double s = seconds_per_call(1, [&](int) {
    check_cuda(cudaMemcpyAsync(a.data(), b.data(), bytes, cudaMemcpyDeviceToDevice, launch().stream), "copy");
  });
  fmt::print("copy of 2 GiB: {:.2f} TB/s read and written\n", 2 * static_cast<double>(bytes) / s * 1e-12);
}

// By a whole matrix.
Product product_of(DType type, const std::byte* weight, const Tensor& x, const Tensor& out) {
  return {.out = out, .x = x, .type = type, .weight = weight, .n = out.shape[1], .k = x.shape[1]};
}

void bench_matmul(DType type, int64_t n, int64_t k, const std::vector<int64_t>& row_counts) {
  const int64_t weight_bytes = n * padded_k(k) * type->block_bytes;
  const int copies = static_cast<int>(std::max<int64_t>(1, static_cast<int64_t>(kRotated) / weight_bytes));
  const Random weights(type, copies * n * padded_k(k), 0.02f);
  for (const int64_t rows : row_counts) {
    const Random x(&kFloat32, rows * k, 1.0f, 2);
    Buffer memory(static_cast<size_t>(2 * rows * n) * sizeof(float), device_memory());
    const Tensor out(memory.data(), &kFloat32, {rows, n});
    const Tensor exact(memory.data() + rows * n * sizeof(float), &kFloat32, {rows, n});
    const auto product = [&](int i, const Tensor& to) {
      return product_of(type, weights.data() + i % copies * weight_bytes, Tensor(x.data(), &kFloat32, {rows, k}), to);
    };
    const auto report = [&](std::string_view kernel, double s) {
      std::string error;
      if (rows <= 256) {
        multiply_exact(launch(), product(std::max(copies, 4) - 1, exact));
        error = fmt::format("  error {:.1e}", relative_error(out, exact));
      }
      const double bytes = static_cast<double>(weight_bytes) + rows * (n + k) * 4.0;
      fmt::print("{:>8} [{:6}, {:5}] {:5} rows {:7}: {:9.2f} us {:6.2f} TB/s {:6.1f} TFLOP/s{}\n", type->name, n, k,
                 rows, kernel, s * 1e6, bytes / s * 1e-12, 2.0 * rows * n * k / s * 1e-12, error);
    };
    const int calls = rows > 1000 ? 2 : std::max(copies, 4);
    if (rows <= kMostStreamedRows && type != &kFloat32) {
      report("stream", seconds_per_call(calls, [&](int i) { multiply_streamed(launch(), product(i, out)); }));
    }
    const auto report_if_done = [&](std::string_view kernel, const auto& multiply) {
      bool done = true;
      const double s = seconds_per_call(calls, [&](int i) { done &= multiply(launch(), product(i, out)); });
      if (done) report(kernel, s);
    };
    if (type != &kFloat32) report_if_done("rows", multiply_plain_rows);
    report_if_done("cublas", multiply_dense);
  }
}

// Of NVFP4, which is only read, any blocks with scales of about one and a scale of the tensor.
std::vector<std::byte> random_blocks(DType type, int64_t count) {
  std::mt19937 random(1);
  if (type == &quant::ScaledNVFP4::kType) {
    std::vector<quant::ScaledNVFP4::Block> nvfp4(static_cast<size_t>(count) / quant::ScaledNVFP4::kElements);
    for (quant::ScaledNVFP4::Block& block : nvfp4) {
      block.scale = 0.01f;
      for (uint8_t& scale : block.groups.d) scale = static_cast<uint8_t>(0x30 + random() % 16);
      for (uint8_t& pair : block.groups.qs) pair = static_cast<uint8_t>(random());
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(nvfp4.data());
    return {bytes, bytes + nvfp4.size() * sizeof nvfp4[0]};
  }
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  std::vector<std::byte> blocks(values.size() / type->block_size * type->block_bytes);
  from_float(type, values.data(), blocks.data(), values.size());
  return blocks;
}

// Random weights of a quantized type, `copies` of the same matrix.
Buffer quantized_weights(DType type, int64_t n, int64_t k, int copies) {
  const PanelKernels& kernels = *panel_kernels(type);
  const size_t bytes = kernels.packed_bytes(n, k);
  Buffer weights(static_cast<size_t>(copies) * bytes, device_memory());
  constexpr int64_t kRows = 64;  // repeated
  std::vector<std::byte> blocks = random_blocks(type, kRows * k);
  ThreadPool pool(4, false);
  const ops::Weight into{.dtype = type, .n = n, .k = k, .data = weights.data()};
  for (int64_t row = 0; row < n; row += kRows) {
    kernels.pack(pool, into, row, Tensor(blocks.data(), type, {std::min(kRows, n - row), k}));
  }
  for (int i = 1; i < copies; ++i) {
    device_memory().copy(weights.data() + static_cast<size_t>(i) * bytes, weights.data(), bytes);
  }
  return weights;
}

// Quantized weights; errors are against the same weights unpacked, in fp32.
void bench_quantized(DType type, int64_t n, int64_t k, const std::vector<int64_t>& row_counts) {
  const PanelKernels& kernels = *panel_kernels(type);
  const auto bytes = static_cast<int64_t>(kernels.packed_bytes(n, k));
  const int copies = static_cast<int>(std::max<int64_t>(1, static_cast<int64_t>(kRotated) / bytes));
  const Buffer weights = quantized_weights(type, n, k, copies);
  for (const int64_t rows : row_counts) {
    const Random x(&kFloat32, rows * k, 1.0f, 2);
    const Buffer memory(static_cast<size_t>(2 * rows * n) * sizeof(float), device_memory());
    const Tensor out(memory.data(), &kFloat32, {rows, n});
    const Tensor exact(memory.data() + rows * n * sizeof(float), &kFloat32, {rows, n});
    const auto product = [&](int i, const Tensor& to) {
      return product_of(type, weights.data() + i % copies * bytes, Tensor(x.data(), &kFloat32, {rows, k}), to);
    };
    const int calls = rows > 1000 ? 2 : std::max(copies, 4);
    multiply_quantized(launch(), product(0, exact), Arithmetic::kExact);
    const auto report = [&](std::string_view kernel, double s) {
      const double moved = static_cast<double>(bytes) + static_cast<double>(rows * (n + k)) * 4.0;
      fmt::print("{:>9} [{:6}, {:5}] {:5} rows {:7}: {:9.2f} us {:6.2f} TB/s {:6.1f} TFLOP/s  error {:.1e}\n",
                 type->name, n, k, rows, kernel, s * 1e6, moved / s * 1e-12,
                 2.0 * static_cast<double>(rows * n * k) / s * 1e-12, relative_error(out, exact));
    };
    if (rows <= 2 * kMostStreamedRows) {
      report("stream", seconds_per_call(calls, [&](int i) { kernels.multiply(launch(), product(i, out)); }));
    }
    bool done = true;
    const double t =
        seconds_per_call(calls, [&](int i) { done &= kernels.multiply_by_tiles(launch(), product(i, out)); });
    if (done) report("tiles", t);
    if (rows < 8) continue;
    done = true;
    const double s = seconds_per_call(calls, [&](int i) { done &= multiply_by_unpacking(launch(), product(i, out)); });
    if (done) report("unpack", s);
    if (type != &quant::Fp8::kType) continue;
    // With the rounding of the inputs: what is chosen, cuBLASLt, and scales of groups.
    using enum ops::InputRounding;
    for (const auto& [name, rounding, capability] :
         {std::tuple{"fp8", kFp8PerRow, 90}, {"fp8lib", kFp8PerRow, 89}, {"fp8/128", kFp8PerGroup, 90}}) {
      Launch l = launch();
      l.compute_capability = capability;
      const double seconds = seconds_per_call(calls, [&](int i) {
        Product p = product(i, out);
        p.rounding = rounding;
        done &= multiply_fp8(l, p);
      });
      if (done) report(name, seconds);
    }
    if (rows > 256) continue;
    const Buffer scales(static_cast<size_t>(rows) * sizeof(float), device_memory());
    const Buffer eighths(static_cast<size_t>(rows * k), device_memory());
    round_to_fp8(launch(), eighths.data(), reinterpret_cast<float*>(scales.data()),
                 Tensor(x.data(), &kFloat32, {rows, k}), false);
    report("fp8own", seconds_per_call(calls, [&](int i) {
             multiply_fp8_rows(launch(), product(i, out), eighths.data(), reinterpret_cast<float*>(scales.data()));
           }));
  }
}

// Products with the matrices of `experts` experts, of which every token takes `top_k`: the kernel of few rows and
// tiles. A call walks through matrices that no cache holds.
void bench_experts(DType type, int experts, int top_k, int64_t n, int64_t k, const std::vector<int64_t>& token_counts) {
  const PanelKernels* panels = panel_kernels(type);
  const int64_t all = experts * ops::stacked_outputs(n);
  const auto plain_bytes = static_cast<size_t>(all * padded_k(k)) * type->block_bytes;
  const size_t bytes = panels != nullptr ? panels->packed_bytes(all, k) : plain_bytes;
  const int copies = static_cast<int>(std::max<size_t>(1, kRotated / bytes));
  const Buffer quantized = panels != nullptr ? quantized_weights(type, all, k, copies) : Buffer();
  const Random plain(panels != nullptr ? &kBFloat16 : type, panels != nullptr ? 8 : copies * all * padded_k(k), 0.02f);
  const std::byte* weights = panels != nullptr ? quantized.data() : plain.data();
  for (const int64_t tokens : token_counts) {
    const int64_t rows = tokens * top_k;
    std::mt19937 random(7);
    std::vector<int32_t> order(static_cast<size_t>(experts)), starts(static_cast<size_t>(experts) + 1);
    for (int i = 0; i < experts; ++i) order[static_cast<size_t>(i)] = i;
    for (int64_t t = 0; t < tokens; ++t) {
      std::shuffle(order.begin(), order.end(), random);
      for (int j = 0; j < top_k; ++j) ++starts[static_cast<size_t>(order[static_cast<size_t>(j)]) + 1];
    }
    int used = 0;
    for (int i = 0; i < experts; ++i) {
      used += starts[static_cast<size_t>(i) + 1] > 0 ? 1 : 0;
      starts[static_cast<size_t>(i) + 1] += starts[static_cast<size_t>(i)];
    }
    const Device starts_on(starts);
    const Random x(&kFloat32, rows * k, 1.0f, 2);
    const Buffer memory(static_cast<size_t>(2 * rows * n) * sizeof(float), device_memory());
    const Tensor out(memory.data(), &kFloat32, {rows, n});
    const Tensor other(memory.data() + rows * n * sizeof(float), &kFloat32, {rows, n});
    const auto product = [&](int i, const Tensor& to) {
      Product p = product_of(type, weights + static_cast<size_t>(i % copies) * bytes,
                             Tensor(x.data(), &kFloat32, {rows, k}), to);
      p.matrices = experts, p.weight_rows = ops::stacked_outputs(n), p.starts = starts_on.data();
      return p;
    };
    const int calls = rows > 4096 ? 2 : std::max(copies, 4);
    const double few = seconds_per_call(calls, [&](int i) {
      const Product p = product(i, other);
      panels != nullptr ? panels->multiply(launch(), p) : multiply_streamed(launch(), p);
    });
    bool done = true;
    const double many = seconds_per_call(calls, [&](int i) {
      const Product p = product(i, out);
      done &= panels != nullptr ? panels->multiply_by_tiles(launch(), p) : multiply_plain_by_tiles(launch(), p);
    });
    const double apart = !done ? INFINITY : rows <= 8192 ? relative_error(out, other) : 0.0;
    std::string eighths;
    if (type == &quant::Fp8::kType) {
      bool taken = true;
      const double s = seconds_per_call(calls, [&](int i) {
        Product p = product(i, out);
        p.rounding = ops::InputRounding::kFp8PerRow;
        taken &= multiply_fp8(launch(), p);
      });
      if (taken) eighths = fmt::format("  8-bit inputs {:9.1f} us", s * 1e6);
    }
    const double moved = static_cast<double>(bytes) * used / experts, flops = 2.0 * static_cast<double>(rows * n * k);
    fmt::print(
        "{:>9} {:3} x [{:5}, {:5}] {:5} tokens, {:6} rows: few {:9.1f} us {:6.1f} TFLOP/s  tiles {:9.1f} us {:6.1f} "
        "TFLOP/s {:5.2f} TB/s of weights  apart {:.1e}{}\n",
        type->name, experts, n, k, tokens, rows, few * 1e6, flops / few * 1e-12, many * 1e6, flops / many * 1e-12,
        moved / many * 1e-12, apart, eighths);
  }
}

struct AttentionShape {
  DType type = &kBFloat16;
  std::vector<int> keys;  // of each sequence
  int rows = 1;           // of each sequence
  bool check = true;
  int heads = 32, kv_heads = 8, dim = 128, block_size = 16;
  bool warpgroups = true;  // false: what devices before 9.0 run
  DType queries = &kFloat32;
  int value_dim = 0;  // > 0: values are the first columns of the keys
};

void bench_attention(const AttentionShape& s) {
  const int sequences = static_cast<int>(s.keys.size()), rows = s.rows;
  const int longest = *std::max_element(s.keys.begin(), s.keys.end());
  const int stride = (longest + s.block_size - 1) / s.block_size;
  const int64_t blocks = int64_t{sequences} * stride, tokens = int64_t{sequences} * rows;
  const DType type = s.type;
  const int64_t cache = blocks * s.kv_heads * s.block_size * s.dim;
  const bool latent = s.value_dim > 0;
  const int value_dim = latent ? s.value_dim : s.dim;
  // Of int8, the codes of bytes at random, with scales that make numbers of about one.
  const bool scaled = type == &kInt8;
  const Random k(scaled ? &kFloat8E4M3 : type, cache, 1.0f, 3),
      v(scaled ? &kFloat8E4M3 : type, latent ? 1 : cache, 1.0f, 4);
  const Random scales(&kFloat32, scaled ? cache / s.dim : 1, 0.01f, 7), q(s.queries, tokens * s.heads * s.dim, 1.0f, 5);
  Buffer memory(static_cast<size_t>(2 * tokens * s.heads * value_dim) * sizeof(float), device_memory());
  std::vector<int32_t> start = {0}, len, table(static_cast<size_t>(blocks));
  AttentionIndices at{.sequences = sequences};
  double bytes = 0, pairs = 0;
  for (const int keys : s.keys) {
    start.push_back(start.back() + rows), len.push_back(keys);
    at.count(rows, keys, s.heads / s.kv_heads);
    bytes += (latent ? 1.0 : 2.0) * keys * s.kv_heads * (s.dim * type->block_bytes + (scaled ? 4 : 0));
    pairs += static_cast<double>(rows) * (keys - (rows - 1) / 2.0);
  }
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  std::shuffle(table.begin(), table.end(), std::mt19937(6));
  const Device start_on(start), len_on(len), table_on(table);
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
      .scale = 1.0f / std::sqrt(static_cast<float>(s.dim))};
  at.query_start = start_on.data(), at.kv_len = len_on.data(), at.block_table = table_on.data();
  DeviceContext::get().reserve_workspace(attention_workspace(sequences, s.heads, value_dim, longest));
  Launch to = launch();
  if (!s.warpgroups) to.compute_capability = 80;
  const double seconds = seconds_per_call(rows > 1 ? 2 : 8, [&](int) { attention_tensor(to, args, at); });
  std::string error;
  if (s.check) {
    const Tensor fast = args.out;
    args.out = Tensor(memory.data() + tokens * out_width * sizeof(float), &kFloat32, {tokens, out_width});
    attention_exact(launch(), args, at);
    error = fmt::format("  error {:.1e}", relative_error(fast, args.out));
  }
  const int shortest = *std::min_element(s.keys.begin(), s.keys.end());
  fmt::print(
      "attention {:>8} {:2}/{} x {:3}, blocks of {:2}{}{}: {:4} x {:5} rows {:6}-{:6} keys: {:9.1f} us {:5.2f} TB/s "
      "{:6.1f} TFLOP/s{}\n",
      type->name, s.heads, s.kv_heads, s.dim, s.block_size, s.warpgroups ? "" : ", mma.sync",
      s.queries == &kFloat32 ? "" : ", bf16 queries", sequences, rows, shortest, longest, seconds * 1e6,
      bytes / seconds * 1e-12, 2.0 * pairs * static_cast<double>(width + out_width) / seconds * 1e-12, error);
}

std::vector<int> all(int sequences, int keys) { return std::vector<int>(static_cast<size_t>(sequences), keys); }

// Caches of 8 bits, each beside one of 16.
void bench_narrow_decode(const std::vector<DType>& types) {
  for (DType type : types) {
    bench_attention({.type = type, .keys = all(1, 131072)});
    bench_attention({.type = type, .keys = all(32, 1024)});
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

// Latent caches of 512 + 64 columns, decoded and prefilled by the heads of some models.
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

// Matrices of heads: queries to the space of the latent vectors, and values out of it.
void bench_head_matmuls() {
  const auto& table = ops::select_backend("cuda").table();
  ThreadPool pool(1, false);
  Arena arena{0};
  ops::Ctx ctx{table, pool, arena};
  for (const auto& [heads, n, k] : {std::tuple{16, 512, 128}, {16, 128, 512}, {128, 512, 128}, {128, 128, 512}}) {
    const int64_t outputs = heads * ops::stacked_outputs(n);
    const Random weights(&kBFloat16, outputs * k, 0.05f);
    const ops::Weight weight{.dtype = &kBFloat16, .n = outputs, .k = k, .data = weights.data()};
    for (const int64_t rows : {1, 4, 8, 12, 16, 24, 32, 64, 128, 512, 4096}) {
      const Random x(&kFloat32, rows * heads * k, 1.0f, 2);
      Buffer out(static_cast<size_t>(rows * heads * n) * sizeof(float), device_memory());
      const double s = seconds_per_call(8, [&](int) {
        ops::head_matmul(ctx, {.out = Tensor(out.data(), &kFloat32, {rows, int64_t{heads} * n}),
                               .x = Tensor(x.data(), &kFloat32, {rows, int64_t{heads} * k}),
                               .heads = heads,
                               .n = n,
                               .out_stride = n,
                               .x_stride = k,
                               .weight = &weight});
      });
      fmt::print("heads {:3} of {:3} x {:3}, {:4} rows: {:7.1f} us {:6.1f} TFLOP/s\n", heads, n, k, rows, s * 1e6,
                 2.0 * static_cast<double>(rows * heads) * n * k / s * 1e-12);
    }
  }
}

// Queries, keys and values from their product to attention's cache, in rows of `type`.
void bench_rotation(DType type, int64_t rows) {
  constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kBlock = 16;
  const int64_t queries = kHeads * kDim, keys = kKvHeads * kDim, blocks = (rows + kBlock - 1) / kBlock;
  const Random data(type, rows * (queries + 2 * keys)), angles(&kFloat32, rows * kDim, 0.1f);
  Buffer k(static_cast<size_t>(blocks * kBlock * keys) * 2, device_memory());
  Buffer v(k.size(), device_memory());
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  const Device on_device(order);
  const Tensor qkv(data.data(), type, {rows, queries + 2 * keys});
  const Shape cache{blocks, kKvHeads, kBlock, kDim};
  const ops::RopeStoreArgs args{.q = qkv.slice_columns(0, queries),
                                .k = qkv.slice_columns(queries, keys),
                                .v = qkv.slice_columns(queries + keys, keys),
                                .cos_sin = Tensor(angles.data(), &kFloat32, {rows, kDim}),
                                .k_cache = Tensor(k.data(), &kBFloat16, cache),
                                .v_cache = Tensor(v.data(), &kBFloat16, cache),
                                .positions = order,
                                .slots = order};
  const double s = seconds_per_call(10, [&](int) { rope_store(launch(), args, on_device.data(), on_device.data()); });
  const auto bytes = static_cast<double>(rows * (2 * (queries + keys) * type->block_bytes + 2 * keys * 2));
  fmt::print("rope_store of {:>8} {:5} rows: {:7.2f} us {:5.2f} TB/s\n", type->name, rows, s * 1e6, bytes / s * 1e-12);
}

void bench_rows(int64_t rows) {
  constexpr int64_t kHidden = 4096, kInner = 14336;
  const Random x(&kFloat32, rows * kHidden), gate_up(&kFloat32, rows * 2 * kInner), weight(&kFloat32, kHidden);
  Buffer memory(static_cast<size_t>(rows * kInner) * sizeof(float), device_memory());
  const Tensor hidden(x.data(), &kFloat32, {rows, kHidden}), to(memory.data(), &kFloat32, {rows, kHidden});
  const Tensor both(gate_up.data(), &kFloat32, {rows, 2 * kInner}), inner(memory.data(), &kFloat32, {rows, kInner});
  const auto report = [&](std::string_view name, double bytes, const std::function<void(int)>& body) {
    const double s = seconds_per_call(10, body);
    fmt::print("{:>10} {:5} rows: {:7.2f} us {:5.2f} TB/s\n", name, rows, s * 1e6, bytes / s * 1e-12);
  };
  const auto f32 = static_cast<double>(rows) * sizeof(float);
  report("rms_norm", f32 * 2 * kHidden,
         [&](int) { rms_norm(launch(), to, hidden, reinterpret_cast<const float*>(weight.data()), 1e-5f, 0.0f); });
  report("glu", f32 * 3 * kInner, [&](int) { glu(launch(), inner, both, ops::Activation::kSilu); });
  for (DType type : {&kBFloat16, &kFloat8E4M3}) {
    const double out = static_cast<double>(rows) * type->block_bytes;
    const Tensor normed = ops::rows_in(to, type), gated = ops::rows_in(inner, type);
    const Tensor halves(gate_up.data(), &kBFloat16, {rows, 2 * kInner});
    report(fmt::format("norm>{}", type->block_bytes), (f32 + out) * kHidden, [&](int) {
      rms_norm(launch(), normed, hidden, reinterpret_cast<const float*>(weight.data()), 1e-5f, 0.0f);
    });
    report(fmt::format("glu 2>{}", type->block_bytes), static_cast<double>(rows) * 4 * kInner + out * kInner,
           [&](int) { glu(launch(), gated, halves, ops::Activation::kSilu); });
  }
  report("add", f32 * 3 * kHidden, [&](int) { add(launch(), to, hidden, 1.0f); });
}

constexpr std::pair<int64_t, int64_t> kLayer8B[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};

void bench_plain_matmuls() {
  for (const auto& [n, k] : kLayer8B) bench_matmul(&kBFloat16, n, k, {1, 2, 4, 8, 16, 32, 64, 256, 2048, 8192});
  bench_matmul(&kBFloat16, 128256, 4096, {1, 8, 32, 64});
  bench_matmul(&kFloat16, 4096, 4096, {1, 16});
  bench_matmul(&kFloat32, 4096, 4096, {64, 2048});
}

void bench_quantized_matmuls(const std::vector<DType>& types, bool others) {
  for (DType type : types) {
    for (const auto& [n, k] : kLayer8B) bench_quantized(type, n, k, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048});
  }
  if (!others) return;
  for (DType type : {&quant::Q4_0::kType, &quant::Q8_0::kType, &quant::Q4_K::kType, &quant::Q5_K::kType,
                     &quant::Q6_K::kType, &quant::MXFP4::kType}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096}, {28672, 4096}}) {
      bench_quantized(type, n, k, {1, 8, 32, 128});
    }
  }
}

// 32 to 512 rows: where tiles take less time than the kernels of few rows and than unpacking for cuBLASLt.
void bench_tiles(const std::vector<DType>& types) {
  for (DType type : types) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096}, {14336, 4096}, {4096, 14336}}) {
      bench_quantized(type, n, k, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
    }
  }
}

void bench_all_experts() {
  const std::vector<int64_t> tokens = {4, 16, 32, 128, 256, 512, 1024, 2048, 8192};
  for (DType type : {&kBFloat16, &quant::Int4G128::kType, &quant::Fp8::kType}) {
    bench_experts(type, 128, 8, 1536, 2048, tokens);
    bench_experts(type, 128, 8, 2048, 768, {1024, 8192});
  }
  bench_experts(&kBFloat16, 8, 2, 14336, 4096, {16, 64, 256, 2048});
  bench_experts(&quant::MXFP4::kType, 32, 4, 5760, 2880, {64, 256, 1024, 8192});
  bench_experts(&quant::Q4_K::kType, 128, 8, 1536, 2048, {256, 8192});
}

struct StepShape {
  const char* name;
  int hidden, kv, inner, dim, layers, vocab;  // kv: of all heads together; vocab 0: without the head
};

// Decode steps of some layers of a model, recorded: as a program of one kernel and as launches of their own, with the
// share of the ceiling that reading the weights would take.
class Steps {
 public:
  Steps(const StepShape& shape, DType type, int rows, int keys) : shape_(shape), type_(type), rows_(rows), keys_(keys) {
    const auto [name, hidden, kv, inner, dim, layers, vocab] = shape;
    const auto matrix = [&](ops::Weight& w, DType of, int64_t n, int64_t k) {
      w = {.dtype = of, .n = n, .k = k};
      storage_.emplace_back(ops_.matmul.at(of).packed_bytes(n, k), device_memory());
      w.data = storage_.back().data();
      fill_at_random(storage_.back());
      bytes_ += static_cast<double>(storage_.back().size());
    };
    for (int i = 0; i < layers; ++i) {
      Layer& l = layers_.emplace_back();
      matrix(l.qkv, type, hidden + 2 * kv, hidden), matrix(l.out, type, hidden, hidden);
      matrix(l.gate_up, type, 2 * inner, hidden), matrix(l.down, type, hidden, inner);
      for (Tensor* cache : {&l.k, &l.v}) *cache = make(&kBFloat16, {rows * blocks(), kv / dim, kBlock, dim});
    }
    if (vocab > 0) matrix(head_, &kBFloat16, vocab, hidden);
    bytes_ += double(layers) * rows * keys * kv * 2 * 2;
    std::vector<int32_t> lengths(rows, keys), starts(rows + 1), positions(rows, keys - 1), slots(rows), table,
        sampled(rows);
    std::iota(sampled.begin(), sampled.end(), 0);
    for (int r = 0; r < rows; ++r) {
      starts[r + 1] = r + 1;
      slots[r] = (r * blocks() + (keys - 1) / kBlock) * kBlock + (keys - 1) % kBlock;
      for (int b = 0; b < blocks(); ++b) table.push_back(r * blocks() + b);
    }
    host_ = {lengths, starts, positions, slots, table, sampled};
    for (const std::vector<int32_t>& values : host_) {
      device_.emplace_back(values);
      indices_.emplace_back(std::span<const int32_t>(values), device_.back().data());
    }
  }

  void report() {
    for (const char* programs : {"1", "0"}) {
      setenv("SLUICE_CUDA_PROGRAMS", programs, 1);
      forward();
      const auto recording = record([&] { forward(); });
      const double s = seconds([&] { recording->launch(); });
      fmt::print("{} {:>10} {} x {:5} keys, {:2} layers{} {}: {:8.1f} us, {:7.2f} a layer, {:.2f} TB/s\n", shape_.name,
                 type_->name, rows_, keys_, shape_.layers, shape_.vocab > 0 ? " and head" : "",
                 *programs == '1' ? "program " : "launches", s * 1e6, s * 1e6 / shape_.layers, bytes_ / s * 1e-12);
    }
    unsetenv("SLUICE_CUDA_PROGRAMS");
  }

 private:
  static constexpr int kBlock = 16;
  struct Layer {
    ops::Weight qkv, out, gate_up, down;
    Tensor k, v;
  };

  int blocks() const { return (keys_ + kBlock - 1) / kBlock; }
  // Zeros would be read and multiplied with less power, at a higher clock than a model's weights. Of all types these
  // are numbers: the bytes of bf16 of about 0.01, in either order.
  void fill_at_random(Buffer& weights) {
    static const std::vector<uint32_t> numbers = [] {
      std::mt19937 random(11);
      std::vector<uint32_t> words(size_t{1} << 22);
      for (uint32_t& word : words) word = (random() & 0x80ff80ff) | 0x3c003c00 | (random() & 0x7f007f);
      return words;
    }();
    const size_t all = numbers.size() * sizeof(uint32_t);
    for (size_t at = 0; at < weights.size(); at += all) {
      device_memory().copy(weights.data() + at, numbers.data(), std::min(all, weights.size() - at));
    }
  }
  Tensor make(DType type, Shape shape) {
    memory_.emplace_back(static_cast<size_t>(shape.elements()) * type->block_bytes, device_memory());
    return Tensor(memory_.back().data(), type, shape);
  }

  void forward() {
    for (const Layer& l : layers_) {
      ops::rms_norm(ctx_, normed_, x_, norm_.f32(), 1e-5f);
      ops::matmul(ctx_, {.out = qkv_, .x = normed_, .weight = &l.qkv});
      const Tensor q = qkv_.slice_columns(0, shape_.hidden);
      ops::rope_store(ctx_, {.q = q,
                             .k = qkv_.slice_columns(shape_.hidden, shape_.kv),
                             .v = qkv_.slice_columns(shape_.hidden + shape_.kv, shape_.kv),
                             .cos_sin = rotations_,
                             .k_cache = l.k,
                             .v_cache = l.v,
                             .positions = indices_[2],
                             .slots = indices_[3]});
      ops::attention(ctx_, {.out = mixed_,
                            .q = q,
                            .k_cache = l.k,
                            .v_cache = l.v,
                            .query_start = indices_[1],
                            .kv_len = indices_[0],
                            .block_table = indices_[4],
                            .block_table_stride = blocks(),
                            .heads = shape_.hidden / shape_.dim,
                            .scale = 0.1f});
      ops::matmul(ctx_, {.out = x_, .x = mixed_, .weight = &l.out, .accumulate = true});
      ops::rms_norm(ctx_, normed_, x_, norm_.f32(), 1e-5f);
      ops::matmul(ctx_, {.out = gate_up_, .x = normed_, .weight = &l.gate_up});
      ops::glu(ctx_, gated_, gate_up_, ops::Activation::kSilu);
      ops::matmul(ctx_, {.out = x_, .x = gated_, .weight = &l.down, .accumulate = true});
    }
    if (shape_.vocab == 0) return;
    ops::gather_rows(ctx_, last_, x_, indices_[5]);
    ops::rms_norm(ctx_, normed_, last_, norm_.f32(), 1e-5f);
    ops::matmul(ctx_, {.out = logits_, .x = normed_, .weight = &head_});
  }

  const StepShape shape_;
  const DType type_;
  const int rows_, keys_;
  const ops::Ops& ops_ = ops::select_backend("cuda").table();
  ThreadPool pool_{1, false};
  Arena arena_{0};
  ops::Ctx ctx_{ops_, pool_, arena_};
  double bytes_ = 0;
  std::vector<Buffer> memory_;
  std::vector<Layer> layers_;
  std::vector<Buffer> storage_;
  ops::Weight head_;
  std::vector<Device> device_;
  std::vector<std::vector<int32_t>> host_;
  std::vector<ops::Indices> indices_;
  Tensor floats(int columns) { return make(&kFloat32, {rows_, columns}); }
  const Tensor x_ = floats(shape_.hidden), normed_ = floats(shape_.hidden), last_ = floats(shape_.hidden);
  const Tensor norm_ = make(&kFloat32, {1, shape_.hidden}), rotations_ = make(&kFloat32, {keys_, shape_.dim});
  const Tensor qkv_ = floats(shape_.hidden + 2 * shape_.kv), mixed_ = floats(shape_.hidden);
  const Tensor gate_up_ = floats(2 * shape_.inner), gated_ = floats(shape_.inner);
  const Tensor logits_ = floats(std::max(shape_.vocab, 1));
};

void bench_steps() {
  const auto of_8b = [](int layers, int vocab) { return StepShape{"8B", 4096, 1024, 14336, 128, layers, vocab}; };
  for (const DType type : {&kBFloat16, &quant::Fp8::kType, &quant::Int4G128::kType}) {
    for (const auto& [rows, keys] : {std::pair{1, 130}, {1, 4000}, {4, 1000}, {32, 1000}}) {
      Steps(of_8b(6, 0), type, rows, keys).report();
    }
  }
}

// Of whole models, beside some layers of them: what a step takes beside its layers.
void bench_whole_steps() {
  for (const DType type : {&kBFloat16, &quant::Fp8::kType, &quant::Int4G128::kType}) {
    for (const auto& [layers, vocab] : {std::pair{8, 0}, {32, 0}, {32, 128256}}) {
      Steps({"8B", 4096, 1024, 14336, 128, layers, vocab}, type, 1, 130).report();
    }
  }
  for (const auto& [layers, vocab] : {std::pair{4, 0}, {16, 0}, {16, 128256}}) {
    Steps({"1B", 2048, 512, 8192, 64, layers, vocab}, &kBFloat16, 1, 130).report();
  }
}

// Without arguments everything; else the parts that are named: plain, quantized (fp8: of these only 8-bit floats;
// fp4: only NVFP4 and NF4), attention (attention8: over caches of 8 bits, decode8,
// prefill8: parts of that for 8-bit floats; latent: over latent caches), heads, steps (whole: of whole models), rows;
// tiles, experts: many rows.
int run(const std::vector<std::string_view>& parts) {
  if (!device_usable()) {
    fmt::print("no CUDA device that these kernels were compiled for\n");
    return 1;
  }
  const auto wanted = [&](std::string_view part) {
    return parts.empty() || std::ranges::find(parts, part) != parts.end();
  };
  DeviceContext::get().reserve_workspace(size_t{1} << 30);
  if (parts.empty()) bench_copy();
  if (wanted("plain")) bench_plain_matmuls();
  if (wanted("quantized")) bench_quantized_matmuls({&quant::Int4G128::kType, &quant::Fp8::kType}, true);
  if (!parts.empty() && wanted("fp8")) bench_quantized_matmuls({&quant::Fp8::kType}, false);
  if (!parts.empty() && wanted("fp4")) bench_quantized_matmuls({&quant::ScaledNVFP4::kType, &quant::NF4::kType}, false);
  if (wanted("tiles")) bench_tiles({&quant::Int4G128::kType, &quant::Q4_K::kType, &quant::Fp8::kType});
  if (wanted("experts")) bench_all_experts();
  if (wanted("attention")) bench_attentions();
  const std::vector<DType> caches{&kBFloat16, &kFloat8E4M3, &kInt8};
  if (wanted("attention8")) bench_narrow_decode(caches), bench_narrow_prefill(caches);
  if (!parts.empty() && wanted("decode8")) bench_narrow_decode({&kFloat8E4M3, &kBFloat16, &kInt8});
  if (!parts.empty() && wanted("prefill8")) bench_narrow_prefill({&kFloat8E4M3});
  if (wanted("latent")) bench_latent();
  if (wanted("heads")) bench_head_matmuls();
  if (wanted("steps")) bench_steps();
  if (!parts.empty() && wanted("steps32")) Steps({"8B", 4096, 1024, 14336, 128, 6, 0}, &kBFloat16, 32, 1150).report();
  if (wanted("whole")) bench_whole_steps();
  for (const int64_t rows : {1, 32, 256, 8192}) {
    if (!wanted("rows")) continue;
    bench_rows(rows);
    for (DType type : {&kFloat32, &kBFloat16}) bench_rotation(type, rows);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::cuda

int main(int count, char** arguments) { return sluice::cuda::run({arguments + 1, arguments + count}); }
