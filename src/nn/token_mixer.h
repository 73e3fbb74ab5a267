// What mixes the tokens of a sequence in a layer: attention over cached keys, or a recurrence with a state of fixed
// size. The decoder knows no more of it than this; which one a layer has is data (LayerSpec::mixer).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "batch/batch.h"
#include "nn/attention/kv_cache.h"
#include "nn/attention/rope.h"
#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

// What a step gives a mixer.
struct TokenMixerStep {
  const BatchView& batch;
  const Rope::Rows* rope = nullptr;        // null: no rotation
  const Rope::Rows* query_rope = nullptr;  // of the queries, where it is not that of the keys
  const KvCache::Layer* kv = nullptr;      // the layer's keys and values, where kv_shape() asks for them, or another's
  std::span<const Tensor> side{};          // what the decoder's side stream carries
  Tensor state{};                          // [slots, state_values()] fp32, rows strided, by Batch::state_slots

  // Attention of the step's queries over the layer's cache; heads, scale and masks are the caller's to add.
  ops::AttentionArgs attention(const Tensor& out, const Tensor& q) const {
    ops::AttentionArgs args;
    args.out = out, args.q = q;
    args.k_cache = kv->k, args.v_cache = kv->v;
    args.query_start = batch.query_start, args.kv_len = batch.kv_len;
    args.block_table = block_table(), args.block_table_stride = batch.block_table_stride;
    return args;
  }

  // Where the layer's keys and values go and are.
  Indices slots() const { return batch.slots_of(kv->group); }
  Indices block_table() const { return batch.block_table_of(kv->group); }
  ops::Sequences sequences() const { return {batch.query_start, batch.kv_len, batch.state_slots}; }
};

class TokenMixer {
 public:
  virtual ~TokenMixer() = default;
  // out = or += mix(x); both [tokens, hidden]. Writes the step's keys, values and states.
  virtual void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                          bool accumulate) const = 0;
  virtual DType input_type(const ops::Ctx&, int64_t) const { return &kFloat32; }  // of x, see ops::input_type
  virtual int64_t floats_per_token() const = 0;                                   // of the arena
  virtual std::optional<KvShape> kv_shape() const { return std::nullopt; }
  virtual int64_t state_values() const { return 0; }  // fp32, per sequence
};

// Builds the mixer of a layer whose tensors are below `layer` ("model.layers.0").
using MakeTokenMixer = std::function<std::unique_ptr<TokenMixer>(const Weights& layer, int hidden)>;

// [columns, rows] of a small matrix [rows, columns]; nothing of nothing (a dry run).
std::vector<float> transposed(const std::vector<float>& matrix, int64_t rows);
// Decays as recurrences store them, A_log: -e^x of every value.
std::vector<float> decay_rates(std::vector<float> logs);

}  // namespace sluice
