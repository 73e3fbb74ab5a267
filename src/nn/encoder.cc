// The encoder: loads its layers and runs them through the op table.
#include "nn/encoder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "nn/loading/stage.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kFarthest = 128;  // all larger distances share one bucket

// Returns the bucket of a key at `distance` from its query. Small distances have a bucket each, larger ones share
// buckets on a logarithmic scale. Half of the buckets are for keys after the query.
int bucket_of(int distance, int buckets) {
  const int half = buckets / 2, exact = half / 2, away = std::abs(distance);
  const int side = distance > 0 ? half : 0;
  if (away < exact) return side + away;
  const float scale = std::log(static_cast<float>(kFarthest) / static_cast<float>(exact));
  const float far = std::log(static_cast<float>(away) / static_cast<float>(exact)) / scale;
  return side + std::min(half - 1, exact + static_cast<int>(far * static_cast<float>(half - exact)));
}

// Expands a table [buckets, heads] to [heads, 2 * kFarthest + 1].
std::vector<float> bias_by_distance(const std::vector<float>& table, int buckets, int heads) {
  std::vector<float> bias;
  for (int head = 0; head < heads && !table.empty(); ++head) {
    for (int distance = -kFarthest; distance <= kFarthest; ++distance) {
      bias.push_back(table[static_cast<size_t>(bucket_of(distance, buckets) * heads + head)]);
    }
  }
  return bias;
}

AttentionSpec attention_of(const EncoderSpec& s, const EncoderLayerSpec& layer, const std::vector<float>& bias) {
  AttentionSpec attention = s.attention;
  attention.causal = false;
  attention.window = layer.window;
  attention.relative_bias = bias;
  attention.relative_reach = kFarthest;
  return attention;
}

struct Block {
  Attention attention;
  Mlp mlp;
  Norm attention_norm, mlp_norm;

  Block(const Weights& w, const EncoderSpec& s, const EncoderLayerSpec& layer, const std::vector<float>& bias)
      : attention(w, attention_of(s, layer, bias), s.hidden), mlp(w, s.mlp, s.hidden) {
    if (layer.first_norm) attention_norm = Norm(w, s.names.attention_norm, s.hidden, s.norm);
    mlp_norm = Norm(w, s.names.mlp_norm, s.hidden, s.norm);
  }
};

class Encoder final : public Model {
 public:
  Encoder(EncoderSpec spec, LoadContext& context, int max_len) : spec_(std::move(spec)) {
    shape_ = {.family = spec_.family,
              .vocab = spec_.vocab,
              .width = spec_.hidden,
              .token_types = spec_.types > 0,
              .max_positions = spec_.max_positions,
              .capturable = false,
              .kv = {},
              .state = {},
              .rope_class = [](int) { return 0; }};
    const Weights body = Weights(context) / spec_.names.body;
    const size_t layers = spec_.layers.size();  // of one size
    stage_ =
        PipelineStage(context, {.costs = std::vector<int64_t>(layers, 1), .cuts = std::vector<bool>(layers, true)});
    load_tables(body);
    const int positions = max_len > 0 ? max_len : spec_.max_positions;
    for (const RopeSpec& rope : spec_.ropes) ropes_.emplace_back(rope, positions, context);
    std::vector<float> bias;
    if (!spec_.relative_bias.empty()) {
      const int heads = spec_.attention.heads;
      const Shape shape{spec_.relative_buckets, heads};
      bias = bias_by_distance((body / spec_.relative_bias).vector("weight", shape), spec_.relative_buckets, heads);
    }
    load_blocks(body, bias);
    const OtherStage of_last(context, !stage_.last());
    if (!spec_.names.final_norm.empty()) final_norm_ = Norm(body, spec_.names.final_norm, spec_.hidden, spec_.norm);
  }

  const ModelShape& shape() const override { return shape_; }

  size_t activation_bytes(int tokens, int rows) const override {
    const int64_t normed = spec_.placement == NormPlacement::kBefore ? spec_.hidden : 0;
    const int64_t block = normed + std::max(blocks_[0].attention.floats_per_token(), Mlp::floats_per_token(spec_.mlp));
    const int64_t embeddings = int64_t{width()} * (spec_.names.projection.empty() ? 1 : 2);  // besides x
    int64_t floats = tokens * (spec_.hidden + std::max(block, embeddings)) + int64_t{rows} * spec_.hidden;
    for (const Rope& rope : ropes_) floats += rope.step_floats(tokens);
    constexpr int64_t kTensors = 16;  // tensors alive at once; each may waste up to 64 bytes
    return floats * sizeof(float) + (kTensors + ropes_.size()) * 64;
  }

  StepOutput forward(ops::Ctx& c, const BatchView& batch, KvCache& kv, StateCache&) override {
    std::vector<Rope::Rows> ropes;
    for (Rope& rope : ropes_) ropes.push_back(rope.rows(c, batch));
    const Tensor x = c.arena.take(&kFloat32, {batch.size(), spec_.hidden});
    if (stage_.first()) {
      embed(c, batch, x);
    } else {
      stage_.receive(c, {&x, 1});
    }
    const PipelineStage::Pass& pass = stage_.passes().front();
    for (int i = pass.begin; i < pass.end; ++i) {
      const EncoderLayerSpec& layer = spec_.layers[i];
      const TokenMixerStep step{
          .batch = batch, .rope = ropes.empty() ? nullptr : &ropes[layer.rope], .kv = &kv.layer(i)};
      Arena::Scope scope(c.arena);
      run_block(c, blocks_[block_of_[i]], layer, step, x);
    }
    if (!stage_.last()) {
      stage_.send(c, {&x, 1});
      return {};
    }
    const Tensor rows = c.arena.take(&kFloat32, {static_cast<int64_t>(batch.sample_rows.size()), spec_.hidden});
    ops::gather_rows(c, rows, x, batch.sample_rows);
    if (!spec_.names.final_norm.empty()) final_norm_.in_place(c, rows);
    return {.hidden = rows};
  }

 private:
  int width() const { return spec_.names.projection.empty() ? spec_.hidden : spec_.embedding_width; }

  // Layers of one name share a block, but not with layers of another stage.
  void load_blocks(const Weights& body, const std::vector<float>& bias) {
    std::map<std::pair<std::string, bool>, int> blocks;
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const EncoderLayerSpec& layer = spec_.layers[i];
      const bool held = stage_.holds(static_cast<int>(i));
      const OtherStage scope(body.context(), !held);
      const auto [found, fresh] = blocks.emplace(std::pair(layer.name, held), static_cast<int>(blocks_.size()));
      if (fresh) blocks_.emplace_back(body / layer.name, spec_, layer, bias);
      block_of_.push_back(found->second);
      shape_.kv.push_back(*blocks_[found->second].attention.kv_shape());
      shape_.kv.back().held = held;
    }
  }

  void load_tables(const Weights& body) {
    const OtherStage of_first(body.context(), !stage_.first());
    const EncoderNames& names = spec_.names;
    words_ = Embedding(body, names.words, spec_.vocab, width());
    if (!names.positions.empty()) {
      const int64_t rows = int64_t{spec_.max_positions} + spec_.position_offset;
      positions_ = Embedding(body, names.positions, rows, width()).rows_from(spec_.position_offset);
    }
    if (spec_.types > 0) types_ = Embedding(body, names.types, spec_.types, width());
    embedding_norm_ = Norm(body, names.embedding_norm, width(), spec_.norm);
    if (!names.projection.empty()) projection_ = Linear(body, {{names.projection, spec_.hidden}}, width(), true);
  }

  void embed(ops::Ctx& c, const BatchView& batch, const Tensor& x) const {
    const bool projected = !spec_.names.projection.empty();
    Arena::Scope scope(c.arena);
    const Tensor sum = projected ? c.arena.take(&kFloat32, {batch.size(), width()}) : x;
    words_.into(c, sum, batch.tokens);
    const auto add = [&](const Embedding& table, const Indices& ids) {
      Arena::Scope of_table(c.arena);
      ops::add(c, sum, table(c, ids));
    };
    if (spec_.types > 0) add(types_, batch.types);
    if (!spec_.names.positions.empty()) add(positions_, batch.positions);
    embedding_norm_.in_place(c, sum);
    if (projected) projection_.into(c, x, sum, false);
  }

  void run_block(ops::Ctx& c, const Block& block, const EncoderLayerSpec& layer, const TokenMixerStep& step,
                 const Tensor& x) const {
    if (spec_.placement == NormPlacement::kAfter) {
      run_sublayer(c, [&] { block.attention(c, step, x, x, true); });
      block.attention_norm.in_place(c, x);
      run_sublayer(c, [&] { block.mlp(c, x, x, true); });
      block.mlp_norm.in_place(c, x);
      return;
    }
    const Tensor normed = c.arena.take(&kFloat32, x.shape);
    if (layer.first_norm) block.attention_norm.into(c, normed, x);
    run_sublayer(c, [&] { block.attention(c, step, x, layer.first_norm ? normed : x, true); });
    block.mlp_norm.into(c, normed, x);
    run_sublayer(c, [&] { block.mlp(c, x, normed, true); });
  }

  template <class Sublayer>
  static void run_sublayer(ops::Ctx& c, Sublayer&& sublayer) {
    Arena::Scope scope(c.arena);
    sublayer();
  }

  EncoderSpec spec_;
  ModelShape shape_;
  PipelineStage stage_;
  Embedding words_, positions_, types_;
  Norm embedding_norm_, final_norm_;
  Linear projection_;
  std::vector<Block> blocks_;
  std::vector<int> block_of_;  // block of each layer
  std::vector<Rope> ropes_;
};

}  // namespace

std::unique_ptr<Model> encoder(EncoderSpec spec, LoadContext& context, int max_len) {
  return std::make_unique<Encoder>(std::move(spec), context, max_len);
}

std::string below_body(const LoadContext& context, const std::string& prefix, const std::string& tensor) {
  const std::string name = fmt::format("{}.{}.weight", prefix, tensor);
  return context.checkpoint.find(name) != nullptr ? prefix : std::string();
}

std::unique_ptr<Model> encoder_for_task(EncoderSpec spec, LoadContext& context, int max_len, ops::Pooling pooling,
                                        std::vector<DenseSpec> head, const std::vector<std::string>& unused) {
  if (context.task == Task::kGenerate) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: {} is an encoder and does not generate text (use --task embed or --task score)",
                            context.checkpoint.folder, spec.family));
  }
  const int hidden = spec.hidden;
  const Weights top(context);
  context.checkpoint.config.ignore("tie_word_embeddings");  // concerns a head that is not loaded
  std::unique_ptr<Model> body = encoder(std::move(spec), context, max_len);
  if (context.task == Task::kScore) {
    const OtherStage of_last(context, !context.stage.last());
    head.back().outputs = read_labels(context.checkpoint.config);
    Pooler pooler{.pooling = pooling, .dense = dense_layers(top, hidden, head)};
    body = pooled_model(std::move(body), std::move(pooler));
  }
  for (const auto& [name, entry] : context.checkpoint.tensors()) {
    const auto below = [&name = name](const std::string& prefix) { return name.starts_with(prefix); };
    const bool counts = name.ends_with("embeddings.position_ids");  // 0, 1, 2, ... in old checkpoints
    if (counts || std::any_of(unused.begin(), unused.end(), below)) context.used.insert(name);
  }
  return body;
}

}  // namespace sluice
