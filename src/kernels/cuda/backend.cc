// Fits the launches to the op table and registers two backends: "cuda", whose products and attention run on the tensor
// cores and choose kernels by the number of rows, and "cuda-exact" in fp32, where a row's bits depend on its own data.
#include <algorithm>
#include <vector>

#include "base/registry.h"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/matmul/rows.h"
#include "kernels/cuda/upload.h"
#include "ops/sample.h"

namespace sluice::cuda {
namespace {

// Rows from which plain weights have the kernels of more rows (matmul_rows.cu, else cuBLASLt) instead of the streaming
// ones: those from which they took less time on an H200, by more than 3 %, for weights of 16 bits of more elements than
// kLargeMatrix, which only cuBLASLt has on other devices, and for all others (docs/performance-cuda-kernels.md).
constexpr int64_t kDenseRowsLarge = 5, kLibraryRowsLarge = 8, kDenseRowsSmall = 32, kLargeMatrix = int64_t{4096} * 4096;

// Likewise for matrices of heads, which cuBLASLt multiplies as a batch.
constexpr int64_t kDenseRowsOfHeads = 16;

int64_t dense_rows(DType type, int64_t elements) {
  if (type == &kFloat32) return kMostStreamedRows + 1;
  if (elements <= kLargeMatrix) return kDenseRowsSmall;
  return DeviceContext::get().launch().compute_capability == 90 ? kDenseRowsLarge : kLibraryRowsLarge;
}

// For an op by itself.
const Launch& launch() {
  if (DecodeKernelBuilder* builder = DeviceContext::get().builder()) builder->flush();
  return DeviceContext::get().launch();
}
const int32_t* on_device(const Indices& indices) { return DeviceContext::get().on_device(indices); }

// Calls a launch and ends the op.
template <auto Function, class... Args>
void op(ThreadPool&, Args... args) {
  Function(launch(), args...);
  DeviceContext::get().finish_op();
}

template <class F>
void finish(F&& body) {
  body();
  DeviceContext::get().finish_op();
}

// An op that a program may take: take(program) tells whether it did. Otherwise, and when the program has no use for
// it, body() launches it.
template <class Take, class F>
void take_or_launch(Take&& take, F body) {
  DecodeKernelBuilder* builder = DeviceContext::get().builder();
  if (builder != nullptr && take(*builder, body)) return;
  if (builder != nullptr) builder->flush();
  finish(body);
}

void embed_op(ThreadPool&, Tensor out, const Tensor& table, Indices ids) {
  const int32_t* at = on_device(ids);
  take_or_launch([&](DecodeKernelBuilder& s, auto& fallback) { return s.embed(out, table, at, fallback); },
                 [=] { embed(launch(), out, table, at); });
}

void rms_norm_op(ThreadPool&, Tensor out, Tensor x, const float* weight, float eps, float offset) {
  take_or_launch(
      [&](DecodeKernelBuilder& s, auto& fallback) { return s.rms_norm(out, x, weight, eps, offset, fallback); },
      [=] { rms_norm(launch(), out, x, weight, eps, offset); });
}

void glu_op(ThreadPool&, Tensor out, Tensor gate_up, ops::Activation activation) {
  take_or_launch([&](DecodeKernelBuilder& s, auto& fallback) { return s.glu(out, gate_up, activation, fallback); },
                 [=] { glu(launch(), out, gate_up, activation); });
}

void gather_rows_op(ThreadPool&, Tensor out, Tensor x, Indices rows) {
  const int32_t* at = on_device(rows);
  take_or_launch([&](DecodeKernelBuilder& s, auto& fallback) { return s.embed(out, x, at, fallback); },
                 [=] { gather_rows(launch(), out, x, at); });
}

void copy_rows_op(ThreadPool&, Tensor x, Indices pairs) {
  finish([&] { copy_rows(launch(), x, on_device(pairs), pairs.size() / 2); });
}

void rope_store_op(ThreadPool& pool, const ops::RopeStoreArgs& given) {
  ops::RopeStoreArgs args = given;
  // Programs know norms and rotations by themselves.
  if (DeviceContext::get().builder() != nullptr && args.q.rows() <= kMostDecodeKernelRows) {
    each_head_norm(args, [&](const Tensor& x, const ops::HeadNorm& norm) {
      rms_norm_op(pool, x, x, norm.weight, norm.eps, 0.0f);
    });
    args.q_norm = args.k_norm = {};
  }
  const int32_t *positions = on_device(args.positions), *slots = on_device(args.slots);
  take_or_launch([&](DecodeKernelBuilder& s, auto& fallback) { return s.rope_store(args, positions, slots, fallback); },
                 [=] { rope_store(launch(), args, positions, slots); });
}

void latent_store_op(ThreadPool&, const ops::LatentStoreArgs& args) {
  finish([&] { latent_store(launch(), args, on_device(args.positions), on_device(args.slots)); });
}

template <Arithmetic arithmetic>
void attention_op(ThreadPool&, const ops::AttentionArgs& args) {
  AttentionIndices at{.query_start = on_device(args.query_start),
                      .kv_len = on_device(args.kv_len),
                      .block_table = on_device(args.block_table),
                      .sequences = static_cast<int>(args.kv_len.size())};
  const int group = args.heads / static_cast<int>(args.k_cache.shape[1]);
  for (size_t s = 0; s < args.kv_len.size(); ++s) {
    at.count(args.query_start[s + 1] - args.query_start[s], args.kv_len[s], group);
  }
  const bool tensor = arithmetic == Arithmetic::kTensor;
  take_or_launch([&](DecodeKernelBuilder& s, auto& fallback) { return tensor && s.attention(args, at, fallback); },
                 [=] {
                   if (!tensor || !attention_tensor(launch(), args, at)) attention_exact(launch(), args, at);
                 });
}

void feed_sampled_op(ThreadPool&, const ops::FeedSampledArgs& args) {
  finish([&] { feed_sampled(launch(), args, on_device(args.from)); });
}

void pooling_op(ThreadPool&, const ops::PoolingArgs& args) {
  finish([&] { pooling(launch(), args, on_device(args.query_start)); });
}

SequenceIndices indices_of(const ops::Sequences& s) {
  return {on_device(s.query_start), on_device(s.kv_len), on_device(s.slots), static_cast<int>(s.kv_len.size())};
}

template <auto Function, class Args>
void recurrent_op(ThreadPool&, const Args& args) {
  finish([&] { Function(launch(), args, indices_of(args.sequences)); });
}

template <Arithmetic arithmetic>
void matmul_by(const MatmulProblem& p) {
  if (matmul_quantized(launch(), p, arithmetic)) return;
  const bool tensor = arithmetic == Arithmetic::kTensor;
  if (tensor && p.matrices == 1 && p.x.rows() >= dense_rows(p.type, p.n * p.k)) {
    if (p.type != &kFloat32 && matmul_plain_rows(launch(), p)) return;
    if (matmul_dense(launch(), p)) return;
  }
  const bool heads = tensor && p.matrices > 1 && p.starts == nullptr && p.type != &kFloat32;
  if (heads && p.x.rows() >= kDenseRowsOfHeads && matmul_dense_heads(launch(), p)) return;
  const bool tiles = tensor && p.starts != nullptr && p.x.rows() >= kTiledExpertRows * p.matrices;
  if (tiles && matmul_plain_by_tiles(launch(), p)) return;
  if (tensor && p.type != &kFloat32) return matmul_streamed(launch(), p);
  matmul_exact(launch(), p);
}

template <Arithmetic arithmetic>
void matmul_op(ThreadPool&, const ops::MatmulArgs& args) {
  const MatmulProblem p{.out = args.out,
                        .x = args.x,
                        .type = args.weight->dtype,
                        .weight = args.weight->data,
                        .n = args.weight->n,
                        .k = args.weight->k,
                        .bias = args.bias,
                        .accumulate = args.accumulate,
                        .rounding = args.weight->inputs};
  take_or_launch([&](DecodeKernelBuilder& s,
                     auto& fallback) { return arithmetic == Arithmetic::kTensor && s.matmul(p, fallback); },
                 [=] { matmul_by<arithmetic>(p); });
}

// What norms and gates write instead of fp32 where cuBLASLt is next, see ops::input_type.
DType input_type(const ops::Weight& weight, int64_t rows) {
  if (DeviceContext::get().builder() != nullptr && rows <= kMostDecodeKernelRows)
    return &kFloat32;  // what programs pass on
  const bool fp8 = weight.dtype == &quant::Fp8::kType;
  const bool rounds =
      fp8 ? weight.inputs == ops::InputRounding::kFp8PerRow : rows >= dense_rows(weight.dtype, weight.n * weight.k);
  const DType type = fp8 ? &kFloat8E4M3 : weight.dtype;
  return rounds && dense_possible(weight, rows, type, &kFloat32) ? type : &kFloat32;
}

DType output_type(const ops::Weight& weight, int64_t rows) {
  if (weight.dtype != &kBFloat16 && weight.dtype != &quant::Fp8::kType) return &kFloat32;
  const DType input = input_type(weight, rows);
  return input != &kFloat32 && dense_possible(weight, rows, input, &kBFloat16) ? &kBFloat16 : &kFloat32;
}

template <Arithmetic arithmetic>
void expert_matmul_op(ThreadPool&, const ops::MatmulKernels&, const ops::ExpertMatmulArgs& args) {
  const int64_t n = args.out.shape[1];
  const bool gathers = args.rows.data != nullptr;
  Tensor x = args.x;
  x.shape = Shape{args.out.rows(), args.weight->k};
  finish([&] {
    matmul_by<arithmetic>({.out = args.out,
                           .x = x,
                           .type = args.weight->dtype,
                           .weight = args.weight->data,
                           .n = n,
                           .k = args.weight->k,
                           .bias = args.bias,
                           .matrices = static_cast<int>(args.starts.shape.elements()) - 1,
                           .weight_rows = ops::stacked_outputs(n),
                           .bias_step = n,
                           .starts = args.starts.as<const int32_t>(),
                           .x_rows = gathers ? args.rows.as<const int32_t>() : nullptr,
                           .rounding = args.weight->inputs});
  });
}

template <Arithmetic arithmetic>
void head_matmul_op(ThreadPool&, const ops::MatmulKernels&, const ops::HeadMatmulArgs& args) {
  finish([&] {
    matmul_by<arithmetic>({.out = args.out,
                           .x = args.x,
                           .type = args.weight->dtype,
                           .weight = args.weight->data,
                           .n = args.n,
                           .k = args.weight->k,
                           .matrices = args.heads,
                           .weight_rows = ops::stacked_outputs(args.n),
                           .x_columns = args.x_stride,
                           .out_columns = args.out_stride});
  });
}

template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(n * padded_k(k)) * Type.block_bytes;
}

// Rows as they are stored, or converted. Padding stays zero.
template <const TypeInfo& Type>
void pack(ThreadPool& pool, const ops::Weight& into, int64_t row, const Tensor& from) {
  CHECK(from.shape.rank() == 2 && from.shape[1] == into.k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, into.k);
  const auto columns = static_cast<size_t>(into.k), row_bytes = columns * Type.block_bytes;
  const size_t pitch = packed_bytes<Type>(1, into.k);
  upload_rows(
      pool, into.data + static_cast<size_t>(row) * pitch, pitch, row_bytes, from.rows(), [&](int64_t i, std::byte* to) {
        const std::byte* source = from.data + i * from.row_stride / from.dtype->block_size * from.dtype->block_bytes;
        if (from.dtype == &Type) {
          std::copy_n(source, row_bytes, to);
          return;
        }
        std::vector<float> values(columns);
        to_float(from.dtype, source, values.data(), columns);
        from_float(&Type, values.data(), to, columns);
      });
}

template <Arithmetic arithmetic, const TypeInfo& Type>
constexpr ops::MatmulKernels kMatmul{
    .packed_bytes = packed_bytes<Type>, .pack = pack<Type>, .matmul = matmul_op<arithmetic>};

// Where inputs are rounded anyway.
void add_rounded_types(std::map<DType, ops::MatmulKernels>& kernels) {
  for (DType type : {&kBFloat16, &kFloat16, &quant::Fp8::kType}) {
    kernels.at(type).input_type = input_type, kernels.at(type).output_type = output_type;
  }
}

template <Arithmetic arithmetic>
std::map<DType, ops::MatmulKernels> matmul_kernels() {
  std::map<DType, ops::MatmulKernels> kernels = {{&kFloat32, kMatmul<arithmetic, kFloat32>},
                                                 {&kBFloat16, kMatmul<arithmetic, kBFloat16>},
                                                 {&kFloat16, kMatmul<arithmetic, kFloat16>}};
  for (DType type : Registry<TypeInfo>::all()) {
    const PanelKernels* panels = panel_kernels(type);
    if (panels == nullptr) continue;
    kernels[type] = {.packed_bytes = panels->packed_bytes, .pack = panels->pack, .matmul = matmul_op<arithmetic>};
  }
  if constexpr (arithmetic == Arithmetic::kTensor) add_rounded_types(kernels);
  return kernels;
}

template <Arithmetic arithmetic>
const ops::Ops& table() {
  static const ops::Ops ops{.embed = embed_op,
                            .rms_norm = rms_norm_op,
                            .layer_norm = op<layer_norm, Tensor, Tensor, const float*, const float*, float>,
                            .match_rms = op<match_rms, Tensor, Tensor, float>,
                            .gaussian_top_k = op<gaussian_top_k, Tensor, float>,
                            .glu = glu_op,
                            .clamped_glu = op<clamped_glu, Tensor, Tensor, float, float>,
                            .unary = op<unary, Tensor, ops::Activation>,
                            .xielu = op<xielu, Tensor, const ops::Xielu&>,
                            .map = op<map, Tensor, ops::Map, float>,
                            .copy = op<copy, Tensor, Tensor>,
                            .add = op<add, Tensor, Tensor, float>,
                            .multiply = op<multiply, Tensor, Tensor, ops::Activation>,
                            .softplus = op<softplus, Tensor, const float*, float, float>,
                            .rope_store = rope_store_op,
                            .latent_store = latent_store_op,
                            .attention = attention_op<arithmetic>,
                            .causal_conv = recurrent_op<causal_conv, ops::CausalConvArgs>,
                            .selective_scan = recurrent_op<selective_scan, ops::SelectiveScanArgs>,
                            .head_scan = recurrent_op<head_scan, ops::HeadScanArgs>,
                            .delta_rule = recurrent_op<delta_rule, ops::DeltaRuleArgs>,
                            .gated_lru = recurrent_op<gated_lru, ops::GatedLruArgs>,
                            .gather_rows = gather_rows_op,
                            .copy_rows = copy_rows_op,
                            .sample = op<sample, const ops::SampleArgs&>,
                            .feed_sampled = feed_sampled_op,
                            .pooling = pooling_op,
                            .route = op<route, const ops::RouteArgs&>,
                            .group_by_expert = op<group_by_expert, const ops::GroupByExpertArgs&>,
                            .expert_matmul = expert_matmul_op<arithmetic>,
                            .head_matmul = head_matmul_op<arithmetic>,
                            .combine = op<combine, const ops::CombineArgs&>,
                            .gathers_rows = true,
                            .normalizes_heads = normalizes_heads,
                            .rounding_attention = arithmetic == Arithmetic::kTensor,
                            .matmul = matmul_kernels<arithmetic>()};
  return ops;
}

size_t workspace_bytes(const ops::StepLimits& most) {
  // Decode: a row of each sequence, its keys in chunks.
  const size_t attention =
      attention_workspace(most.sequences, most.attention_heads, most.attention_value_dim, most.length);
  return std::max(matmul_workspace(most.tokens, most.widest_matmul), attention);
}

void reserve_workspace(size_t bytes) { DeviceContext::get().reserve_workspace(bytes); }

constexpr ops::Backend backend(std::string_view name, int rank, const ops::Ops& (*table)(), bool rounds) {
  return {.name = name,
          .rank = rank,
          .usable = device_usable,
          .table = table,
          .memory = device_memory,
          .shared_memory = shared_memory,
          .pinned_memory = pinned_memory,
          .workspace_bytes = workspace_bytes,
          .reserve_workspace = reserve_workspace,
          .capture = capture,
          .rounds = rounds,
          .exact = "cuda-exact",
          .narrow_caches = {&kFloat8E4M3, &kFloat8E5M2, &kInt8}};
}

// The first choice where there is a device; the exact one only by name.
const ops::Backend tensor = backend("cuda", 100, table<Arithmetic::kTensor>, true);
const ops::Backend exact = backend("cuda-exact", -1, table<Arithmetic::kExact>, false);
const Registry<ops::Backend> registered[] = {Registry<ops::Backend>{tensor}, Registry<ops::Backend>{exact}};

}  // namespace
}  // namespace sluice::cuda
