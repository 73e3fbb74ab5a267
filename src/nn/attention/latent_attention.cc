// Latent attention: the projections around attention over latent vectors.
#include "nn/attention/latent_attention.h"

#include <algorithm>

#include "nn/attention/key_ranks.h"
#include "ops/gathered_keys.h"

namespace sluice {
namespace {

// Rows whose selected keys are copied at a time if the cache is fp32; twice as many if it has 16 bits.
constexpr int64_t kGatheredRows = 8;

// The query projection stores each head as [nope, rope]; returns its rows as all nope parts, then all rope parts.
std::vector<RowRange> split_rows(const LatentAttentionSpec& s) {
  const int64_t stride = s.nope_dim + s.rope_dim;
  std::vector<RowRange> rows;
  for (int h = 0; h < s.heads; ++h) rows.push_back({h * stride, s.nope_dim});
  for (int h = 0; h < s.heads; ++h) rows.push_back({h * stride + s.nope_dim, s.rope_dim});
  return rows;
}

}  // namespace

LatentAttention::LatentAttention(const Weights& w, const LatentAttentionSpec& s, int hidden) : spec_(s) {
  const int64_t q_width = int64_t{s.heads} * (s.nope_dim + s.rope_dim);
  const std::optional<RowRange> part = even_part(w.context().ranks, s.heads);
  Linear::Split queries, results;
  if (part) {
    queries.outputs = {scaled(*part, s.nope_dim), scaled(*part, s.rope_dim, int64_t{s.heads} * s.nope_dim)};
    results.inputs = scaled(*part, s.value_dim);
    spec_.heads = static_cast<int>(part->count);
    copies_ = w.context().ranks.size;
  }
  if (s.q_rank > 0) {
    q_a_ = Linear(w, {{"q_a_proj", s.q_rank}}, hidden, s.bias);
    q_norm_ = Norm(w, "q_a_layernorm", s.q_rank, s.norm);
    q_b_ = Linear(w, {{"q_b_proj", q_width, split_rows(s)}}, s.q_rank, false, queries);
  } else {
    q_b_ = Linear(w, {{"q_proj", q_width, split_rows(s)}}, hidden, false, queries);
  }
  if (s.indexer.indexes()) indexer_ = TokenIndexer(w / "indexer", s.indexer, s.q_rank, hidden);
  kv_a_ = Linear(w, {{"kv_a_proj_with_mqa", s.kv_rank + s.rope_dim}}, hidden, s.bias);
  std::vector<float> norm = (w / "kv_a_layernorm").vector("weight", s.kv_rank);
  for (float& weight : norm) weight *= s.latent_scale;
  kv_norm_ = Norm(w.context(), norm, s.norm);
  const RowRange heads = part.value_or(RowRange{0, s.heads});
  load_kv_b(w, heads, s.heads);
  adapt_kv_b(w, heads, s.heads);
  w.context().note_attention(spec_.heads * w.context().key_parts, s.kv_rank);
  attend_floats_ = attend_floats(w.context(), spec_.heads, s.kv_rank + s.rope_dim, s.kv_rank);
  out_ = Linear(w, {{s.out, hidden}}, int64_t{s.heads} * s.value_dim, s.bias, results);
}

void LatentAttention::load_kv_b(const Weights& w, RowRange heads, int all) {
  LoadContext& context = w.context();
  const LatentAttentionSpec& s = spec_;
  const int64_t stride = s.nope_dim + s.value_dim;
  keys_ = StackedLinear(context, context.dtype, s.heads, s.kv_rank, s.nope_dim);
  values_ = StackedLinear(context, context.dtype, s.heads, s.value_dim, s.kv_rank);
  if (w.has("k_b_proj.weight")) {  // GGUF files store the two parts separately, with the key part transposed
    pack_heads(w, "k_b_proj", all, heads, keys_, s.kv_rank, s.nope_dim);
    return pack_heads(w, "v_b_proj", all, heads, values_, s.value_dim, s.kv_rank);
  }
  const TensorEntry* entry = (w / "kv_b_proj").tensor("weight", {all * stride, s.kv_rank}, Weights::Stored::kAnyWay);
  if (entry == nullptr || !context.packs()) return;
  Buffer computed;
  const Tensor whole = entry->in_memory(context.queue.threads(), computed).view();
  const Tensor matrix = whole.slice_rows(heads.begin * stride, heads.count * stride);
  for (int h = 0; h < s.heads; ++h) {
    Buffer memory;
    keys_.pack(context, h, 0, transpose(matrix.slice_rows(h * stride, s.nope_dim), memory));
    values_.pack(context, h, 0, matrix.slice_rows(h * stride + s.nope_dim, s.value_dim));
  }
}

// Adapters change kv_b_proj, which both parts are of.
void LatentAttention::adapt_kv_b(const Weights& w, RowRange heads, int64_t all) {
  const LoadContext& context = w.context();
  if (context.lora == nullptr) return;
  const LatentAttentionSpec& s = spec_;
  const int64_t stride = int64_t{s.nope_dim} + s.value_dim;
  const auto add = [&](int64_t inputs, int64_t outputs, int64_t first, bool transposed) {
    return context.lora->add_heads(
        {.module = w.prefix() + "kv_b_proj",
         .module_outputs = all * stride,
         .rows = {{0, outputs}},
         .tensor = w.prefix() + "kv_b_proj.weight"},
        {.module_inputs = s.kv_rank, .inputs = {0, inputs}, .elsewhere = context.elsewhere},
        {.count = all, .held = heads, .stride = stride, .first = first, .transposed = transposed});
  };
  keys_.adapt(add(s.nope_dim, s.kv_rank, 0, true));
  values_.adapt(add(s.kv_rank, s.value_dim, s.nope_dim, false));
}

// Packs the matrices of some heads from a tensor [all, rows, columns].
void LatentAttention::pack_heads(const Weights& w, const std::string& name, int all, RowRange heads,
                                 StackedLinear& into, int64_t rows, int64_t columns) {
  LoadContext& context = w.context();
  const TensorEntry* entry = (w / name).tensor("weight", {all, rows, columns});
  if (entry == nullptr || !context.packs()) return;
  for (int h = 0; h < into.count(); ++h) {
    for (const Tensor& matrix : entry->rows((heads.begin + h) * rows, rows)) into.pack(context, h, 0, matrix);
  }
}

int64_t LatentAttention::floats_per_token() const {
  const LatentAttentionSpec& s = spec_;
  // Adapters also take a copy of the queries' unrotated parts, before the last two, and lists of slots.
  const int64_t later = s.kv_rank + s.value_dim;
  const int64_t per_head = s.nope_dim + s.rope_dim + s.kv_rank + s.rope_dim + std::max<int64_t>(later, s.nope_dim) + 2;
  return s.q_rank + s.heads * per_head + s.kv_rank + s.rope_dim + indexer_.floats_per_token() + attend_floats_;
}

TokenMixer::Selection LatentAttention::selection() const {
  const int top_k = spec_.indexer.top_k;
  if (top_k == 0) return {};
  const int64_t bytes = ops::GatheredKeys::bytes(kGatheredRows, top_k, 4 * (int64_t{spec_.kv_rank} + spec_.rope_dim));
  return {.columns = top_k, .floats = (bytes + 3) / 4};
}

// Scales queries by position. This is a rotation by angle zero whose cosines are the factors.
void LatentAttention::scale_queries(ops::Ctx& c, const Rope::Rows& rope, const Tensor& q) const {
  const Tensor shape(q.data, &kFloat32, {1, 1, 8, rope.cos_sin.shape[1]});  // stands for caches that are not touched
  ops::RopeStoreArgs args;
  args.q = q, args.cos_sin = rope.cos_sin, args.positions = rope.rows;
  args.k_cache = args.v_cache = shape;
  ops::rope_store(c, args);
}

// Attends to the selected tokens if there is a selection, else to all.
void LatentAttention::attend_to_selected(ops::Ctx& c, const TokenMixerStep& step, ops::AttentionArgs args) const {
  if (!spec_.indexer.selects(step)) return attend(c, args);
  Arena::Scope scope(c.arena);
  args.selected = step.selected;
  args.gathered = c.arena.take(&kInt8, {selection().floats * 4});
  ops::attention(c, args);
}

void LatentAttention::with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                                bool accumulate, const NextNorm* next) const {
  const LatentAttentionSpec& s = spec_;
  const int64_t heads = s.heads, key_dim = s.kv_rank + s.rope_dim, tokens = x.rows();
  Tensor q_in = x;
  if (s.q_rank > 0) {
    q_in = q_a_(c, x);
    q_norm_.in_place(c, q_in);
  }
  if (s.indexer.indexes()) indexer_(c, step, x, q_in);
  const Tensor q = q_b_(c, q_in);
  if (step.query_rope != nullptr) scale_queries(c, *step.query_rope, q);
  const Tensor latent_and_key = kv_a_(c, x);
  const Tensor latent = latent_and_key.slice_columns(0, s.kv_rank);
  kv_norm_.in_place(c, latent);

  const Tensor queries = c.arena.take(&kFloat32, {tokens, heads * key_dim});
  keys_.heads(c, queries, key_dim, q.slice_columns(0, heads * s.nope_dim), s.nope_dim);
  ops::latent_store(c, {.q = queries,
                        .q_rope = q.slice_columns(heads * s.nope_dim, heads * s.rope_dim),
                        .latent = latent,
                        .k_rope = latent_and_key.slice_columns(s.kv_rank, s.rope_dim),
                        .cos_sin = step.rope->cos_sin,
                        .interleaved = s.interleaved_rope,
                        .k_cache = step.kv->k,
                        .positions = step.rope->rows,
                        .slots = step.slots()});
  const Tensor mixed = c.arena.take(&kFloat32, {tokens, heads * s.kv_rank});
  ops::AttentionArgs args = step.attention(mixed, queries);
  args.v_cache = {}, args.value_dim = s.kv_rank;
  args.heads = s.heads, args.scale = s.scale;
  attend_to_selected(c, step, args);
  const Tensor values = c.arena.take(&kFloat32, {tokens, heads * s.value_dim});
  values_.heads(c, values, s.value_dim, mixed, s.kv_rank);
  out_.into(c, out, values, accumulate, next);
}

}  // namespace sluice
