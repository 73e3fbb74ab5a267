// The decoder: loads its layers and runs them through the op table.
#include "nn/decoder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "nn/loading/stage.h"
#include "nn/pooled.h"

namespace sluice {
namespace {

Norm optional_norm(const Weights& w, const std::string& name, const DecoderSpec& s,
                   const std::optional<NormSpec>& own = {}) {
  return name.empty() ? Norm() : Norm(w, name, s.hidden, own.value_or(s.norm));
}

const MlpSpec& mlp_of(const DecoderSpec& s, const LayerSpec& layer) { return layer.mlp ? *layer.mlp : s.mlp; }

MoeSpec moe_of(const DecoderSpec& s, const LayerSpec& layer) {
  MoeSpec moe = s.moe;
  if (layer.top_k > 0) moe.top_k = layer.top_k;
  return moe;
}

// Makes DecoderSpec's attention, unless the layer has its own token mixer.
std::unique_ptr<TokenMixer> make_mixer(const Weights& w, const DecoderSpec& s, const LayerSpec& layer) {
  if (layer.sublayers == Sublayers::kMlp) return nullptr;
  if (layer.mixer) return layer.mixer(w, s.hidden);
  AttentionSpec attention = s.attention;
  attention.scale *= layer.attention_scale;
  attention.window = layer.window;
  return std::make_unique<Attention>(w / s.names_of(layer).attention, attention, s.hidden);
}

struct Layer {
  Norm mixer_norm, mixer_post_norm, mlp_norm, mlp_post_norm;
  std::unique_ptr<TokenMixer> mixer;  // null: the layer has only an MLP
  Mlp mlp;                            // at most one of these is set
  Moe moe;
  std::unique_ptr<FeedForward> feed_forward;

  Layer(const Weights& w, const DecoderSpec& s, const LayerSpec& layer) : mixer(make_mixer(w, s, layer)) {
    const DecoderNames& names = s.names_of(layer);
    if (mixer != nullptr) {
      mixer_norm = optional_norm(w, names.attention_norm, s);
      mixer_post_norm = optional_norm(w, names.attention_post_norm, s, s.attention_post_norm);
    }
    if (layer.sublayers == Sublayers::kTokenMixer) return;
    mlp_norm = optional_norm(w, names.mlp_norm, s);
    mlp_post_norm = optional_norm(w, names.mlp_post_norm, s, s.mlp_post_norm);
    if (layer.feed_forward) {
      feed_forward = layer.feed_forward(w, s.hidden);
    } else if (layer.moe) {
      moe = Moe(w / names.mlp, moe_of(s, layer), s.hidden);
    } else {
      mlp = Mlp(w / names.mlp, mlp_of(s, layer), s.hidden);
    }
  }
};

// What a layer keeps in the caches: indices of its keys and values and of its state; -1: none.
struct Cached {
  int kv = -1, state = -1;
};

// Fills rows with sines, then cosines, of geometric frequencies (Vaswani et al. 2017, arXiv:1706.03762, in fairseq's
// order).
void fill_sinusoids(const Tensor& table) {
  const int64_t half = table.shape[1] / 2;
  for (int64_t p = 0; p < table.rows(); ++p) {
    float* row = table.f32() + p * table.row_stride;
    for (int64_t i = 0; i < half; ++i) {
      const auto frequency =
          static_cast<float>(std::exp(-std::log(10000.0) / static_cast<double>(half - 1) * static_cast<double>(i)));
      const float angle = static_cast<float>(p) * frequency;
      row[i] = std::sin(angle);
      row[half + i] = std::cos(angle);
    }
  }
}

// Tells the layers which adapters the rows of a step have, while it lives.
class AdapterScope {
 public:
  AdapterScope(ops::Ctx& c, const BatchView& batch, const LoraScratch& scratch) : c_(c), batch_(batch) {
    if (batch.adapters.empty()) return;
    CHECK(!scratch.empty() && batch.sample_adapters.size() == batch.sample_rows.size(), "{} adapters of {} rows",
          batch.sample_adapters.size(), batch.sample_rows.size());
    const auto rows = static_cast<int64_t>(std::max(batch.adapters.size(), batch.sample_rows.size()));
    rows_ = {.slots = batch.adapters, .scratch = c.arena.take(&kFloat32, {scratch.floats(rows)})};
    c.adapters = &rows_;
  }
  ~AdapterScope() { c_.adapters = nullptr; }
  AdapterScope(const AdapterScope&) = delete;
  AdapterScope& operator=(const AdapterScope&) = delete;

  // From here on the layers get the sampled rows only.
  void use_sample_rows() { rows_.slots = batch_.sample_adapters; }

 private:
  ops::Ctx& c_;
  const BatchView& batch_;
  ops::AdapterRows rows_;
};

class DecoderLm final : public Model {
 public:
  DecoderLm(DecoderSpec spec, LoadContext& context, int max_len) : spec_(std::move(spec)) {
    const int positions = max_len > 0 ? max_len : spec_.max_positions;
    shape_ = {.family = spec_.family,
              .vocab = spec_.vocab,
              .width = context.task == Task::kGenerate ? spec_.vocab : spec_.hidden,
              .hidden = spec_.embedding_dim > 0 || spec_.auxiliary_stream ? 0 : spec_.hidden,
              .input_width = static_cast<int>(embedding_dim()),
              .token_types = false,
              .max_positions = spec_.max_positions,
              .capturable = !spec_.hidden_input && std::ranges::none_of(spec_.ropes, depends_on_length),
              .kv = {},
              .kept_hidden = -1,
              .state = {},
              .rope_class = {}};
    // Each class counts the scalings whose threshold the prompt's length passes, so the sums of different classes
    // differ too.
    shape_.rope_class = [ropes = spec_.ropes](int prompt_len) {
      int sum = 0;
      for (const RopeSpec& rope : ropes) sum += rope_class(rope, prompt_len);
      return sum;
    };
    if (spec_.tied_head && stores_another_head(context)) spec_.tied_head = false;
    const DecoderNames& names = spec_.names;
    const Weights w(context), body = w / names.body;
    stage_ = choose_stage(context);
    load_tables(context);
    for (const RopeSpec& rope : spec_.ropes) ropes_.emplace_back(rope, positions, context);
    load_layers(body);
    plan_selection(positions);
    shape_.no_modules = why_no_modules();
    if (spec_.hidden_input) {
      hidden_input_.emplace(body / spec_.hidden_input->path, *spec_.hidden_input, spec_.norm, spec_.hidden);
      shape_.kept_hidden = static_cast<int>(shape_.kv.size());
      shape_.kv.push_back(hidden_input_->kv_shape());
    }
    if (spec_.auxiliary_stream) {
      auxiliary_stream_ = spec_.auxiliary_stream(body, spec_);
      shape_.capturable = shape_.capturable && auxiliary_stream_->capturable();
      if (auxiliary_stream_->reads_tokens()) shape_.input_width = 0;
    }
    const OtherStage of_last(context, !stage_.last());
    if (!names.norm.empty()) norm_ = Norm(body, names.norm, spec_.hidden, spec_.final_norm.value_or(spec_.norm));
    if (context.task != Task::kGenerate) {
      for (const char* tensor : {".weight", ".bias"}) context.used.insert(names.head + tensor);
      return;
    }
    if (spec_.embedding_dim > 0) {
      project_out_ = Linear(body, {{"project_out", spec_.embedding_dim}}, spec_.hidden, false);
    }
    head_ = spec_.hidden_input ? spec_.tables.head : std::make_shared<const Linear>(load_head(w));
    if (context.lora != nullptr) adapter_scratch_ = context.lora->scratch();
    // some checkpoints store the copy
    if (spec_.tied_head && w.has(names.head + ".weight")) context.used.insert(names.head + ".weight");
  }

  const ModelShape& shape() const override { return shape_; }
  TokenTables tables() const override { return {.embedding = embedding_, .head = head_}; }

  size_t activation_bytes(int tokens, int rows) const override {
    const int64_t layer = floats_of_layer();
    int64_t embedding = std::max<int64_t>(spec_.embedding_dim, has_table() ? spec_.hidden : 0);
    if (hidden_input_) embedding = std::max(embedding, hidden_input_->floats_per_token());
    const int64_t per_token = spec_.hidden + std::max(layer, embedding);
    const int64_t per_row = int64_t{spec_.hidden} + spec_.embedding_dim + (head_->outputs() > 0 ? spec_.vocab : 0) +
                            head_->gathered_floats();
    int64_t floats = tokens * per_token + rows * per_row;
    floats += adapter_scratch_.floats(std::max(tokens, rows));
    if (auxiliary_stream_ != nullptr) floats += tokens * auxiliary_stream_->floats_per_token();
    for (const Rope& rope : ropes_) floats += rope.step_floats(tokens);
    floats += tokens * selection_.columns + selection_.floats;
    constexpr int64_t kTensors = 24;  // tensors alive at once; each may waste up to 64 bytes
    const size_t carried = auxiliary_stream_ != nullptr ? auxiliary_stream_->tensors() : 0;
    return floats * sizeof(float) + (kTensors + carried + ropes_.size()) * 64;
  }

  StepOutput forward(ops::Ctx& c, const BatchView& batch, KvCache& kv, StateCache& states) override {
    AdapterScope adapters(c, batch, adapter_scratch_);
    std::vector<Rope::Rows> ropes;
    for (Rope& rope : ropes_) ropes.push_back(rope.rows(c, batch));
    const Tensor x = c.arena.take(&kFloat32, {static_cast<int64_t>(batch.tokens.size()), spec_.hidden});
    const AuxiliaryStream::Tensors auxiliary = begin_stream(c, batch, kv, x);
    const Tensor normed = norms_inputs() ? c.arena.take(&kFloat32, x.shape) : Tensor();
    const Tensor selected = selection_.columns > 0 ? c.arena.take(&kInt32, {x.rows(), selection_.columns}) : Tensor();
    const LayerInputs inputs{batch, ropes, kv, states, auxiliary, x, normed, selected};
    std::vector<Tensor> stream = auxiliary;
    stream.push_back(x);
    for (const PipelineStage::Pass& pass : stage_.passes()) {
      if (!pass.first) stage_.receive(c, stream);
      run_layers(c, pass.begin, pass.end, inputs);
      if (!pass.last) stage_.send(c, stream);
    }
    if (!stage_.last()) return {};
    const bool normed_hidden = batch.wants_hidden && shape_.hidden > 0 && head_->outputs() > 0 && !hidden_input_;
    if (normed_hidden && !spec_.names.norm.empty()) norm_.in_place(c, x);
    const Tensor rows = c.arena.take(&kFloat32, {static_cast<int64_t>(batch.sample_rows.size()), spec_.hidden});
    ops::gather_rows(c, rows, x, batch.sample_rows);
    adapters.use_sample_rows();
    if (auxiliary_stream_ != nullptr) auxiliary_stream_->end(c, batch, auxiliary, rows);
    if (!normed_hidden && !spec_.names.norm.empty()) norm_.in_place(c, rows);
    if (head_->outputs() == 0) return {.hidden = rows};
    const Tensor logits = (*head_)(c, spec_.embedding_dim > 0 ? project_out_(c, rows) : rows);
    if (spec_.logit_scale != 1.0f) ops::map(c, logits, ops::Map::kScale, spec_.logit_scale);
    if (spec_.logit_soft_cap > 0) ops::map(c, logits, ops::Map::kSoftCap, spec_.logit_soft_cap);
    return {.logits = logits, .hidden = batch.wants_hidden ? x : Tensor()};
  }

 private:
  std::string path_of(int layer) const {
    const std::string& path = spec_.layers[layer].path;
    return path.empty() ? fmt::format("{}.{}", spec_.names.layers, layer) : path;
  }
  int64_t embedding_dim() const { return spec_.embedding_dim > 0 ? spec_.embedding_dim : spec_.hidden; }
  bool has_table() const { return spec_.positions == Positions::kLearned || spec_.positions == Positions::kSinusoidal; }
  // True if a sublayer's result must be computed on its own before it is added.
  bool separate(const std::string& post_norm, const Blend& blend) const {
    const bool replaces = blend.kept == 0.0f;
    return !post_norm.empty() || spec_.residual_scale != 1.0f || spec_.normed_residual ||
           (blend.kept != 1.0f && !replaces) || blend.added != 1.0f;
  }

  std::string embedding_name() const {
    return spec_.names.body.empty() ? spec_.names.embedding : spec_.names.body + "." + spec_.names.embedding;
  }

  // True if the checkpoint has a head of the right shape that is no copy of the embedding table. transformers uses it,
  // whatever the configuration says.
  bool stores_another_head(const LoadContext& context) const {
    if (context.task != Task::kGenerate) return false;
    const TensorEntry* head = context.checkpoint.find(spec_.names.head + ".weight");
    const TensorEntry* table = context.checkpoint.find(embedding_name() + ".weight");
    if (head == nullptr || table == nullptr || head->shape.rank() != 2) return false;
    if (head->shape[0] != spec_.vocab || head->shape[1] != embedding_dim()) return false;
    if (head->data == nullptr || table->data == nullptr) return head->data != table->data;
    const bool copy = head->dtype == table->dtype && head->bytes == table->bytes &&
                      (head->data == table->data || std::memcmp(head->data, table->data, head->bytes) == 0);
    if (!copy && context.dry) {
      log::warning("{}: 'tie_word_embeddings' is not followed, because '{}' differs from the embedding table",
                   context.checkpoint.config.origin(), head->name);
    }
    return !copy;
  }

  Linear load_head(const Weights& w) const {
    const DecoderNames& names = spec_.names;
    const Linear::Part head{.name = spec_.tied_head ? embedding_name() : names.head,
                            .outputs = spec_.vocab,
                            .unit_rows = spec_.unit_head,
                            .bias = names.head,
                            .keep_type = !w.context().quantize_head};
    return Linear(w, {head}, embedding_dim(), spec_.head_bias, Linear::Split::share(w.context().ranks));
  }

  // Divides the layers by the bytes of their weights, which a decode step has to read. A layer stays with the one whose
  // weights it uses, and with the one whose keys and values or whose selection it reads.
  PipelineStage choose_stage(const LoadContext& context) const {
    StagedLayers layers{.costs = std::vector<int64_t>(spec_.layers.size(), 1),
                        .cuts = std::vector<bool>(spec_.layers.size(), true)};
    if (!context.stage.many()) return PipelineStage(context, std::move(layers));
    LoadContext counting = counting_copy(context);
    const Weights w(counting), body = w / spec_.names.body;
    const auto counted = [&](auto&& construct) {
      const size_t before = counting.weight_bytes;
      construct();
      return static_cast<int64_t>(counting.weight_bytes - before);
    };
    const auto keep_together = [&](int a, int b) {
      const auto [first, last] = std::minmax({stored_layer(a), stored_layer(b)});
      for (int between = first + 1; between <= last; ++between) layers.cuts[between] = false;
    };
    for (int i = 0; i < spec_.depth(); ++i) {
      layers.weights_of.push_back(stored_layer(i));
      layers.costs[i] = counted([&] { Layer(body / path_of(stored_layer(i)), spec_, spec_.layers[i]); });
      if (spec_.layers[i].follows) keep_together(i - 1, i);
      if (spec_.layers[i].kv_from >= 0) keep_together(spec_.layers[i].kv_from, i);
    }
    if (context.task == Task::kGenerate) layers.last_cost = counted([&] { load_head(w); });
    return PipelineStage(context, std::move(layers));
  }

  void load_layers(const Weights& body) {
    for (int i = 0; i < spec_.depth(); ++i) {
      const OtherStage scope(body.context(), !stage_.holds(i));
      const int stored = stored_layer(i);
      const int loaded = loaded_layer(stored);
      layers_.push_back(loaded >= 0 ? layers_[loaded]
                                    : std::make_shared<Layer>(body / path_of(stored), spec_, spec_.layers[i]));
      plan_caches(i);
    }
  }

  // The layer whose tensors layer i uses.
  int stored_layer(int i) const { return spec_.layers[i].same_as < 0 ? i : spec_.layers[i].same_as; }

  // The layer of this stage that already has the weights of layer `stored`; -1: none.
  int loaded_layer(int stored) const {
    for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
      if (stage_.holds(i) && stored_layer(i) == stored) return i;
    }
    return -1;
  }

  // See ModelShape::no_modules.
  std::string why_no_modules() const {
    if (!shape_.state.empty()) return "it has recurrent layers";
    if (spec_.auxiliary_stream || spec_.hidden_input) return "its layers read more than the tokens before them";
    if (std::ranges::any_of(spec_.ropes, depends_on_length)) return "its rotation depends on the prompt's length";
    for (const KvShape& kv : shape_.kv) {
      if (kv.window > 0) return "it has layers with a sliding window";
    }
    for (const auto& layer : layers_) {
      const char* why = layer->mixer != nullptr ? layer->mixer->needs_places() : nullptr;
      if (why != nullptr) return why;
    }
    return {};
  }

  void plan_caches(int i) {
    const TokenMixer* mixer = layers_[i]->mixer.get();
    const LayerSpec& spec = spec_.layers[i];
    Cached cached;
    if (mixer != nullptr) {
      if (spec.kv_from >= 0) cached.kv = cached_[spec.kv_from].kv;
      if (auto kv = mixer->kv_shape()) {
        cached.kv = static_cast<int>(shape_.kv.size());
        kv->held = stage_.holds(i);
        if (spec.same_as >= 0 && spec.window > 0) kv->window = spec.window;
        shape_.kv.push_back(*kv);
      }
      if (const int64_t values = mixer->state_values(); values > 0) {
        cached.state = static_cast<int>(shape_.state.size());
        shape_.state.push_back(stage_.holds(i) ? values : 0);
      }
    }
    cached_.push_back(cached);
  }

  // Texts of up to `positions` tokens need nothing for a selection of more of them.
  void plan_selection(int positions) {
    for (const auto& layer : layers_) {
      if (layer->mixer == nullptr) continue;
      const TokenMixer::Selection own = layer->mixer->selection();
      if (own.columns == 0) continue;
      shape_.selected = own.columns;
      if (positions <= own.columns) continue;
      selection_ = {.columns = own.columns, .floats = std::max(selection_.floats, own.floats)};
    }
  }

  void load_tables(LoadContext& context) {
    if (spec_.hidden_input) {
      embedding_ = spec_.tables.embedding;
      return;
    }
    const OtherStage of_first(context, !stage_.first());
    const DecoderNames& names = spec_.names;
    const Weights body = Weights(context) / names.body;
    embedding_ = Embedding(body, names.embedding, spec_.vocab, embedding_dim(), /*tokens=*/true);
    if (spec_.embedding_dim > 0) {
      project_in_ = Linear(body, {{"project_in", spec_.hidden}}, spec_.embedding_dim, false);
    }
    embedding_norm_ = optional_norm(body, names.embedding_norm, spec_);
    const int64_t rows = int64_t{spec_.max_positions} + spec_.position_offset;
    if (spec_.positions == Positions::kLearned) {
      const Embedding table(body, names.position_table, rows, spec_.hidden);
      position_table_ = table.rows_from(spec_.position_offset);
    } else if (spec_.positions == Positions::kSinusoidal) {
      const size_t bytes = static_cast<size_t>(rows) * spec_.hidden * sizeof(float);
      context.weight_bytes += bytes;
      if (!context.dry) {
        Buffer memory(bytes);
        const Tensor table(memory.data(), &kFloat32, {rows, spec_.hidden});
        fill_sinusoids(table);
        memory = moved_to(std::move(memory), context.memory);
        const Tensor moved(memory.data(), &kFloat32, table.shape);
        position_table_ = Embedding(moved, std::move(memory)).rows_from(spec_.position_offset);
      }
    }
  }

  // Puts the given vectors of a step where the embeddings of their rows are.
  void place_given(ops::Ctx& c, const BatchView& batch, const Tensor& embeddings) const {
    for (const GivenRows& given : batch.given) {
      const Tensor rows = embeddings.slice_rows(given.row, given.count);
      CHECK(shape_.input_width > 0 && rows.dense() && rows.bytes() == given.values.size_bytes(), "{} values for {}",
            given.values.size(), rows.shape.str());
      c.queue.copy_async(rows.data, given.values.data(), rows.bytes());
    }
  }

  void embed(ops::Ctx& c, const BatchView& batch, const Tensor& x) const {
    if (spec_.embedding_dim > 0) {
      Arena::Scope scope(c.arena);
      const Tensor embeddings = embedding_(c, batch.tokens);
      place_given(c, batch, embeddings);
      project_in_.into(c, x, embeddings, false);
    } else {
      embedding_.into(c, x, batch.tokens);
      if (!spec_.scaled_vectors) place_given(c, batch, x);
    }
    if (spec_.embedding_scale != 1.0f) ops::map(c, x, ops::Map::kScale, spec_.embedding_scale);
    if (spec_.scaled_vectors) place_given(c, batch, x);
    if (!spec_.names.embedding_norm.empty()) embedding_norm_.in_place(c, x);
    if (has_table()) {
      Arena::Scope scope(c.arena);
      ops::add(c, x, position_table_(c, batch.positions));
    }
  }

  // Fills x with the embeddings and returns the tensors beside it. Stages behind the first one only get memory for what
  // they receive.
  AuxiliaryStream::Tensors begin_stream(ops::Ctx& c, const BatchView& batch, const KvCache& kv, const Tensor& x) {
    if (stage_.first()) {
      embed(c, batch, x);
      if (hidden_input_) (*hidden_input_)(c, batch, kv.layer(shape_.kept_hidden), x);
      return auxiliary_stream_ != nullptr ? auxiliary_stream_->begin(c, batch, x) : AuxiliaryStream::Tensors();
    }
    AuxiliaryStream::Tensors auxiliary;
    if (auxiliary_stream_ == nullptr) return auxiliary;
    for (const Shape& shape : auxiliary_stream_->shapes(x.rows())) auxiliary.push_back(c.arena.take(&kFloat32, shape));
    return auxiliary;
  }

  // x = kept * x + added * scale * post_norm(sublayer(x)), then `next`. sublayer(out, accumulate, norm) computes out =
  // or += its result, then the norm.
  template <class Sublayer>
  void add_sublayer(ops::Ctx& c, const Tensor& x, const Blend& blend, const std::string& post_norm, const Norm& norm,
                    const NextNorm* next, Sublayer&& sublayer) const {
    if (!separate(post_norm, blend)) return sublayer(x, blend.kept != 0.0f, next);
    const Tensor part = c.arena.take(&kFloat32, x.shape);
    const NextNorm post{&norm, part};
    sublayer(part, false, post_norm.empty() ? nullptr : &post);
    if (blend.kept != 1.0f) ops::map(c, x, ops::Map::kScale, blend.kept);
    ops::add(c, x, part, blend.added * spec_.residual_scale);
    apply(c, next, x);
  }

  // The norm that makes a sublayer's input of x, in place or in the memory `normed`; nullopt: the input is x.
  std::optional<NextNorm> input_norm(const std::string& name, const Norm& norm, const Tensor& x, const Tensor& normed,
                                     DType type) const {
    if (name.empty() || spec_.sum_norms) return std::nullopt;
    return NextNorm{&norm, spec_.normed_residual ? x : ops::rows_in(normed, type)};
  }

  // The same for the token mixer of layer i.
  std::optional<NextNorm> input_norm(ops::Ctx& c, int i, const Tensor& x, const Tensor& normed) const {
    const Layer& layer = *layers_[i];
    if (layer.mixer == nullptr) return std::nullopt;
    // If only one matmul reads an input, the input is written in the type that the matmul takes.
    const DType type = spec_.parallel ? &kFloat32 : layer.mixer->input_type(c, x.rows());
    return input_norm(spec_.names_of(spec_.layers[i]).attention_norm, layer.mixer_norm, x, normed, type);
  }

  // The same for the MLP or what stands for it.
  std::optional<NextNorm> mlp_input_norm(ops::Ctx& c, const Layer& layer, const LayerSpec& kind, const Tensor& x,
                                         const Tensor& normed) const {
    const DType type = layer.feed_forward != nullptr ? layer.feed_forward->input_type(c, x.rows())
                       : kind.moe                    ? layer.moe.input_type(c, x.rows())
                                                     : layer.mlp.input_type(c, x.rows());
    return input_norm(spec_.names_of(kind).mlp_norm, layer.mlp_norm, x, normed, type);
  }

  static const NextNorm* address(const std::optional<NextNorm>& norm) { return norm ? &*norm : nullptr; }

  // The rows of a layer.
  struct LayerRows {
    Tensor x;                        // the residual stream
    Tensor normed;                   // memory for what sublayers read
    Tensor ready;                    // the first sublayer's input if it has been made, else without data
    const NextNorm* next = nullptr;  // the norm behind the layer
  };

  // What all layers of a step get.
  struct LayerInputs {
    const BatchView& batch;
    const std::vector<Rope::Rows>& ropes;
    const KvCache& kv;
    const StateCache& states;
    const AuxiliaryStream::Tensors& auxiliary;
    const Tensor& x;         // the residual stream
    const Tensor& normed;    // memory for what sublayers read
    const Tensor& selected;  // see TokenMixerStep
  };

  void run_layers(ops::Ctx& c, int begin, int end, const LayerInputs& in) const {
    const Tensor& x = in.x;
    std::optional<NextNorm> next;  // the norm in front of the next layer, which the present one computes
    const auto cached_kv = [&](int index) { return index < 0 ? nullptr : &in.kv.layer(index); };
    const auto rope = [&](int index) { return in.ropes.empty() || index < 0 ? nullptr : &in.ropes[index]; };
    for (int i = begin; i < end; ++i) {
      const int earlier = spec_.layers[i].kv_from;
      const TokenMixerStep step{.batch = in.batch,
                                .rope = rope(spec_.layers[i].rope),
                                .query_rope = rope(spec_.layers[i].query_rope),
                                .kv = cached_kv(cached_[i].kv),
                                .earlier_kv = cached_kv(earlier < 0 ? -1 : cached_[earlier].kv),
                                .auxiliary = in.auxiliary,
                                .first = hidden_input_ ? 1 : 0,
                                .state = cached_[i].state < 0 ? Tensor() : in.states.layer(cached_[i].state),
                                .selected = in.selected};
      if (auxiliary_stream_ != nullptr) auxiliary_stream_->before_layer(c, i, in.auxiliary, x);
      const Tensor ready = next ? next->out : Tensor();
      next = auxiliary_stream_ == nullptr && i + 1 < end ? input_norm(c, i + 1, x, in.normed) : std::nullopt;
      run_layer(c, i, step, {.x = x, .normed = in.normed, .ready = ready, .next = address(next)});
      if (auxiliary_stream_ != nullptr) auxiliary_stream_->after_layer(c, i, in.auxiliary, x);
    }
  }

  void run_layer(ops::Ctx& c, int i, const TokenMixerStep& step, const LayerRows& rows) const {
    const Layer& layer = *layers_[i];
    const LayerSpec& kind = spec_.layers[i];
    const DecoderNames& names = spec_.names_of(kind);
    const Tensor& x = rows.x;
    Arena::Scope of_layer(c.arena);
    Tensor in = rows.ready.data != nullptr ? rows.ready : x;
    if (rows.ready.data == nullptr) {
      if (const auto norm = input_norm(c, i, x, rows.normed)) apply(c, &*norm, x), in = norm->out;
    }
    // In parallel blocks both inputs are made from the residual before either result is added.
    Tensor mlp_in = in;
    if (spec_.parallel && !names.mlp_norm.empty()) mlp_in = layer.mlp_norm(c, x);
    const bool only_mixes = kind.sublayers == Sublayers::kTokenMixer;
    std::optional<NextNorm> middle;
    if (!only_mixes && !spec_.parallel) {
      middle = mlp_input_norm(c, layer, kind, x, rows.normed);
      mlp_in = middle ? middle->out : x;
    }
    const NextNorm mixer_sum{&layer.mixer_norm, x}, mlp_sum{&layer.mlp_norm, x};
    if (layer.mixer == nullptr) {
      apply(c, address(middle), x);
    } else {
      Arena::Scope of_sublayer(c.arena);
      const NextNorm* next = spec_.sum_norms ? &mixer_sum : only_mixes ? rows.next : address(middle);
      add_sublayer(c, x, kind.mixer_blend, names.attention_post_norm, layer.mixer_post_norm, next,
                   [&](const Tensor& out, bool accumulate, const NextNorm* norm) {
                     layer.mixer->with_norm(c, step, out, in, accumulate, norm);
                   });
    }
    if (only_mixes) return;
    add_sublayer(c, x, kind.mlp_blend, names.mlp_post_norm, layer.mlp_post_norm, spec_.sum_norms ? &mlp_sum : rows.next,
                 [&](const Tensor& out, bool accumulate, const NextNorm* norm) {
                   if (kind.moe && layer.feed_forward == nullptr) return layer.moe(c, out, mlp_in, accumulate, norm);
                   if (layer.feed_forward == nullptr) return layer.mlp(c, out, mlp_in, accumulate, norm);
                   (*layer.feed_forward)(c, step.auxiliary, out, mlp_in, accumulate);
                   apply(c, norm, out);
                 });
  }

  // Whether sublayers read norms of the residual stream. These have memory of their own in a step.
  bool norms_inputs() const {
    return std::ranges::any_of(spec_.layers, [&](const LayerSpec& kind) {
      const DecoderNames& names = spec_.names_of(kind);
      return !names.attention_norm.empty() || !names.mlp_norm.empty();
    });
  }

  // Arena floats that run_layer takes per token.
  int64_t floats_of_layer() const {
    int64_t most = 0;
    for (int i = 0; i < spec_.depth(); ++i) most = std::max(most, floats_of_layer(*layers_[i], spec_.layers[i]));
    return most;
  }

  int64_t floats_of_layer(const Layer& layer, const LayerSpec& kind) const {
    const DecoderNames& names = spec_.names_of(kind);
    int64_t inputs = norms_inputs() ? spec_.hidden : 0;
    if (spec_.parallel && !names.attention_norm.empty() && !names.mlp_norm.empty()) inputs += spec_.hidden;
    const auto sublayer = [&](const std::string& post_norm, const Blend& blend, int64_t floats) {
      return floats + (separate(post_norm, blend) ? spec_.hidden : 0);
    };
    int64_t most = 0;
    if (kind.sublayers != Sublayers::kMlp) {
      most = sublayer(names.attention_post_norm, kind.mixer_blend, layer.mixer->floats_per_token());
    }
    if (kind.sublayers != Sublayers::kTokenMixer) {
      const int64_t floats = layer.feed_forward != nullptr ? layer.feed_forward->floats_per_token()
                             : kind.moe                    ? Moe::floats_per_token(moe_of(spec_, kind), spec_.hidden)
                                                           : Mlp::floats_per_token(mlp_of(spec_, kind));
      most = std::max(most, sublayer(names.mlp_post_norm, kind.mlp_blend, floats));
    }
    return inputs + most;
  }

  DecoderSpec spec_;
  ModelShape shape_;
  PipelineStage stage_;
  Embedding embedding_, position_table_;
  Norm embedding_norm_;
  std::vector<std::shared_ptr<const Layer>> layers_;  // layers with the same weights are one object
  std::vector<Cached> cached_;                        // per layer
  TokenMixer::Selection selection_{};                 // of the layers that have one; they have equally many columns
  std::unique_ptr<AuxiliaryStream> auxiliary_stream_;
  Norm norm_;
  std::optional<HiddenInput> hidden_input_;
  Linear project_in_, project_out_;
  std::shared_ptr<const Linear> head_ = std::make_shared<Linear>();
  std::vector<Rope> ropes_;
  LoraScratch adapter_scratch_;  // empty: the model has no adapters
};

}  // namespace

std::unique_ptr<Model> decoder_lm(DecoderSpec spec, LoadContext& context, int max_len) {
  DecoderNames& names = spec.names;
  const Weights w(context);
  // Checkpoints of the bare model store it without a prefix.
  if (context.task != Task::kGenerate && !w.has(fmt::format("{}.{}.weight", names.body, names.embedding))) {
    names.body = "";
  }
  const int hidden = spec.hidden;
  auto model = std::make_unique<DecoderLm>(std::move(spec), context, max_len);
  if (context.task != Task::kScore) return model;
  const OtherStage of_last(context, !context.stage.last());
  const DenseSpec score{.name = "score", .outputs = read_labels(context.checkpoint.config), .bias = false};
  return pooled_model(std::move(model), {.pooling = ops::Pooling::kLast, .dense = dense_layers(w, hidden, {score})});
}

}  // namespace sluice
