#include "kernels/cuda/decode_kernel/translate.h"

#include <algorithm>
#include <cstring>
#include <numbers>
#include <numeric>
#include <optional>
#include <type_traits>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/decode_kernel/patterns.h"
#include "kernels/cuda/decode_kernel/single_ops.h"

namespace sluice::cuda {
namespace {

using Kind = Instruction::Kind;

int align(int bytes) { return (bytes + 127) / 128 * 128; }

// Whether the ring has enough shared memory beside `scratch` bytes.
bool leaves_ring(const DecodeKernel& kernel, int scratch) {
  return kFewestStages * kernel.stage_bytes + align(scratch) + kBookkeepingBytes <= kDecodeSharedBytes;
}

// What decides where the units of an attention instruction are. Equal keys share a place.
struct Place {
  const int32_t *query_start, *kv_len, *block_table, *positions, *slots;
  const float* cos_sin;
  int block_table_stride, block_size, kv_heads, rotary, cuts, window, chunk;
  bool operator==(const Place&) const = default;
};

// Whether the rotation is that of the attention's queries, and of the keys that it stores for them.
bool rotates(const RopeInstruction& r, const AttentionParams& params, int sequences) {
  return r.q == params.q && r.q_stride == params.q_stride && r.rows == sequences && r.k_cache == params.k &&
         r.v_cache == params.v && r.k != nullptr;
}

class Translation {
 public:
  Translation(std::span<const CapturedOp> ops, const Launch& l, size_t room) : ops_(ops), launch_(l), room_(room) {}

  DecodeRun run() {
    while (run_.ops < ops_.size()) {
      const size_t taken = std::visit([&](const auto& op) { return take(op); }, ops_[run_.ops].description);
      if (taken == 0) break;
      run_.ops += taken;
    }
    return std::move(run_);
  }

 private:
  // take() adds the instructions of an op, and of those behind it that become a part of them. It returns how many ops
  // these are, or 0 if the kernel cannot execute the first one.
  size_t take(const GatherOp& op) {
    const DType type = op.table.dtype;
    const bool fp32 = type == &kFloat32;
    if (!few_rows(op.out) || !has_room(1) || (!fp32 && type != &kBFloat16 && type != &kFloat16)) return 0;
    const std::optional<KernelTypes> types = fp32 ? run_.types : types_with(type, false);
    if (!types) return 0;
    run_.types = *types;
    add(Kind::kGather, &Instruction::gather, gather_of(op));
    return 1;
  }

  size_t take(const NormOp& op) {
    if (!few_rows(op) || !has_room(1)) return 0;
    const auto* of_keys = ahead<NormOp>(1);
    const auto* rope = ahead<RopeOp>(2);
    if (of_keys != nullptr && rope != nullptr) {
      if (const size_t taken = take_attention(*rope, &op, of_keys); taken > 0) return taken;
    }
    add(Kind::kNorm, &Instruction::norm, norm_of(op));
    return 1;
  }

  size_t take(const MatmulProblem& p) {
    if (!few_rows(p.x) || p.out.dtype != &kFloat32 || p.matrices != 1 || p.starts != nullptr || !in_packs(p.x))
      return 0;
    const bool quantized = is_quantized(p.type);
    const std::optional<KernelTypes> types = types_with(p.type, quantized);
    if (!types || !has_room(1)) return 0;
    const DecodeKernel& kernel = *decode_kernel(*types);
    const MatmulInputs inputs = kernel.inputs(quantized);
    MatmulInstruction matmul = matmul_of(p);
    const int scratch = inputs.bytes(matmul.rows, matmul.slices);
    if (p.k % inputs.multiple != 0 || !leaves_ring(kernel, scratch)) return 0;
    claim(*types, scratch);
    const bool has_part = take_gate(matmul, 1) || take_sum(matmul, 1);
    add_matmul(matmul, p);
    return has_part ? 2 : 1 + take_experts(matmul);
  }

  size_t take(const GluOp& op) {
    if (!few_rows(op.out) || !few_rows(op.gate_up) || !has_room(1)) return 0;
    add(Kind::kGlu, &Instruction::glu, glu_of(op));
    return 1;
  }

  size_t take(const RopeOp& op) {
    if (const size_t taken = take_attention(op, nullptr, nullptr); taken > 0) return taken;
    const std::optional<KernelTypes> types = types_with(op.args.k_cache.dtype, false);
    if (!few_rows(op.args.q) || op.args.q.shape[1] == 0 || !types || !has_room(1)) return 0;
    run_.types = *types;
    add(Kind::kRope, &Instruction::rotation, rope_of(op));
    return 1;
  }

  // These are taken only behind other ops, as parts of a pattern.
  size_t take(const AttentionOp&) { return 0; }
  size_t take(const ops::RouteArgs&) { return 0; }
  size_t take(const ops::GroupByExpertArgs&) { return 0; }
  size_t take(const ops::CombineArgs&) { return 0; }
  size_t take(const SumOp&) { return 0; }
  size_t take(std::monostate) { return 0; }

  // Takes a rotation and the attention behind it. If they are not null, norms of queries and keys come before both.
  size_t take_attention(const RopeOp& rope, const NormOp* q_norm, const NormOp* k_norm) {
    const size_t at = q_norm != nullptr ? 3 : 1;
    const auto* op = ahead<AttentionOp>(at);
    if (op == nullptr || !few_rows(rope.args.q) || !has_room(1)) return 0;
    // The attention keeps rotated queries to itself.
    if (reads_before_write(ops_.subspan(run_.ops + at + 1), rope.args.q)) return 0;
    const RopeInstruction rotation = rope_of(rope);
    std::optional<HeadNorms> norms = HeadNorms{};
    if (q_norm != nullptr) {
      norms = few_rows(*k_norm) ? head_norms(norm_of(*q_norm), norm_of(*k_norm), rotation) : std::nullopt;
    }
    return norms && add_attention(*op, rotation, *norms) ? at + 1 : 0;
  }

  bool add_attention(const AttentionOp& op, const RopeInstruction& rotation, const HeadNorms& norms) {
    const ops::AttentionArgs& a = op.args;
    const AttentionIndices& at = op.at;
    if (!few_rows(a.q) || !attention_on_tensor_cores(a) || at.prefill_tiles > 0 || at.decode_rows != 1) return false;
    if (a.first > 0 || a.log_sums.data != nullptr) return false;  // the kernel sees all positions from 0 on
    const AttentionParams params = attention_params(a, at);
    const int dim = std::max(params.head_dim, params.value_dim);
    if (params.group > kQueries || dim > kMostHeadDim || params.value_stride != params.value_dim) return false;
    if (!rotates(rotation, params, at.sequences)) return false;
    const std::optional<KernelTypes> types = types_with(a.k_cache.dtype, false);
    if (!types) return false;
    const int64_t pairs = int64_t{at.sequences} * params.kv_heads;
    if (pairs > launch_.sm_count) return false;  // each block has at most one unit
    const int cuts = static_cast<int>(launch_.sm_count / pairs);
    const int64_t slots = pairs * cuts * kQueries, values = slots * (dim <= 64 ? 64 : 128);
    if (launch_.workspace_bytes < values * sizeof(float) + slots * sizeof(ChunkSum)) return false;
    if (launch_.workspace_bytes / kBytesPerArrival < static_cast<size_t>(pairs)) return false;
    const DecodeKernel& kernel = *decode_kernel(*types);
    const int scratch = kernel.attention_bytes(params.group);
    const int tile_keys = std::gcd(params.block_size, kDecodeKeys);
    if (!leaves_ring(kernel, scratch) || tile_keys < kDecodeKeys / 2) return false;
    const int place = place_of(params, rotation, cuts);
    if (place < 0) return false;
    claim(*types, scratch);
    auto* memory = reinterpret_cast<float*>(launch_.workspace);
    const bool plain = params.soft_cap <= 0 && params.alibi_slopes == nullptr && params.relative_bias == nullptr;
    add(Kind::kAttention, &Instruction::attention,
        {.params = params,
         .norms = norms,
         .rotation = rotation,
         .in = {},
         .put = {},
         .q_at = 0,
         .k_at = 0,
         .v_at = 0,
         .keeps_out = true,
         .sequences = at.sequences,
         .cuts = cuts,
         .place = place,
         .values = memory,
         .sums = reinterpret_cast<ChunkSum*>(memory + values),
         .maps = nullptr,
         .tile_keys = tile_keys,
         .plain = plain,
         .score_unit = (plain ? params.scale : 1.0f) * std::numbers::log2e_v<float>,
         .arrivals = reinterpret_cast<uint32_t*>(launch_.arrivals)});
    return true;
  }

  // Returns the index among the run's places. -1: the run has too many.
  int place_of(const AttentionParams& params, const RopeInstruction& rotation, int cuts) {
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
    const auto at = static_cast<int>(known - places_.begin());
    if (at == kMostPlaces) return -1;
    if (known == places_.end()) places_.push_back(place);
    return at;
  }

  // Takes the experts behind their router, the last instruction, as two more. Sums over ranks may follow.
  size_t take_experts(const MatmulInstruction& router) {
    const std::optional<ExpertOps> e = experts_behind(router, ops_.subspan(run_.ops + 1));
    if (!e || !has_room(2)) return 0;
    const bool quantized = is_quantized(e->in.type);
    const std::optional<KernelTypes> types = types_with(e->in.type, quantized);
    if (!types) return 0;
    const DecodeKernel& kernel = *decode_kernel(*types);
    if (!kernel.executes_experts) return 0;
    const MatmulInputs inputs = kernel.inputs(quantized);
    auto [in, out] = expert_matmuls(*e, inputs.stage_slices);
    const int scratch = std::max(inputs.bytes(in.rows, in.slices), inputs.bytes(out.rows, out.slices));
    if (e->in.k % inputs.multiple != 0 || e->out.k % inputs.multiple != 0 || !leaves_ring(kernel, scratch)) return 0;
    claim(*types, scratch);
    has_experts_ = true;
    const bool summed = take_sum(out, 1 + ExpertOps::kCount);
    add_matmul(in, e->in), add_matmul(out, e->out);
    return ExpertOps::kCount + (summed ? 1 : 0);
  }

  // If op `at` gates the matmul's results, makes that a part of the matmul.
  bool take_gate(MatmulInstruction& matmul, size_t at) const {
    const auto* op = ahead<GluOp>(at);
    if (op == nullptr || !gates(*op, matmul)) return false;
    matmul.gated = op->out.f32(), matmul.gated_stride = op->out.row_stride, matmul.gate = op->gate;
    return true;
  }
  // If op `at` sums the matmul's results over the ranks, makes that a part of the matmul.
  bool take_sum(MatmulInstruction& matmul, size_t at) {
    const auto* op = ahead<SumOp>(at);
    if (op == nullptr || !sums(*op, matmul) || (run_.peers != nullptr && run_.peers != op->peers)) return false;
    run_.peers = op->peers;
    matmul.out = op->out.f32(), matmul.out_stride = op->out.row_stride, matmul.accumulate = op->accumulate;
    matmul.sum = ++run_.sums;
    return true;
  }

  template <class Op>
  const Op* ahead(size_t ops) const {
    return op_at<Op>(ops_, run_.ops + ops);
  }
  bool has_room(size_t instructions) const { return run_.instructions.size() + instructions <= room_; }

  // The types of the run with another one. None if no kernel has them all.
  std::optional<KernelTypes> types_with(DType type, bool quantized) const {
    KernelTypes types = run_.types;
    DType& one = quantized ? types.quantized : types.plain;
    if (one != nullptr && one != type) return std::nullopt;
    one = type;
    const DecodeKernel* kernel = decode_kernel(types);
    return kernel != nullptr && (kernel->executes_experts || !has_experts_) ? std::optional(types) : std::nullopt;
  }
  void claim(const KernelTypes& types, int scratch) {
    run_.types = types;
    run_.scratch_bytes = std::max(run_.scratch_bytes, align(scratch));
  }

  template <class T>
  void add(Kind kind, T Instruction::*member, const std::type_identity_t<T>& value) {
    static_assert(std::is_trivially_copyable_v<Instruction>);
    Instruction in;
    std::memset(static_cast<void*>(&in), 0, sizeof in);
    in.kind = kind;
    in.*member = value;
    run_.instructions.push_back(in);
  }
  void add_matmul(const MatmulInstruction& matmul, const MatmulProblem& p) {
    add(Kind::kMatmul, &Instruction::matmul, matmul);
    ++run_.matmuls;
    const int64_t rows = matmul.experts.part == ExpertPart::kNone ? p.n : p.matrices * p.weight_rows;
    if (matmul.panels == nullptr) run_.mapped.push_back({.weight = p.weight, .type = p.type, .n = rows, .k = p.k});
  }

  std::span<const CapturedOp> ops_;
  const Launch& launch_;
  size_t room_;
  DecodeRun run_;
  bool has_experts_ = false;
  std::vector<Place> places_;
};

}  // namespace

const DecodeKernel* decode_kernel(const KernelTypes& types) {
  return decode_kernel(types.plain != nullptr ? types.plain : &kBFloat16, types.quantized);
}

DecodeRun translate(std::span<const CapturedOp> ops, const Launch& l, size_t room) {
  return Translation(ops, l, room).run();
}

}  // namespace sluice::cuda
