// Times ops that read each row once: copies, norms, gates, rotations.
#include <fmt/core.h>

#include <numeric>
#include <string>
#include <string_view>

#include "cuda/parts.h"
#include "cuda/timing.h"

namespace sluice::cuda {

void bench_copy() {
  const size_t bytes = size_t{2} << 30;
  Buffer a(bytes, device_memory()), b(bytes, device_memory());
  const double s = seconds_per_call(1, [&](int) {
    check_cuda(cudaMemcpyAsync(a.data(), b.data(), bytes, cudaMemcpyDeviceToDevice, launch().stream), "copy");
  });
  fmt::print("copy of 2 GiB: {:.2f} TB/s read and written\n", 2 * static_cast<double>(bytes) / s * 1e-12);
}

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

}  // namespace sluice::cuda
