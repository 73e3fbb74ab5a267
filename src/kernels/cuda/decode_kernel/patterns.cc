#include "kernels/cuda/decode_kernel/patterns.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/decode_kernel/single_ops.h"
#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {

namespace {

// Whether x is what the matmul writes.
bool is_result(const Tensor& x, const MatmulInstruction& matmul) {
  return few_rows(x) && x.f32() == matmul.out && x.row_stride == matmul.out_stride && x.rows() == matmul.rows &&
         x.shape[1] == matmul.n;
}

}  // namespace

bool gates(const GluOp& glu, const MatmulInstruction& matmul) {
  const int64_t columns = glu.out.shape[1];
  return few_rows(glu.out) && glu.out.rows() == matmul.rows && is_result(glu.gate_up, matmul) &&
         matmul.n == 2 * columns && columns % kPanelOutputs == 0 && !matmul.accumulate;
}

bool sums(const SumOp& sum, const MatmulInstruction& matmul) {
  return is_result(sum.x, matmul) && !matmul.accumulate && matmul.bias == nullptr && fits_inbox(matmul.rows, matmul.n);
}

std::optional<HeadNorms> head_norms(const NormInstruction& q, const NormInstruction& k, const RopeInstruction& rope) {
  const auto normalizes = [&](const NormInstruction& n, const float* x, int64_t stride, int heads) {
    return n.x == x && n.out == x && n.x_stride == stride && n.out_stride == stride && n.groups == heads &&
           n.columns == rope.head_dim && n.weight != nullptr;
  };
  if (!normalizes(q, rope.q, rope.q_stride, rope.heads) || !normalizes(k, rope.k, rope.k_stride, rope.kv_heads) ||
      q.eps != k.eps || q.offset != k.offset) {
    return std::nullopt;
  }
  return HeadNorms{.q_weight = q.weight, .k_weight = k.weight, .eps = q.eps, .offset = q.offset};
}

namespace {

// Whether rows share elements. Rows of equal strides may be different columns of the same rows.
bool overlaps(const Tensor& a, const Tensor& b) {
  if (a.data == nullptr || b.data == nullptr || a.rows() == 0 || b.rows() == 0) return false;
  const auto bytes = [](const Tensor& t, int64_t elements) {
    return elements / t.dtype->block_size * static_cast<int64_t>(t.dtype->block_bytes);
  };
  const auto end = [&](const Tensor& t) { return t.data + bytes(t, (t.rows() - 1) * t.row_stride + t.row_elements()); };
  if (a.data >= end(b) || b.data >= end(a)) return false;
  const int64_t stride = bytes(a, a.row_stride);
  if (stride == 0 || stride != bytes(b, b.row_stride)) return true;
  const int64_t apart = ((b.data - a.data) % stride + stride) % stride;
  return apart < bytes(a, a.row_elements()) || apart + bytes(b, b.row_elements()) > stride;
}

// The rows that an op reads and writes.
struct Operands {
  std::vector<Tensor> reads;
  Tensor write;
};
Operands operands(std::monostate) { return {}; }
Operands operands(const GatherOp& op) { return {{op.table}, op.out}; }
Operands operands(const NormOp& op) { return {{op.x}, op.out}; }
Operands operands(const MatmulProblem& p) { return {{p.x}, p.out}; }
Operands operands(const GluOp& op) { return {{op.gate_up}, op.out}; }
Operands operands(const RopeOp& op) { return {{op.args.q, op.args.k, op.args.v}, {}}; }
Operands operands(const AttentionOp& op) { return {{op.args.q}, op.args.out}; }
Operands operands(const ops::RouteArgs& a) { return {{a.logits}, {}}; }
Operands operands(const ops::GroupByExpertArgs&) { return {}; }
Operands operands(const ops::CombineArgs& a) { return {{a.x, a.weights}, a.out}; }
Operands operands(const SumOp& op) { return {{op.x}, op.out}; }

}  // namespace

bool reads_before_write(std::span<const CapturedOp> ops, const Tensor& x) {
  for (const CapturedOp& op : ops) {
    const Operands of = std::visit([](const auto& description) { return operands(description); }, op.description);
    if (std::ranges::any_of(of.reads, [&](const Tensor& read) { return overlaps(read, x); })) return true;
    if (overlaps(of.write, x)) return false;
  }
  return false;
}

namespace {

// Whether the kernel executes this choice among the router's results.
bool can_choose(const ops::RouteArgs& choice, const MatmulInstruction& router) {
  return is_result(choice.logits, router) && !router.accumulate && chooses_without_groups(choice) &&
         router.n <= kMostExperts && router.rows * choice.routing.top_k <= kMostChoices;
}

// Whether the kernel multiplies by these experts, whose rows lie one after the other.
bool can_multiply(const MatmulProblem& p, const ops::RouteArgs& choice, const ops::GroupByExpertArgs& order) {
  const bool mxfp4 = p.type == &quant::MXFP4::kType, wide = p.type == &kBFloat16 || p.type == &quant::Fp8::kType;
  if (!mxfp4 && (!wide || p.bias != nullptr)) return false;
  // A launch reads an expert that several rows chose once. It takes 1.3 % less time for four rows of gpt-oss-20b.
  if (mxfp4 && p.x.rows() > 8 && 2 * p.x.rows() >= p.matrices) return false;
  return !p.accumulate && p.x.dtype == &kFloat32 && p.out.dtype == &kFloat32 && p.matrices == choice.logits.shape[1] &&
         p.starts == order.starts.as<const int32_t>() && p.weight_rows % kPanelOutputs == 0;
}

// Whether each op reads the results of those before it.
bool connected(const ExpertOps& e, const MatmulInstruction& router) {
  const bool routed = e.order.experts.data == e.choice.experts.data;
  const bool entered = e.in.x_rows == e.order.rows.as<const int32_t>() && e.in.x.f32() == router.x &&
                       e.in.k == router.k && e.in.x.row_stride == router.x_stride;
  const bool gated = e.gate.gate_up.data == e.in.out.data && 2 * e.gate.out.shape[1] == e.gate.gate_up.shape[1];
  const bool left = e.out.x.data == e.gate.out.data && e.out.x_rows == nullptr && 2 * e.out.k == e.in.n;
  const bool added = e.sum.x.data == e.out.out.data && e.sum.weights.data == e.choice.weights.data &&
                     e.sum.places.data == e.order.places.data;
  return routed && entered && gated && left && added;
}

}  // namespace

std::optional<ExpertOps> experts_behind(const MatmulInstruction& router, std::span<const CapturedOp> ops) {
  const auto* choice = op_at<ops::RouteArgs>(ops, 0);
  const auto* order = op_at<ops::GroupByExpertArgs>(ops, 1);
  const auto *in = op_at<MatmulProblem>(ops, 2), *out = op_at<MatmulProblem>(ops, 4);
  const auto* gate = op_at<GluOp>(ops, 3);
  const auto* sum = op_at<ops::CombineArgs>(ops, 5);
  if (choice == nullptr || order == nullptr || in == nullptr || gate == nullptr || out == nullptr || sum == nullptr) {
    return std::nullopt;
  }
  const ExpertOps all{.choice = *choice, .order = *order, .in = *in, .gate = *gate, .out = *out, .sum = *sum};
  if (!can_choose(*choice, router) || !can_multiply(*in, *choice, *order) || !can_multiply(*out, *choice, *order) ||
      in->type != out->type || !connected(all, router)) {
    return std::nullopt;
  }
  const Tensor& gated = gate->out;
  const bool whole_panels = in->n % (2 * kPanelOutputs) == 0 && gated.shape[1] % kPanelOutputs == 0;
  const bool fp32 = gated.dtype == &kFloat32 && sum->out.dtype == &kFloat32;
  if (!whole_panels || !fp32 || gated.row_stride != gated.shape[1]) return std::nullopt;
  return all;
}

namespace {

// A matmul of experts, for the rows of the router and without x, out and gate.
MatmulInstruction expert_matmul(const MatmulProblem& p, ExpertPart part, const ExpertOps& e, int stage_slices) {
  MatmulInstruction matmul = matmul_of(p);
  matmul.x = matmul.out = nullptr, matmul.x_stride = matmul.out_stride = 0;
  matmul.rows = static_cast<int>(e.choice.logits.rows());
  matmul.experts = {.part = part,
                    .count = p.matrices,
                    .panels = static_cast<int>(p.weight_rows / kPanelOutputs),
                    .stages = (matmul.slices + stage_slices - 1) / stage_slices,
                    .quads = static_cast<int>(p.k / 4),
                    .bias_step = static_cast<int>(p.bias_step),
                    .logits = {},
                    .correction = e.choice.correction,
                    .choice = expert_choice(e.choice.routing)};
  return matmul;
}

}  // namespace

ExpertMatmuls expert_matmuls(const ExpertOps& e, int stage_slices) {
  ExpertMatmuls both{.in = expert_matmul(e.in, ExpertPart::kIn, e, stage_slices),
                     .out = expert_matmul(e.out, ExpertPart::kOut, e, stage_slices)};
  MatmulInstruction &in = both.in, &out = both.out;
  const int top_k = e.choice.routing.top_k;
  out.k *= top_k, out.slices = top_k * out.experts.stages * stage_slices;
  in.x = e.in.x.f32(), in.x_stride = e.in.x.row_stride;
  in.gated = e.gate.out.f32(), in.gated_stride = out.k, in.gate = e.gate.gate;
  out.x = in.gated, out.x_stride = out.k;
  out.out = e.sum.out.f32(), out.out_stride = e.sum.out.row_stride, out.accumulate = e.sum.accumulate;
  return both;
}

}  // namespace sluice::cuda
