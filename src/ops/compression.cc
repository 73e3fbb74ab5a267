// Checked calls of the ops of compressed attention.
#include "ops/compression.h"

#include "ops/checks.h"

namespace sluice::ops {
namespace {

const CompressionOps& table_of(const Ctx& ctx) {
  CHECK(ctx.ops.compression != nullptr, "the device has no ops of compressed attention");
  return *ctx.ops.compression;
}

}  // namespace

void compress(Ctx& ctx, const CompressArgs& args) {
  check_entries(args.entries);
  check_matrix(args.x, "x", -1, args.series * args.entries.dim);
  check_matrix(args.gates, "gates", args.x.shape[0], args.x.shape[1]);
  CHECK(args.series == 1 || args.series == 2, "{} series", args.series);
  CHECK(args.bias != nullptr && args.norm != nullptr);
  check_matrix(args.cos_sin, "cos_sin", -1, -1);
  CHECK(args.cos_sin.shape[1] <= args.entries.dim && args.cos_sin.shape[1] % 2 == 0);
  check_paged(args.sequences, args.x.shape[0], args.entries.cache.shape[2]);
  check_matrix(args.state, "state", -1, args.series * 3 * args.entries.dim);
  CHECK(args.slots.size() == args.sequences.kv_len.size());
  for (const int32_t slot : args.slots) CHECK(slot >= 0 && slot < args.state.shape[0], "slot {}", slot);
  for (const int32_t length : args.sequences.kv_len) CHECK(length <= args.cos_sin.shape[0], "kv_len {}", length);
  table_of(ctx).compress(ctx.queue, args);
}

void entry_attention(Ctx& ctx, const EntryAttentionArgs& args) {
  CHECK(args.k_cache.shape.rank() == 4 && args.k_cache.dense() && args.k_cache.shape[1] == 1, "k {}",
        args.k_cache.shape.str());
  const int64_t dim = args.k_cache.shape[3];
  CHECK(args.heads > 0 && args.window > 0);
  check_matrix(args.q, "q", -1, args.heads * dim);
  check_matrix(args.out, "out", args.q.shape[0], args.heads * dim);
  check_paged(args.sequences, args.q.shape[0], args.k_cache.shape[2]);
  if (args.entries.cache.data != nullptr) {
    check_entries(args.entries);
    CHECK(args.entries.dim == dim && args.entries.cache.shape[2] == args.k_cache.shape[2]);
  }
  if (args.selected.data != nullptr) {
    CHECK(args.selected.shape.rank() == 2 && args.selected.shape[0] == args.q.shape[0]);
    check_list(args.selected, "selected", args.selected.shape.elements());
  }
  table_of(ctx).entry_attention(ctx.queue, args);
}

void rotate(Ctx& ctx, const RotateArgs& args) {
  check_matrix(args.x, "x", static_cast<int64_t>(args.positions.size()), -1);
  check_matrix(args.cos_sin, "cos_sin", -1, -1);
  CHECK(args.dim > 0 && args.x.shape[1] % args.dim == 0, "heads of {} in {}", args.dim, args.x.shape.str());
  CHECK(args.cos_sin.shape[1] <= args.dim && args.cos_sin.shape[1] % 2 == 0);
  for (const int32_t p : args.positions) CHECK(p >= 0 && p < args.cos_sin.shape[0], "position {}", p);
  table_of(ctx).rotate(ctx.queue, args);
}

void store_keys(Ctx& ctx, const StoreKeysArgs& args) {
  CHECK(args.k_cache.shape.rank() == 4 && args.k_cache.dense() && args.k_cache.shape[1] == 1, "k {}",
        args.k_cache.shape.str());
  check_matrix(args.x, "x", static_cast<int64_t>(args.slots.size()), args.k_cache.shape[3]);
  const int64_t slots = args.k_cache.shape[0] * args.k_cache.shape[2];
  for (const int32_t slot : args.slots) CHECK(slot >= 0 && slot < slots, "slot {} of {}", slot, slots);
  table_of(ctx).store_keys(ctx.queue, args);
}

void stream_weights(Ctx& ctx, const StreamWeightsArgs& args) {
  const int64_t n = args.streams;
  CHECK(n > 0 && args.iterations > 0 && args.scale != nullptr && args.base != nullptr);
  check_matrix(args.logits, "logits", -1, args.logits.shape[1] == n ? n : (2 + n) * n);
  table_of(ctx).stream_weights(ctx.queue, args);
}

}  // namespace sluice::ops
