#include "kernels/cuda/decode_kernel/effects.h"

namespace sluice::cuda {
namespace {

Span span(const float* data, int64_t stride, int64_t rows, int64_t columns) {
  if (data == nullptr) return {};
  return {data, data + (rows - 1) * stride + columns, stride, static_cast<int>(rows), static_cast<int>(columns)};
}

Span queries_of(const RopeInstruction& r) { return span(r.q, r.q_stride, r.rows, int64_t{r.heads} * r.head_dim); }
Span keys_of(const RopeInstruction& r) { return span(r.k, r.k_stride, r.rows, int64_t{r.kv_heads} * r.head_dim); }
Span values_of(const RopeInstruction& r) { return span(r.v, r.v_stride, r.rows, int64_t{r.kv_heads} * r.value_dim); }
Span queries_of(const AttentionInstruction& a) {
  const auto* q = static_cast<const float*>(a.params.q);
  return span(q, a.params.q_stride, a.sequences, int64_t{a.params.heads} * a.params.head_dim);
}

Effects effects(MatmulInstruction& p) {
  Effects all{.reads = {}, .writes = {{out_of(p), &p.keeps_out}, {gated_of(p), &p.keeps_gated}}};
  if (p.in.stride == 0) all.reads.push_back(input_of(p));
  if (p.accumulate) all.reads.push_back(out_of(p));
  return all;
}
Effects effects(NormInstruction& n) {
  const Span x = span(n.x, n.x_stride, n.rows, int64_t{n.groups} * n.columns);
  return {.reads = {x}, .writes = {{out_of(n)}}};
}
// The table may be rows that were just computed.
Effects effects(GatherInstruction& g) {
  const Span table = span(reinterpret_cast<const float*>(g.table), 0, 1, int64_t{1} << 40);
  return {.reads = {table}, .writes = {{span(g.out, g.out_stride, g.rows, g.columns)}}};
}
Effects effects(GluInstruction& g) {
  const Span x = span(g.gate_up, g.gate_up_stride, g.rows, 2 * int64_t{g.columns});
  return {.reads = {x}, .writes = {{span(g.out, g.out_stride, g.rows, g.columns)}}};
}
Effects effects(RopeInstruction& r) {
  return {.reads = {queries_of(r), keys_of(r), values_of(r)}, .writes = {{queries_of(r)}, {keys_of(r)}}};
}
Effects effects(AttentionInstruction& a) {
  Effects all{.reads = {}, .writes = {{out_of(a), &a.keeps_out}}};
  const RopeInstruction& r = a.rotation;
  if (a.in.stride == 0) all.reads = {queries_of(r), keys_of(r), values_of(r), queries_of(a)};
  return all;
}
Effects effects(PutInstruction& p) { return {.reads = {span(p.x, p.x_stride, p.rows, p.columns)}, .writes = {}}; }

}  // namespace

Span input_of(const MatmulInstruction& p) { return span(p.x, p.x_stride, p.rows, p.k); }
Span out_of(const MatmulInstruction& p) { return span(p.out, p.out_stride, p.rows, p.n); }
// The results of all choices of a row lie side by side.
Span gated_of(const MatmulInstruction& p) {
  const int64_t choices = p.experts.part == ExpertPart::kIn ? p.experts.choice.top_k : 1;
  return span(p.gated, p.gated_stride, p.rows, choices * p.n / 2);
}
Span out_of(const NormInstruction& n) { return span(n.out, n.out_stride, n.rows, int64_t{n.groups} * n.columns); }
// The result may have 16-bit elements, which no Exchange passes on. Then the span covers the same bytes.
Span out_of(const AttentionInstruction& a) {
  const AttentionParams& p = a.params;
  const auto* out = static_cast<const float*>(p.out);
  if (p.out_type == RowType::kFloat) return span(out, p.out_stride, a.sequences, int64_t{p.heads} * p.value_dim);
  const int64_t stride = (p.out_stride + 1) / 2, columns = (int64_t{p.heads} * p.value_dim + 1) / 2;
  return span(out, stride, a.sequences, columns);
}

Effects effects_of(Instruction& in) {
  switch (in.kind) {
    case Instruction::Kind::kMatmul:
      return effects(in.matmul);
    case Instruction::Kind::kNorm:
      return effects(in.norm);
    case Instruction::Kind::kGather:
      return effects(in.gather);
    case Instruction::Kind::kGlu:
      return effects(in.glu);
    case Instruction::Kind::kRope:
      return effects(in.rotation);
    case Instruction::Kind::kAttention:
      return effects(in.attention);
    case Instruction::Kind::kPut:
      return effects(in.put);
  }
  return {};
}

}  // namespace sluice::cuda
