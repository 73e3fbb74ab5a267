// The token mixer of a layer mixes the tokens of a sequence: attention over cached keys, or a recurrence with a state
// of fixed size. The decoder sees only this interface; LayerSpec::mixer chooses the implementation.
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

struct NextNorm;  // nn/layers.h

// What a step passes to a token mixer.
struct TokenMixerStep {
  const BatchView& batch;
  const Rope::Rows* rope = nullptr;        // null: no rotation
  const Rope::Rows* query_rope = nullptr;  // rotation of the queries, if it differs from the keys'
  const KvCache::Layer* kv = nullptr;  // keys and values of this layer if kv_shape() asks for them, or of another layer
  const KvCache::Layer* earlier_kv = nullptr;  // those of LayerSpec::kv_from; null: it is -1
  std::span<const Tensor> auxiliary{};         // the decoder's auxiliary stream
  int first = 0;                               // see ops::AttentionArgs
  Tensor state{};  // [slots, state_values()] fp32, strided rows, indexed by Batch::state_slots
  // [tokens, Selection::columns] int32: the tokens that rows see, for this layer to write or as an earlier one left it.
  Tensor selected{};

  // Attention of the step's queries over the layer's cache. The caller adds heads, scale and masks. If ranks divide
  // the keys, the caller must be attend() (attention/key_ranks.h).
  ops::AttentionArgs attention(const Tensor& out, const Tensor& q) const {
    ops::AttentionArgs args;
    args.out = out, args.q = q;
    args.k_cache = kv->k, args.v_cache = kv->v;
    args.query_start = batch.query_start, args.kv_len = batch.kv_len;
    args.block_table = block_table(), args.block_table_stride = batch.block_table_stride;
    args.first = first, args.share = kv->share;
    return args;
  }

  // For ops::rope_store: rotates queries and keys in place, if the layer has a rotation, and stores keys and values.
  ops::RopeStoreArgs rotation(const Tensor& q, const Tensor& k, const Tensor& v) const {
    ops::RopeStoreArgs args;
    args.q = q, args.k = k, args.v = v;
    args.cos_sin = rope != nullptr ? rope->cos_sin : Tensor();
    args.positions = rope != nullptr ? rope->rows : batch.positions;
    args.k_cache = kv->k, args.v_cache = kv->v, args.slots = slots();
    return args;
  }

  // Where the layer's keys and values are read and written.
  Indices slots() const { return batch.slots_of(kv->group); }
  Indices block_table() const { return batch.block_table_of(kv->group); }
  ops::Sequences sequences() const { return {batch.query_start, batch.kv_len, batch.state_slots}; }
};

class TokenMixer {
 public:
  // What a mixer needs for texts of which it sees a selection of the tokens.
  struct Selection {
    int columns = 0;     // tokens that a row sees at most; 0: all
    int64_t floats = 0;  // arena floats of a step, for any number of tokens
  };
  virtual ~TokenMixer() = default;
  // out = or += mix(x); both [tokens, hidden]. Writes the step's keys, values and states.
  virtual void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                          bool accumulate) const = 0;
  // The same, then `next` unless it is null. A mixer that ends with a sum over ranks computes both at once.
  virtual void with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x, bool accumulate,
                         const NextNorm* next) const;
  virtual DType input_type(const ops::Ctx&, int64_t) const { return &kFloat32; }  // type of x; see ops::input_type
  virtual int64_t floats_per_token() const = 0;                                   // arena floats
  virtual std::optional<KvShape> kv_shape() const { return std::nullopt; }
  // Why the keys of a token must lie at the place of its position in the block table. Null: they may lie anywhere, as
  // positions enter only through TokenMixerStep::rope.
  virtual const char* needs_places() const { return "one of its layers is no plain attention"; }
  virtual int64_t state_values() const { return 0; }  // fp32, per sequence
  virtual Selection selection() const { return {}; }
};

// Builds the token mixer of a layer whose tensors are below `layer` ("model.layers.0").
using MakeTokenMixer = std::function<std::unique_ptr<TokenMixer>(const Weights& layer, int hidden)>;

// Transposes a small matrix [rows, columns] to [columns, rows]. Returns an empty vector for an empty one (a dry run).
std::vector<float> transposed(const std::vector<float>& matrix, int64_t rows);
// Converts decays from the stored form A_log: -e^x of each value.
std::vector<float> decay_rates(std::vector<float> logs);

}  // namespace sluice
