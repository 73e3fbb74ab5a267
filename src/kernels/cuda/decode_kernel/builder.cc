// Decides which ops become instructions of the persistent decode kernel, and which runs of them become one launch.
#include "kernels/cuda/decode_kernel/builder.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numbers>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/cuda/attention/cache_maps.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/decode_kernel/dependencies.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {

namespace persistent {
template <class T, class Format>
const DecodeKernel* kernel();  // kernel.cuh
}

namespace {

using Kind = Instruction::Kind;

constexpr size_t kMostOps = 2048, kMostInstructions = 2 * kMostOps;  // limits of one captured graph
// Offsets in device memory of the instructions and of the tensor maps of their weights.
constexpr size_t kInstructionsAt = 256, kMapsAt = kInstructionsAt + kMostInstructions * sizeof(Instruction);
static_assert(kMapsAt % alignof(TensorMaps) == 0);
constexpr int kStagesAhead = 3;  // most stages that a producer warp keeps in flight: more only queue behind each other
constexpr int kFewestMatmuls = 2;  // matmuls that make a run worth a kernel
int align(int bytes) { return (bytes + 127) / 128 * 128; }

bool few_rows(const Tensor& x) { return x.dtype == &kFloat32 && x.rows() >= 1 && x.rows() <= kMostDecodeKernelRows; }

// The tensor maps of plain 16-bit weights, or of fp8 weights, whose rows have their scales behind them.
TensorMaps weight_maps(const MatmulProblem& p, int pieces_of_stage) {
  const bool fp8 = p.type == &quant::Fp8::kType;
  const int64_t row_bytes = fp8 ? p.k : padded_k(p.k) * 2, pitch = fp8 ? fp8_row_bytes(p.k) : row_bytes;
  const auto n = static_cast<cuuint64_t>(p.n), pieces = static_cast<cuuint64_t>(row_bytes / 128);
  const auto tile = static_cast<cuuint32_t>(pieces_of_stage);
  TensorMaps maps{};
  maps.weights_or_keys =
      tensor_map<3>(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, {128, n, pieces}, {static_cast<cuuint64_t>(pitch), 128},
                    {128, kPanelOutputs, tile}, CU_TENSOR_MAP_SWIZZLE_128B);
  if (!fp8) return maps;
  maps.scales_or_values =
      tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.weight + p.k, {pieces, n}, {static_cast<cuuint64_t>(pitch)},
                    {tile, kPanelOutputs}, CU_TENSOR_MAP_SWIZZLE_NONE);
  return maps;
}

// Whether rows consist of whole, aligned packs of 16 bytes.
bool in_packs(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.shape[-1] % 4 == 0 && x.row_stride % 4 == 0;
}

template <class T>
Instruction instruction(Kind kind, T Instruction::*member, const T& value) {
  static_assert(std::is_trivially_copyable_v<Instruction>);
  Instruction in;
  std::memset(static_cast<void*>(&in), 0, sizeof in);
  in.kind = kind;
  in.*member = value;
  return in;
}

}  // namespace

const DecodeKernel* decode_kernel(DType plain, DType quantized) {
  if (plain != &kBFloat16) return nullptr;
  if (quantized == nullptr) return persistent::kernel<__nv_bfloat16, void>();
  if (quantized == &quant::Fp8::kType) return persistent::kernel<__nv_bfloat16, quant::Fp8>();
  if (quantized == &quant::Int4G128::kType) return persistent::kernel<__nv_bfloat16, quant::Int4G128>();
  if (quantized == &quant::MXFP4::kType) return persistent::kernel<__nv_bfloat16, quant::MXFP4>();
  return nullptr;
}

bool DecodeKernelBuilder::usable(const Launch& l) {
  const char* wanted = std::getenv("SLUICE_CUDA_DECODE_KERNEL");
  return l.compute_capability >= 90 && (wanted == nullptr || std::string_view(wanted) != "0");
}

DecodeKernelBuilder::DecodeKernelBuilder(const Launch& l) : launch_(l) {}

DecodeKernelBuilder::~DecodeKernelBuilder() {
  cudaFree(device_);
  for (const auto& [memory, words] : exchanges_) cudaFree(memory);
}

// Adds these types to those of the run (null: any type will do). Returns false if no kernel has them all.
bool DecodeKernelBuilder::take_type(DType plain, DType quantized) {
  const DType both = plain_ == nullptr ? plain : plain_, packed = quantized_ == nullptr ? quantized : quantized_;
  if ((plain != nullptr && both != plain) || (quantized != nullptr && packed != quantized)) return false;
  if (decode_kernel(both != nullptr ? both : &kBFloat16, packed) == nullptr) return false;
  plain_ = both, quantized_ = packed;
  return true;
}

// Reserves scratch for `bytes` bytes. Returns false if that leaves too little shared memory for the ring.
bool DecodeKernelBuilder::take_scratch(int bytes) {
  const DecodeKernel& kernel = *decode_kernel(plain_ != nullptr ? plain_ : &kBFloat16, quantized_);
  if (kFewestStages * kernel.stage_bytes + align(bytes) + kBookkeepingBytes > kDecodeSharedBytes) return false;
  scratch_ = std::max(scratch_, align(bytes));
  return true;
}

bool DecodeKernelBuilder::closed() const { return all_.size() >= kMostOps || !pending_.fallbacks.empty(); }

void DecodeKernelBuilder::add(const Instruction& instruction, FallbackLaunch fallback) {
  all_.push_back(instruction);
  fallback_.push_back(std::move(fallback));
}

bool DecodeKernelBuilder::embed(const Tensor& out, const Tensor& table, const int32_t* ids, FallbackLaunch fallback) {
  const bool plain = table.dtype == &kFloat32;
  if (!few_rows(out) || closed()) return false;
  if (!plain && table.dtype != &kBFloat16 && table.dtype != &kFloat16) return false;
  if (!plain && !take_type(table.dtype, nullptr)) return false;
  add(instruction(Kind::kGather, &Instruction::gather,
                  GatherInstruction{.out = out.f32(),
                                    .table = table.data,
                                    .ids = ids,
                                    .out_stride = out.row_stride,
                                    .table_stride = table.row_stride,
                                    .rows = static_cast<int>(out.rows()),
                                    .columns = static_cast<int>(out.shape[1]),
                                    .bytes = plain ? 4 : 2}),
      std::move(fallback));
  return true;
}

bool DecodeKernelBuilder::rms_norm(const Tensor& out, const Tensor& x, const float* weight, float eps, float offset,
                                   FallbackLaunch fallback) {
  if (!few_rows(x) || out.dtype != &kFloat32 || closed()) return false;
  add(instruction(Kind::kNorm, &Instruction::norm,
                  NormInstruction{.out = out.f32(),
                                  .x = x.f32(),
                                  .weight = weight,
                                  .out_stride = out.row_stride,
                                  .x_stride = x.row_stride,
                                  .rows = static_cast<int>(x.rows()),
                                  .groups = static_cast<int>(x.shape.rank() == 3 ? x.shape[1] : 1),
                                  .columns = static_cast<int>(x.shape[-1]),
                                  .eps = eps,
                                  .offset = offset,
                                  .in_packs = in_packs(x) && reinterpret_cast<uintptr_t>(weight) % 16 == 0}),
      std::move(fallback));
  return true;
}

bool DecodeKernelBuilder::matmul(const MatmulProblem& p, FallbackLaunch fallback) {
  if (!few_rows(p.x) || p.out.dtype != &kFloat32 || p.matrices != 1 || p.starts != nullptr || !in_packs(p.x))
    return false;
  if (closed() || maps_.size() >= kMostInstructions) return false;
  const bool quantized = p.type != &kBFloat16 && p.type != &kFloat16;
  const DType plain_before = plain_, quantized_before = quantized_;
  if (!(quantized ? take_type(nullptr, p.type) : take_type(p.type, nullptr))) return false;
  const auto rows = static_cast<int>(p.x.rows());
  const DecodeKernel& kernel = *decode_kernel(plain_ != nullptr ? plain_ : &kBFloat16, quantized_);
  const MatmulInputs inputs = kernel.inputs(quantized);
  const int bytes = inputs.bytes(rows, static_cast<int>(panel_slices(p.k)));
  if (p.k % inputs.multiple != 0 || !take_scratch(bytes)) {
    plain_ = plain_before, quantized_ = quantized_before;
    return false;
  }
  const bool panels = quantized && p.type != &quant::Fp8::kType;
  MatmulInstruction matmul{
      .maps = panels ? nullptr : keep(weight_maps(p, kernel.stage_pieces)),
      .panels = panels ? p.weight : nullptr,
      .pitch = panels ? static_cast<int64_t>(panel_kernels(p.type)->packed_bytes(kPanelOutputs, p.k)) : 0,
      .x = p.x.f32(),
      .out = p.out.f32(),
      .bias = p.bias,
      .x_stride = p.x.row_stride,
      .out_stride = p.out.row_stride,
      .norm_weight = nullptr,
      .eps = 0.0f,
      .norm_offset = 0.0f,
      .gated = nullptr,
      .gated_stride = 0,
      .gate = {},
      .rows = rows,
      .n = static_cast<int>(p.n),
      .k = static_cast<int>(p.k),
      .slices = static_cast<int>(panel_slices(p.k)),
      .sum = 0,
      .quantized = quantized,
      .accumulate = p.accumulate,
      .norms = false,
      .keeps_out = true,
      .keeps_gated = true,
      .in = {},
      .put = {},
      .experts = {}};
  ++matmuls_;
  add(instruction(Kind::kMatmul, &Instruction::matmul, matmul), std::move(fallback));
  return true;
}

bool DecodeKernelBuilder::glu(const Tensor& out, const Tensor& gate_up, const Gate& gate, FallbackLaunch fallback) {
  if (pending_.fallbacks.size() == 3) {
    if (gate_up.data != pending_.in.out.data || 2 * out.shape[1] != gate_up.shape[1] || out.dtype != &kFloat32) {
      return false;
    }
    if (out.row_stride != out.shape[1] || out.shape[1] % kPanelOutputs != 0) return false;
    pending_.inner = out, pending_.gate = gate;
    return pend(std::move(fallback));
  }
  if (!few_rows(out) || !few_rows(gate_up) || closed()) return false;
  const auto rows = static_cast<int>(out.rows()), columns = static_cast<int>(out.shape[1]);
  if (all_.size() > run_ && all_.back().kind == Kind::kMatmul) {
    MatmulInstruction& p = all_.back().matmul;
    if (p.out == gate_up.f32() && p.out_stride == gate_up.row_stride && p.rows == rows && p.n == 2 * columns &&
        columns % kPanelOutputs == 0 && !p.accumulate && p.sum == 0) {
      p.gated = out.f32(), p.gated_stride = out.row_stride, p.gate = gate;
      fallback_.push_back(std::move(fallback));
      return true;
    }
  }
  add(instruction(Kind::kGlu, &Instruction::glu,
                  GluInstruction{.out = out.f32(),
                                 .gate_up = gate_up.f32(),
                                 .out_stride = out.row_stride,
                                 .gate_up_stride = gate_up.row_stride,
                                 .rows = rows,
                                 .columns = columns,
                                 .gate = gate}),
      std::move(fallback));
  return true;
}

bool DecodeKernelBuilder::pend(FallbackLaunch fallback) {
  pending_.fallbacks.push_back(std::move(fallback));
  return true;
}

bool DecodeKernelBuilder::route(const ops::RouteArgs& a, FallbackLaunch fallback) {
  if (closed() || all_.size() <= run_ || all_.back().kind != Kind::kMatmul) return false;
  const MatmulInstruction& router = all_.back().matmul;
  if (router.out != a.logits.f32() || router.rows != a.logits.rows() || router.n != a.logits.shape[1] ||
      router.accumulate || router.gated != nullptr || router.sum != 0) {
    return false;
  }
  if (!chooses_without_groups(a.routing) || router.n > kMostExperts || router.rows * a.routing.top_k > kMostChoices)
    return false;
  pending_.choice = a;
  return pend(std::move(fallback));
}

bool DecodeKernelBuilder::group_by_expert(const ops::GroupByExpertArgs& a, FallbackLaunch fallback) {
  if (pending_.fallbacks.size() != 1 || a.experts.data != pending_.choice.experts.data) return false;
  pending_.order = a;
  return pend(std::move(fallback));
}

// Whether the kernel can multiply by these experts, whose rows lie one after the other.
bool DecodeKernelBuilder::expert_weights_fit(const MatmulProblem& p) const {
  const bool mxfp4 = p.type == &quant::MXFP4::kType, wide = p.type == &kBFloat16 || p.type == &quant::Fp8::kType;
  if (!mxfp4 && (!wide || p.bias != nullptr)) return false;
  // A launch reads an expert that several rows chose once. It takes 1.3 % less time for four rows of gpt-oss-20b.
  if (mxfp4 && p.x.rows() > 8 && 2 * p.x.rows() >= p.matrices) return false;
  return !p.accumulate && p.x.dtype == &kFloat32 && p.out.dtype == &kFloat32 &&
         p.matrices == pending_.choice.logits.shape[1] && p.starts == pending_.order.starts.as<const int32_t>() &&
         p.weight_rows % kPanelOutputs == 0;
}

bool DecodeKernelBuilder::expert_matmul(const MatmulProblem& p, FallbackLaunch fallback) {
  const size_t before = pending_.fallbacks.size();
  if ((before != 2 && before != 4) || !expert_weights_fit(p)) return false;
  if (before == 2) {
    const MatmulInstruction& router = all_.back().matmul;
    if (p.x_rows != pending_.order.rows.as<const int32_t>() || p.x.f32() != router.x || p.k != router.k) return false;
    if (p.x.row_stride != router.x_stride) return false;
    if (p.n % (2 * kPanelOutputs) != 0) return false;
    pending_.in = p;
  } else {
    if (p.x.data != pending_.inner.data || p.x_rows != nullptr || p.type != pending_.in.type) return false;
    if (2 * p.k != pending_.in.n) return false;
    pending_.out = p;
  }
  return pend(std::move(fallback));
}

// Fills in what both instructions of pending experts have in common.
MatmulInstruction DecodeKernelBuilder::experts_of(const MatmulProblem& p, ExpertPart part, const MatmulInputs& inputs,
                                                  int stage_pieces) {
  MatmulProblem stacked = p;
  stacked.n = p.matrices * p.weight_rows;
  const int slices = static_cast<int>(panel_slices(p.k));
  MatmulInstruction matmul{};
  if (p.type == &quant::MXFP4::kType) {
    matmul.panels = p.weight;
    matmul.pitch = static_cast<int64_t>(panel_kernels(p.type)->packed_bytes(kPanelOutputs, p.k));
  } else {
    matmul.maps = keep(weight_maps(stacked, stage_pieces));
  }
  matmul.bias = p.bias;
  matmul.rows = static_cast<int>(pending_.choice.logits.rows()), matmul.n = static_cast<int>(p.n);
  matmul.k = static_cast<int>(p.k), matmul.slices = slices;
  matmul.quantized = p.type != &kBFloat16;
  matmul.keeps_out = matmul.keeps_gated = true;
  matmul.experts = {.part = part,
                    .count = p.matrices,
                    .panels = static_cast<int>(p.weight_rows / kPanelOutputs),
                    .stages = (slices + inputs.stage_slices - 1) / inputs.stage_slices,
                    .quads = static_cast<int>(p.k / 4),
                    .bias_step = static_cast<int>(p.bias_step),
                    .logits = {},
                    .correction = pending_.choice.correction,
                    .choice = expert_choice(pending_.choice.routing)};
  return matmul;
}

bool DecodeKernelBuilder::combine(const ops::CombineArgs& a, FallbackLaunch fallback) {
  const Pending& e = pending_;
  if (e.fallbacks.size() != 5 || a.x.data != e.out.out.data || a.weights.data != e.choice.weights.data) return false;
  if (a.places.data != e.order.places.data || a.out.dtype != &kFloat32) return false;
  if (all_.size() + 2 > kMostOps || maps_.size() + 2 > kMostInstructions) return false;
  const bool quantized = e.in.type != &kBFloat16;
  const DType plain_before = plain_, quantized_before = quantized_;
  if (!(quantized ? take_type(nullptr, e.in.type) : take_type(e.in.type, nullptr))) return false;
  const DecodeKernel& kernel = *decode_kernel(plain_ != nullptr ? plain_ : &kBFloat16, quantized_);
  const MatmulInputs inputs = kernel.inputs(quantized);
  const int top_k = e.choice.routing.top_k, rows = static_cast<int>(e.choice.logits.rows());
  const int in_slices = static_cast<int>(panel_slices(e.in.k)), of_choice = static_cast<int>(panel_slices(e.out.k));
  const int out_slices = top_k * ((of_choice + inputs.stage_slices - 1) / inputs.stage_slices) * inputs.stage_slices;
  if (e.in.k % inputs.multiple != 0 || e.out.k % inputs.multiple != 0 ||
      !take_scratch(std::max(inputs.bytes(rows, in_slices), inputs.bytes(rows, out_slices)))) {
    plain_ = plain_before, quantized_ = quantized_before;
    return false;
  }
  MatmulInstruction in = experts_of(e.in, ExpertPart::kIn, inputs, kernel.stage_pieces);
  MatmulInstruction out = experts_of(e.out, ExpertPart::kOut, inputs, kernel.stage_pieces);
  out.k *= top_k, out.slices = out_slices;
  in.x = e.in.x.f32(), in.x_stride = e.in.x.row_stride;
  in.gated = e.inner.f32(), in.gated_stride = out.k, in.gate = e.gate;
  out.x = in.gated, out.x_stride = out.k;
  out.out = a.out.f32(), out.out_stride = a.out.row_stride, out.accumulate = a.accumulate;
  matmuls_ += 2;
  std::vector<FallbackLaunch> fallbacks = std::exchange(pending_, {}).fallbacks;
  all_.push_back(instruction(Kind::kMatmul, &Instruction::matmul, in));
  all_.push_back(instruction(Kind::kMatmul, &Instruction::matmul, out));
  std::ranges::move(fallbacks, std::back_inserter(fallback_));
  fallback_.push_back(std::move(fallback));
  return true;
}

// `x` itself is not written then: nothing else may read a rank's part of a sum.
bool DecodeKernelBuilder::all_reduce(const PeerMemory& peers, const Tensor& out, const Tensor& x, bool accumulate,
                                     FallbackLaunch fallback) {
  if (closed() || all_.size() <= run_ || all_.back().kind != Kind::kMatmul) return false;
  if (peers_ != nullptr && peers_ != &peers) return false;
  MatmulInstruction& p = all_.back().matmul;
  if (p.out != x.f32() || p.out_stride != x.row_stride || p.rows != x.shape[0] || p.n != x.shape[1]) return false;
  if (p.accumulate || p.gated != nullptr || p.bias != nullptr || p.sum != 0 || !fits_inbox(p.rows, p.n)) return false;
  p.out = out.f32(), p.out_stride = out.row_stride, p.accumulate = accumulate;
  p.sum = ++sums_;
  peers_ = &peers;
  fallback_.push_back(std::move(fallback));
  return true;
}

bool DecodeKernelBuilder::rope_store(const ops::RopeStoreArgs& a, const int32_t* positions, const int32_t* slots,
                                     FallbackLaunch fallback) {
  const Tensor& cache = a.k_cache;
  if (!few_rows(a.q) || closed() || !take_type(cache.dtype, nullptr)) return false;
  const bool stores = a.k.data != nullptr, rotates = a.cos_sin.data != nullptr;
  const auto head_dim = static_cast<int>(cache.shape[3]);
  add(instruction(Kind::kRope, &Instruction::rotation,
                  RopeInstruction{.q = a.q.f32(),
                                  .k = stores ? a.k.f32() : nullptr,
                                  .v = stores ? a.v.f32() : nullptr,
                                  .cos_sin = rotates ? a.cos_sin.f32() : nullptr,
                                  .k_cache = cache.data,
                                  .v_cache = a.v_cache.data,
                                  .positions = positions,
                                  .slots = slots,
                                  .q_stride = a.q.row_stride,
                                  .k_stride = a.k.row_stride,
                                  .v_stride = a.v.row_stride,
                                  .cos_sin_stride = a.cos_sin.row_stride,
                                  .rows = static_cast<int>(a.q.rows()),
                                  .heads = static_cast<int>(a.q.shape[1] / head_dim),
                                  .kv_heads = static_cast<int>(cache.shape[1]),
                                  .head_dim = head_dim,
                                  .value_dim = stores ? static_cast<int>(a.v_cache.shape[3]) : 0,
                                  .rotary = rotates ? static_cast<int>(a.cos_sin.shape[1]) : 0,
                                  .block_size = static_cast<int>(cache.shape[2]),
                                  .interleaved = a.interleaved}),
      std::move(fallback));
  return true;
}

// Whether the last instruction rotates the same rows: then it becomes a part of the attention.
bool DecodeKernelBuilder::rotated_before(const AttentionParams& params, int sequences) const {
  if (all_.size() <= run_ || all_.back().kind != Kind::kRope) return false;
  const RopeInstruction& r = all_.back().rotation;
  return r.q == params.q && r.q_stride == params.q_stride && r.rows == sequences && r.k_cache == params.k &&
         r.v_cache == params.v && r.k != nullptr;
}

// The head norms in front of a rotation in place. If the last two instructions of the run normalize the queries and
// then the keys, they are removed from the run and returned.
HeadNorms DecodeKernelBuilder::take_head_norms(const RopeInstruction& r) {
  if (all_.size() < run_ + 2) return {};
  const auto norm_of = [&](const Instruction& in, const float* x, int64_t stride, int heads) -> const NormInstruction* {
    const NormInstruction& n = in.norm;
    const bool same = in.kind == Kind::kNorm && n.x == x && n.out == x && n.x_stride == stride &&
                      n.out_stride == stride && n.groups == heads && n.columns == r.head_dim && n.weight != nullptr;
    return same ? &n : nullptr;
  };
  const NormInstruction* q = norm_of(all_[all_.size() - 2], r.q, r.q_stride, r.heads);
  const NormInstruction* k = norm_of(all_.back(), r.k, r.k_stride, r.kv_heads);
  if (q == nullptr || k == nullptr || q->eps != k->eps || q->offset != k->offset) return {};
  const HeadNorms norms{.q_weight = q->weight, .k_weight = k->weight, .eps = q->eps, .offset = q->offset};
  all_.resize(all_.size() - 2);
  return norms;
}

// The index of the place of the next attention instruction among those of the run. -1: the run has too many.
int DecodeKernelBuilder::place_of(const AttentionParams& params, const RopeInstruction& rotation, int cuts) {
  const Place place{.query_start = params.query_start,
                    .kv_len = params.kv_len,
                    .block_table = params.block_table,
                    .positions = rotation.positions,
                    .slots = rotation.slots,
                    .cos_sin = rotation.cos_sin,
                    .block_table_stride = params.block_table_stride,
                    .block_size = params.block_size,
                    .kv_heads = params.kv_heads,
                    .rotary = rotation.rotary,
                    .cuts = cuts,
                    .window = params.window,
                    .chunk = params.chunk};
  const auto known = std::ranges::find(places_, place);
  if (known == places_.end() && places_.size() == kMostPlaces) return -1;
  const auto at = static_cast<int>(known - places_.begin());
  if (known == places_.end()) places_.push_back(place);
  return at;
}

bool DecodeKernelBuilder::attention(const ops::AttentionArgs& a, const AttentionIndices& at, FallbackLaunch fallback) {
  if (!few_rows(a.q) || closed() || !attention_on_tensor_cores(a)) return false;
  if (maps_.size() >= kMostInstructions) return false;
  const AttentionParams params = attention_params(a, at);
  if (at.prefill_tiles > 0 || at.decode_rows != 1 || params.group > kQueries) return false;
  const int dim = std::max(params.head_dim, params.value_dim);
  if (dim > kMostHeadDim || params.value_stride != params.value_dim || !rotated_before(params, at.sequences))
    return false;
  if (!take_type(a.k_cache.dtype, nullptr)) return false;
  const int64_t pairs = int64_t{at.sequences} * params.kv_heads;
  if (pairs > launch_.sm_count) return false;  // each block has at most one unit
  const int cuts = static_cast<int>(launch_.sm_count / pairs);
  const int64_t slots = pairs * cuts * kQueries, values = slots * (dim <= 64 ? 64 : 128);
  if (launch_.workspace_bytes < values * sizeof(float) + slots * sizeof(ChunkSum)) return false;
  if (launch_.workspace_bytes / kBytesPerArrival < static_cast<size_t>(pairs)) return false;
  if (!take_scratch(decode_kernel(plain_, quantized_)->attention_bytes(params.group))) return false;
  const CacheMaps tiles = cache_maps(params, 2, kDecodeKeys);
  if (tiles.rows < kDecodeKeys / 2) return false;
  auto* memory = reinterpret_cast<float*>(launch_.workspace);
  const bool plain = params.soft_cap <= 0 && params.alibi_slopes == nullptr && params.relative_bias == nullptr;
  AttentionInstruction attention{.params = params,
                                 .norms = {},
                                 .rotation = all_.back().rotation,
                                 .in = {},
                                 .put = {},
                                 .q_at = 0,
                                 .k_at = 0,
                                 .v_at = 0,
                                 .keeps_out = true,
                                 .sequences = at.sequences,
                                 .cuts = cuts,
                                 .place = place_of(params, all_.back().rotation, cuts),
                                 .values = memory,
                                 .sums = reinterpret_cast<ChunkSum*>(memory + values),
                                 .maps = nullptr,
                                 .tile_keys = tiles.rows,
                                 .plain = plain,
                                 .score_unit = (plain ? params.scale : 1.0f) * std::numbers::log2e_v<float>,
                                 .arrivals = reinterpret_cast<uint32_t*>(launch_.arrivals)};
  if (attention.place < 0) return false;
  attention.maps = keep({tiles.keys, tiles.values});
  all_.pop_back();
  attention.norms = take_head_norms(attention.rotation);
  add(instruction(Kind::kAttention, &Instruction::attention, attention), std::move(fallback));
  return true;
}

void DecodeKernelBuilder::launch_run() {
  DecodeKernelPlan resolved = resolve_dependencies({all_.begin() + static_cast<int64_t>(run_), all_.end()});
  place_exchanges(resolved, exchange(kExchanges * resolved.exchange_words));
  all_.resize(run_);
  all_.insert(all_.end(), resolved.instructions.begin(), resolved.instructions.end());
  const DecodeKernel& kernel = *decode_kernel(plain_ != nullptr ? plain_ : &kBFloat16, quantized_);
  DecodeKernelLaunch l{.instructions = reinterpret_cast<const Instruction*>(device() + kInstructionsAt) + run_,
                       .count = static_cast<int>(all_.size() - run_),
                       .first_fed = -1,
                       .places = {},
                       .stages = 0,
                       .ahead = 0,
                       .scratch_bytes = scratch_,
                       .peers = peers_ != nullptr ? *peers_ : PeerMemory(),
                       .sums = sums_,
                       .arrivals = reinterpret_cast<uint32_t*>(device())};
  l.stages = std::min((kDecodeSharedBytes - kBookkeepingBytes - l.scratch_bytes) / kernel.stage_bytes, kMostStages);
  l.stages -= l.stages % kProducerWarps;
  l.ahead = std::min(l.stages / kProducerWarps, kStagesAhead);
  std::ranges::fill(l.places, -1);
  int* next = &l.first_fed;
  for (size_t i = run_; i < all_.size(); ++i) {
    Instruction& in = all_[i];
    const auto at = static_cast<int>(i - run_);
    if (in.kind == Kind::kAttention) {
      int& place = l.places[in.attention.place];
      if (place < 0) place = at;
    } else if (in.kind != Kind::kMatmul) {
      continue;
    }
    *next = at;
    next = &in.next;
    *next = -1;
  }
  kernel.launch(launch_, l);
}

void DecodeKernelBuilder::flush() {
  const bool worth = matmuls_ >= kFewestMatmuls;
  if (worth) {
    launch_run();
  } else {
    all_.resize(run_);
  }
  run_ = all_.size();
  plain_ = quantized_ = nullptr;
  places_.clear();
  scratch_ = matmuls_ = sums_ = 0;
  peers_ = nullptr;
  const std::vector<FallbackLaunch> ops = std::exchange(fallback_, {}), later = std::exchange(pending_, {}).fallbacks;
  if (!worth) {
    for (const FallbackLaunch& op : ops) op();
  }
  for (const FallbackLaunch& op : later) op();
}

std::byte* DecodeKernelBuilder::device() {
  if (device_ == nullptr) {
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, kMapsAt + kMostInstructions * sizeof(TensorMaps)), "persistent decode kernel");
    device_ = static_cast<std::byte*>(data);
  }
  return device_;
}

// Returns a device buffer of at least `words` words.
uint2* DecodeKernelBuilder::exchange(size_t words) {
  if (exchanges_.empty() || exchanges_.back().second < words) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, words * sizeof(uint2)), "persistent decode kernel");
    exchanges_.emplace_back(static_cast<uint2*>(memory), words);
  }
  return exchanges_.back().first;
}

const TensorMaps* DecodeKernelBuilder::keep(const TensorMaps& maps) {
  maps_.push_back(maps);
  return reinterpret_cast<const TensorMaps*>(device() + kMapsAt) + maps_.size() - 1;
}

void DecodeKernelBuilder::finish() {
  if (device_ == nullptr) return;
  check_cuda(cudaMemset(device_, 0, kInstructionsAt), "persistent decode kernel");
  for (const auto& [memory, words] : exchanges_) {
    check_cuda(cudaMemset(memory, 0, words * sizeof(uint2)), "persistent decode kernel");
  }
  const auto copy = [&](size_t at, const auto& values) {
    check_cuda(cudaMemcpy(device_ + at, values.data(), values.size() * sizeof(values[0]), cudaMemcpyHostToDevice),
               "persistent decode kernel");
  };
  copy(kInstructionsAt, all_);
  copy(kMapsAt, maps_);
}

}  // namespace sluice::cuda
