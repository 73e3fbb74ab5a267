// Checked calls of the ops that carry a state from row to row, and of the related gates.
#include "ops/checks.h"

namespace sluice::ops {
namespace {

void check_sequences(const Sequences& s, int64_t tokens) {
  CHECK(s.query_start.size() == s.kv_len.size() + 1 && s.query_start[0] == 0 && s.query_start.back() == tokens,
        "{} rows in sequences of {}", s.query_start.empty() ? -1 : s.query_start.back(), tokens);
  CHECK(s.slots.size() == s.kv_len.size(), "{} slots for {} sequences", s.slots.size(), s.kv_len.size());
  for (size_t i = 0; i < s.kv_len.size(); ++i) {
    const int rows = s.query_start[i + 1] - s.query_start[i];
    CHECK(rows >= 0 && s.kv_len[i] >= rows, "sequence {}: {} rows, kv_len {}", i, rows, s.kv_len[i]);
  }
}

void check_state(const Tensor& state, int64_t values, const Sequences& s) {
  if (values == 0) return;  // a convolution of width 1
  check_matrix(state, "state", -1, values);
  for (const int32_t slot : s.slots) CHECK(slot >= 0 && slot < state.shape[0], "slot {} of {}", slot, state.shape[0]);
}

}  // namespace

void multiply(Ctx& ctx, Tensor out, Tensor x, Activation activation) {
  check_matrix(out, "out", -1, -1);
  check_matrix(x, "x", out.shape[0], out.shape[1]);
  ctx.ops.multiply(ctx.queue, out, x, activation);
}

void softplus(Ctx& ctx, Tensor x, const float* bias, float low, float high) {
  check_matrix(x, "x", -1, -1);
  CHECK(low <= high, "from {} to {}", low, high);
  ctx.ops.softplus(ctx.queue, x, bias, low, high);
}

void causal_conv(Ctx& ctx, const CausalConvArgs& args) {
  check_matrix(args.x, "x", -1, -1);
  const int64_t tokens = args.x.shape[0], channels = args.x.shape[1];
  check_matrix(args.out, "out", tokens, channels);
  CHECK(args.out.data != args.x.data, "a convolution cannot be in place");
  CHECK(args.width >= 1 && args.width <= kMaxConvWidth && args.weight != nullptr, "width {}", args.width);
  check_sequences(args.sequences, tokens);
  check_state(args.state, (args.width - 1) * channels, args.sequences);
  ctx.ops.causal_conv(ctx.queue, args);
}

void selective_scan(Ctx& ctx, const SelectiveScanArgs& args) {
  check_matrix(args.x, "x", -1, -1);
  const int64_t tokens = args.x.shape[0], channels = args.x.shape[1];
  check_matrix(args.out, "out", tokens, channels);
  check_matrix(args.dt, "dt", tokens, channels);
  check_matrix(args.b, "b", tokens, -1);
  check_matrix(args.c, "c", tokens, args.b.shape[1]);
  CHECK(args.a != nullptr);
  check_sequences(args.sequences, tokens);
  check_state(args.state, args.b.shape[1] * channels, args.sequences);
  ctx.ops.selective_scan(ctx.queue, args);
}

void head_scan(Ctx& ctx, const HeadScanArgs& args) {
  CHECK(args.heads > 0 && args.groups > 0 && args.heads % args.groups == 0, "{} heads in {} groups", args.heads,
        args.groups);
  check_matrix(args.x, "x", -1, -1);
  const int64_t tokens = args.x.shape[0], width = args.x.shape[1];
  check_matrix(args.out, "out", tokens, width);
  check_matrix(args.b, "b", tokens, -1);
  check_matrix(args.c, "c", tokens, args.b.shape[1]);
  CHECK(width % args.heads == 0 && args.b.shape[1] % args.groups == 0, "x {}, b {}", args.x.shape.str(),
        args.b.shape.str());
  if (args.dt.data != nullptr) check_matrix(args.dt, "dt", tokens, args.heads);
  CHECK(args.a != nullptr);
  check_sequences(args.sequences, tokens);
  check_state(args.state, args.b.shape[1] / args.groups * width, args.sequences);
  ctx.ops.head_scan(ctx.queue, args);
}

void delta_rule(Ctx& ctx, const DeltaRuleArgs& args) {
  CHECK(args.heads > 0 && args.key_heads > 0 && args.heads % args.key_heads == 0, "{} heads over {} of the keys",
        args.heads, args.key_heads);
  check_matrix(args.v, "v", -1, -1);
  const int64_t tokens = args.v.shape[0], width = args.v.shape[1];
  check_matrix(args.out, "out", tokens, width);
  check_matrix(args.q, "q", tokens, -1);
  check_matrix(args.k, "k", tokens, args.q.shape[1]);
  CHECK(width % args.heads == 0 && args.q.shape[1] % args.key_heads == 0, "v {}, q {}", args.v.shape.str(),
        args.q.shape.str());
  const int64_t key_dim = args.q.shape[1] / args.key_heads;
  check_matrix(args.dt, "dt", tokens, args.dt.shape[1] == args.heads ? args.heads : args.heads * key_dim);
  check_matrix(args.beta, "beta", tokens, args.heads);
  CHECK(args.a != nullptr);
  check_sequences(args.sequences, tokens);
  check_state(args.state, key_dim * width, args.sequences);
  ctx.ops.delta_rule(ctx.queue, args);
}

void gated_lru(Ctx& ctx, const GatedLruArgs& args) {
  check_matrix(args.x, "x", -1, -1);
  const int64_t tokens = args.x.shape[0], channels = args.x.shape[1];
  check_matrix(args.out, "out", tokens, channels);
  check_matrix(args.input_gate, "input_gate", tokens, channels);
  check_matrix(args.recurrent_gate, "recurrent_gate", tokens, channels);
  CHECK(args.input_bias != nullptr && args.recurrent_bias != nullptr && args.rate != nullptr);
  check_sequences(args.sequences, tokens);
  check_state(args.state, channels, args.sequences);
  ctx.ops.gated_lru(ctx.queue, args);
}

void sum_rows(Ctx& ctx, const SumRowsArgs& args) {
  check_matrix(args.x, "x", -1, -1);
  CHECK(args.sums.dtype == &kFloat64 && args.sums.shape.rank() == 2 && args.sums.shape[1] == args.x.shape[1],
        "sums {} of rows {}", args.sums.shape.str(), args.x.shape.str());
  check_sequences(args.sequences, args.x.shape[0]);
  for (const int32_t slot : args.sequences.slots) {
    CHECK(slot >= 0 && slot < args.sums.shape[0], "slot {} of {}", slot, args.sums.shape[0]);
  }
  ctx.ops.sum_rows(ctx.queue, args);
}

}  // namespace sluice::ops
