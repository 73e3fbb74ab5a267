// Benchmarks matmuls: of plain and quantized weights, of experts, of heads.
#include <fmt/core.h>

#include <cmath>
#include <string>
#include <string_view>
#include <tuple>

#include "base/thread_pool.h"
#include "cuda/parts.h"
#include "cuda/timing.h"
#include "kernels/cuda/matmul/chain.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/matmul/rows.h"

namespace sluice::cuda {
namespace {

// The matmul by a whole matrix.
MatmulProblem matmul_of(DType type, const std::byte* weight, const Tensor& x, const Tensor& out) {
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
    const auto matmul = [&](int i, const Tensor& to) {
      return matmul_of(type, weights.data() + i % copies * weight_bytes, Tensor(x.data(), &kFloat32, {rows, k}), to);
    };
    const auto report = [&](std::string_view kernel, double s) {
      std::string error;
      if (rows <= 256) {
        matmul_exact(launch(), matmul(std::max(copies, 4) - 1, exact));
        error = fmt::format("  error {:.1e}", relative_error(out, exact));
      }
      const double bytes = static_cast<double>(weight_bytes) + rows * (n + k) * 4.0;
      fmt::print("{:>8} [{:6}, {:5}] {:5} rows {:7}: {:9.2f} us {:6.2f} TB/s {:6.1f} TFLOP/s{}\n", type->name, n, k,
                 rows, kernel, s * 1e6, bytes / s * 1e-12, 2.0 * rows * n * k / s * 1e-12, error);
    };
    const int calls = rows > 1000 ? 2 : std::max(copies, 4);
    if (rows <= kMostStreamedRows && type != &kFloat32) {
      report("stream", seconds_per_call(calls, [&](int i) { matmul_streamed(launch(), matmul(i, out)); }));
    }
    const auto report_if_done = [&](std::string_view kernel, const auto& multiply) {
      bool done = true;
      const double s = seconds_per_call(calls, [&](int i) { done &= multiply(launch(), matmul(i, out)); });
      if (done) report(kernel, s);
    };
    if (type != &kFloat32) report_if_done("rows", matmul_plain_rows), report_if_done("chains", matmul_by_chains);
    report_if_done("cublas", matmul_dense);
  }
}

// Many rows of bf16: results in bf16, or added to fp32.
void bench_many_rows(int64_t n, int64_t k, const std::vector<int64_t>& row_counts) {
  const int64_t weight_bytes = n * k * 2;
  const int copies = static_cast<int>(std::max<int64_t>(1, static_cast<int64_t>(kRotated) / weight_bytes));
  const Random weights(&kBFloat16, copies * n * k, 0.02f);
  for (const int64_t rows : row_counts) {
    const Random x(&kBFloat16, rows * k, 1.0f, 2);
    Buffer memory(static_cast<size_t>(rows * n) * sizeof(float), device_memory());
    std::string line = fmt::format("bfloat16 [{:6}, {:5}] {:5} rows", n, k, rows);
    for (const bool added : {false, true}) {
      const Tensor out(memory.data(), added ? &kFloat32 : &kBFloat16, {rows, n});
      const auto report = [&](std::string_view kernel, const auto& multiply) {
        const double s = seconds_per_call(std::max(copies, 4), [&](int i) {
          MatmulProblem p = matmul_of(&kBFloat16, weights.data() + i % copies * weight_bytes,
                                      Tensor(x.data(), &kBFloat16, {rows, k}), out);
          p.accumulate = added;
          CHECK(multiply(launch(), p));
        });
        line += fmt::format("  {} {:8.1f} us {:5.1f} TFLOP/s", kernel, s * 1e6, 2.0 * rows * n * k / s * 1e-12);
      };
      line += added ? "  fp32 +=" : "  bf16";
      report("chains", matmul_by_chains), report("cublas", matmul_dense);
    }
    fmt::print("{}\n", line);
  }
}

// Gated units of many rows in one kernel, and as a matmul and its gates.
void bench_gated_matmuls(int64_t inner, int64_t k, const std::vector<int64_t>& row_counts) {
  const int64_t weight_bytes = 2 * inner * k * 2;
  const int copies = static_cast<int>(std::max<int64_t>(1, static_cast<int64_t>(kRotated) / weight_bytes));
  const Random weights(&kBFloat16, copies * 2 * inner * k, 0.02f);
  for (const int64_t rows : row_counts) {
    const Random x(&kBFloat16, rows * k, 1.0f, 2);
    Buffer memory(static_cast<size_t>(rows * inner) * 6, device_memory());
    const Tensor gate_up(memory.data(), &kBFloat16, {rows, 2 * inner});
    const Tensor out(memory.data() + rows * inner * 4, &kBFloat16, {rows, inner});
    const auto problem = [&](int i, const Tensor& to) {
      MatmulProblem p = matmul_of(&kBFloat16, weights.data() + i % copies * weight_bytes,
                                  Tensor(x.data(), &kBFloat16, {rows, k}), to);
      p.n = 2 * inner;
      return p;
    };
    const double fused = seconds_per_call(copies, [&](int i) { CHECK(matmul_gated(launch(), problem(i, out))); });
    const double apart = seconds_per_call(copies, [&](int i) {
      CHECK(matmul_dense(launch(), problem(i, gate_up)));
      glu(launch(), out, gate_up, ops::Activation::kSilu);
    });
    fmt::print("bfloat16 gated [2 x {}, {}] {:5} rows: fused {:8.1f} us {:5.1f} TFLOP/s  apart {:8.1f} us\n", inner, k,
               rows, fused * 1e6, 4.0 * rows * inner * k / fused * 1e-12, apart * 1e6);
  }
}

// NVFP4 has no encoder, so its blocks are random codes with scales of about one and a scale of the tensor.
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

// Random weights of a quantized type: `copies` of the same matrix.
Buffer quantized_weights(DType type, int64_t n, int64_t k, int copies) {
  const PanelKernels& kernels = *panel_kernels(type);
  const size_t bytes = kernels.packed_bytes(n, k);
  Buffer weights(static_cast<size_t>(copies) * bytes, device_memory());
  constexpr int64_t kRows = 64;  // random rows, repeated
  std::vector<std::byte> blocks = random_blocks(type, kRows * k);
  const ops::Weight into{.dtype = type, .n = n, .k = k, .data = weights.data()};
  for (int64_t row = 0; row < n; row += kRows) {
    kernels.pack(bench_queue(), into, row, Tensor(blocks.data(), type, {std::min(kRows, n - row), k}));
  }
  for (int i = 1; i < copies; ++i) {
    device_memory().copy(weights.data() + static_cast<size_t>(i) * bytes, weights.data(), bytes);
  }
  return weights;
}

// Quantized weights. Errors are relative to the same weights unpacked, in fp32.
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
    const auto matmul = [&](int i, const Tensor& to) {
      return matmul_of(type, weights.data() + i % copies * bytes, Tensor(x.data(), &kFloat32, {rows, k}), to);
    };
    const int calls = rows > 1000 ? 2 : std::max(copies, 4);
    matmul_quantized(launch(), matmul(0, exact), Arithmetic::kExact);
    const auto report = [&](std::string_view kernel, double s) {
      const double moved = static_cast<double>(bytes) + static_cast<double>(rows * (n + k)) * 4.0;
      fmt::print("{:>9} [{:6}, {:5}] {:5} rows {:7}: {:9.2f} us {:6.2f} TB/s {:6.1f} TFLOP/s  error {:.1e}\n",
                 type->name, n, k, rows, kernel, s * 1e6, moved / s * 1e-12,
                 2.0 * static_cast<double>(rows * n * k) / s * 1e-12, relative_error(out, exact));
    };
    if (rows <= 2 * kMostStreamedRows) {
      report("stream", seconds_per_call(calls, [&](int i) { kernels.multiply(launch(), matmul(i, out)); }));
    }
    bool done = true;
    const double t = seconds_per_call(calls, [&](int i) { done &= kernels.matmul_by_tiles(launch(), matmul(i, out)); });
    if (done) report("tiles", t);
    if (rows < 8) continue;
    done = true;
    const double s = seconds_per_call(calls, [&](int i) { done &= matmul_by_unpacking(launch(), matmul(i, out)); });
    if (done) report("unpack", s);
    if (type != &quant::Fp8::kType) continue;
    // Includes rounding the inputs: the kernel that is chosen, cuBLASLt, and scales per group.
    using enum ops::InputRounding;
    for (const auto& [name, rounding, capability] :
         {std::tuple{"fp8", kFp8PerRow, 90}, {"fp8lib", kFp8PerRow, 89}, {"fp8/128", kFp8PerGroup, 90}}) {
      Launch l = launch();
      l.compute_capability = capability;
      const double seconds = seconds_per_call(calls, [&](int i) {
        MatmulProblem p = matmul(i, out);
        p.rounding = rounding;
        done &= matmul_fp8(l, p);
      });
      if (done) report(name, seconds);
    }
    if (rows > 256) continue;
    const Buffer scales(static_cast<size_t>(rows) * sizeof(float), device_memory());
    const Buffer eighths(static_cast<size_t>(rows * k), device_memory());
    round_to_fp8(launch(), eighths.data(), reinterpret_cast<float*>(scales.data()),
                 Tensor(x.data(), &kFloat32, {rows, k}), false);
    report("fp8own", seconds_per_call(calls, [&](int i) {
             matmul_fp8_rows(launch(), matmul(i, out), eighths.data(), reinterpret_cast<float*>(scales.data()));
           }));
  }
}

// Matmuls of `experts` experts, of which every token takes `top_k`: by the kernel for few rows, by tiles, and where
// they take the type, by the kernels of matmul/rows.h. Calls walk through matrices that no cache holds.
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
    const DeviceIndices starts_on(starts);
    const Random x(&kFloat32, rows * k, 1.0f, 2);
    const Buffer memory(static_cast<size_t>(2 * rows * n) * sizeof(float), device_memory());
    const Tensor out(memory.data(), &kFloat32, {rows, n});
    const Tensor other(memory.data() + rows * n * sizeof(float), &kFloat32, {rows, n});
    const auto matmul = [&](int i, const Tensor& to) {
      MatmulProblem p = matmul_of(type, weights + static_cast<size_t>(i % copies) * bytes,
                                  Tensor(x.data(), &kFloat32, {rows, k}), to);
      p.matrices = experts, p.weight_rows = ops::stacked_outputs(n), p.starts = starts_on.data();
      return p;
    };
    const int calls = rows > 4096 ? 2 : std::max(copies, 4);
    const double few = seconds_per_call(calls, [&](int i) {
      const MatmulProblem p = matmul(i, other);
      panels != nullptr ? panels->multiply(launch(), p) : matmul_streamed(launch(), p);
    });
    bool done = true;
    const double many = seconds_per_call(calls, [&](int i) {
      const MatmulProblem p = matmul(i, out);
      done &= panels != nullptr ? panels->matmul_by_tiles(launch(), p) : matmul_plain_by_tiles(launch(), p);
    });
    const double apart = !done ? INFINITY : rows <= 8192 ? relative_error(out, other) : 0.0;
    const double moved = static_cast<double>(bytes) * used / experts, flops = 2.0 * static_cast<double>(rows * n * k);
    std::string by_rows;  // matmul/rows.cu
    if (type == &quant::Fp8::kType || panels == nullptr) {
      bool taken = true;
      const double s = seconds_per_call(calls, [&](int i) {
        MatmulProblem p = matmul(i, out);
        if (panels == nullptr) {
          taken &= matmul_plain_rows(launch(), p);
        } else {
          p.rounding = ops::InputRounding::kFp8PerRow;
          taken &= matmul_fp8(launch(), p);
        }
      });
      if (taken) {
        by_rows = fmt::format("  rows {:9.1f} us {:6.1f} TFLOP/s {:5.2f} TB/s apart {:.1e}", s * 1e6, flops / s * 1e-12,
                              moved / s * 1e-12, rows <= 8192 ? relative_error(out, other) : 0.0);
      }
    }
    fmt::print(
        "{:>9} {:3} x [{:5}, {:5}] {:5} tokens, {:6} rows: few {:9.1f} us {:6.1f} TFLOP/s {:5.2f} TB/s of weights  "
        "tiles {:9.1f} us {:6.1f} TFLOP/s {:5.2f} TB/s of weights  apart {:.1e}{}\n",
        type->name, experts, n, k, tokens, rows, few * 1e6, flops / few * 1e-12, moved / few * 1e-12, many * 1e6,
        flops / many * 1e-12, moved / many * 1e-12, apart, by_rows);
  }
}

constexpr std::pair<int64_t, int64_t> kLayer8B[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};

}  // namespace

void bench_matmuls_of_many_rows() {
  for (const auto& [n, k] : kLayer8B) bench_many_rows(n, k, {128, 256, 384, 512, 1024, 2048, 8000, 8192});
  bench_gated_matmuls(14336, 4096, {128, 256, 384, 512, 1024, 2048, 8192});
}

void bench_plain_matmuls() {
  for (const auto& [n, k] : kLayer8B)
    bench_matmul(&kBFloat16, n, k, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192});
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

void bench_tiles(const std::vector<DType>& types) {
  for (DType type : types) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096}, {14336, 4096}, {4096, 14336}}) {
      bench_quantized(type, n, k, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
    }
  }
}

void bench_fp4_experts() {
  bench_experts(&quant::MXFP4::kType, 32, 4, 5760, 2880, {1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 8192});
  bench_experts(&quant::MXFP4::kType, 32, 4, 2880, 2880, {1, 32});
}

void bench_experts_of(DType type) {
  bench_experts(type, 128, 8, 1536, 2048, {1, 4, 16, 32, 128, 256, 512, 1024, 2048, 8192});
  bench_experts(type, 128, 8, 2048, 768, {1, 2, 8, 1024, 8192});
}

void bench_all_experts() {
  for (DType type : {&kBFloat16, &quant::Int4G128::kType, &quant::Fp8::kType}) bench_experts_of(type);
  bench_experts(&kBFloat16, 8, 2, 14336, 4096, {16, 64, 256, 2048});
  bench_fp4_experts();
  bench_experts(&quant::Q4_K::kType, 128, 8, 1536, 2048, {256, 8192});
}

void bench_head_matmuls() {
  Arena arena{0};
  ops::Ctx ctx(bench_queue(), arena);
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

}  // namespace sluice::cuda
