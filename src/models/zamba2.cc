// Zamba 2: Mamba 2 in every layer. Some layers also run one of a few shared transformer blocks first, which sees the
// embeddings beside the residual stream (arXiv:2411.15242).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "models/mamba.h"

namespace sluice::models::zamba2 {
namespace {

constexpr Mamba2Keys kKeys{.heads = "n_mamba_heads",
                           .head_dim = "mamba_headdim",
                           .groups = "mamba_ngroups",
                           .state = "mamba_d_state",
                           .conv = "mamba_d_conv",
                           .conv_bias = "use_conv_bias",
                           .bias = "add_bias_linear",
                           .activation = "mamba_hidden_act",
                           .expand = "mamba_expand",
                           .default_state = 64};

struct BlockSpec {
  AttentionSpec attention{};  // works on twice the hidden size
  MlpSpec mlp{};
  NormSpec norm{};
  int adapter_rank = 0;
  bool attention_adapters = false;  // for queries, keys and values; the MLP always has one
};

// The auxiliary stream: the step's embeddings as the right half of the blocks' input.
class EmbeddingsBeside final : public AuxiliaryStream {
 public:
  explicit EmbeddingsBeside(int hidden) : hidden_(hidden) {}
  int64_t floats_per_token() const override { return 2 * hidden_; }
  size_t tensors() const override { return 1; }
  std::vector<Shape> shapes(int64_t tokens) const override { return {{tokens, 2 * hidden_}}; }
  Tensors begin(ops::Ctx& c, const BatchView&, const Tensor& x) override {
    const Tensor both = c.arena.take(&kFloat32, {x.rows(), 2 * hidden_});
    ops::copy(c, both.slice_columns(hidden_, hidden_), x);
    return {both};
  }
  void before_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void after_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  int64_t hidden_;
};

// The weights that the layers of a block share.
struct SharedBlock {
  Norm norm, mlp_norm;
  Linear q, k, v, out, gate_up, down;

  SharedBlock(const Weights& w, const BlockSpec& s, int hidden)
      : norm(w, "input_layernorm", 2 * int64_t{hidden}, s.norm),
        mlp_norm(w, "pre_ff_layernorm", hidden, s.norm),
        q(w / "self_attn", {{"q_proj", s.attention.q_width()}}, 2 * int64_t{hidden}, false),
        k(w / "self_attn", {{"k_proj", s.attention.kv_width()}}, 2 * int64_t{hidden}, false),
        v(w / "self_attn", {{"v_proj", s.attention.kv_width()}}, 2 * int64_t{hidden}, false),
        out(w / "self_attn", {{"o_proj", hidden}}, s.attention.q_width(), false),
        gate_up(w / "feed_forward", {{"gate_up_proj", 2 * int64_t{s.mlp.inner}}}, hidden, s.mlp.bias),
        down(w / "feed_forward", {{"down_proj", hidden}}, s.mlp.inner, s.mlp.bias) {
    w.context().note_attention(s.attention.heads, s.attention.head_dim);
  }
};

// A layer's own low-rank addition to a projection of its block.
class Adapter {
 public:
  Adapter() = default;
  Adapter(const Weights& w, const std::string& name, int64_t rank, int64_t inputs, int64_t outputs)
      : down_(w / name, {{"0", rank}}, inputs, false), up_(w / name, {{"1", outputs}}, rank, false) {}
  void add_to(ops::Ctx& c, const Tensor& out, const Tensor& x) const {
    if (up_.outputs() == 0) return;
    Arena::Scope scope(c.arena);
    up_.into(c, out, down_(c, x), true);
  }

 private:
  Linear down_, up_;
};

// Runs a shared block, then Mamba 2 on the sum of its result and the stream.
class HybridLayer final : public TokenMixer {
 public:
  // `index` counts the hybrid layers; `block` is the prefix of the block's tensors.
  HybridLayer(const Weights& w, const Weights& block, std::shared_ptr<const SharedBlock> shared, const BlockSpec& s,
              const Mamba2Spec& mamba, int index, int hidden)
      : spec_(s),
        hidden_(hidden),
        shared_(std::move(shared)),
        linear_(w, {{"linear", hidden}}, hidden, false),
        norm_(w / "mamba_decoder", "input_layernorm", hidden, s.norm),
        mamba_(w / "mamba_decoder" / "mamba", mamba, hidden) {
    const auto adapter = [&](const Weights& at, const char* list, int64_t inputs, int64_t outputs) {
      return Adapter(at, fmt::format("{}.{}", list, index), s.adapter_rank, inputs, outputs);
    };
    const Weights attention = block / "self_attn";
    if (s.attention_adapters) {
      const int64_t wide = 2 * int64_t{hidden};
      q_ = adapter(attention, "linear_q_adapter_list", wide, s.attention.q_width());
      k_ = adapter(attention, "linear_k_adapter_list", wide, s.attention.kv_width());
      v_ = adapter(attention, "linear_v_adapter_list", wide, s.attention.kv_width());
    }
    gate_up_ = adapter(block / "feed_forward", "gate_up_proj_adapter_list", hidden, 2 * int64_t{s.mlp.inner});
  }

  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const Tensor both = step.auxiliary[0];
    ops::copy(c, both.slice_columns(0, hidden_), x);
    const Tensor sum = c.arena.take(&kFloat32, x.shape);
    {
      Arena::Scope scope(c.arena);
      const Tensor attended = attend(c, step, both);
      shared_->mlp_norm.in_place(c, attended);
      linear_.into(c, sum, feed_forward(c, attended), false);
    }
    ops::add(c, sum, x);
    norm_.in_place(c, sum);
    mamba_(c, step, out, sum, accumulate);
  }

  int64_t floats_per_token() const override {
    const AttentionSpec& a = spec_.attention;
    const int64_t attention = 2 * hidden_ + 2 * a.q_width() + 2 * a.kv_width() + spec_.adapter_rank;
    const int64_t mlp = 3 * int64_t{spec_.mlp.inner} + hidden_ + spec_.adapter_rank;
    return hidden_ + std::max(hidden_ + attention + mlp, mamba_.floats_per_token());
  }
  std::optional<KvShape> kv_shape() const override {
    const AttentionSpec& a = spec_.attention;
    return KvShape{.kv_heads = a.kv_heads, .head_dim = a.head_dim, .value_dim = a.head_dim};
  }
  int64_t state_values() const override { return mamba_.state_values(); }

 private:
  Tensor attend(ops::Ctx& c, const TokenMixerStep& step, const Tensor& both) const {
    const Tensor in = shared_->norm(c, both);
    const Tensor q = shared_->q(c, in), k = shared_->k(c, in), v = shared_->v(c, in);
    q_.add_to(c, q, in);
    k_.add_to(c, k, in);
    v_.add_to(c, v, in);
    ops::rope_store(c, step.rotation(q, k, v));
    const Tensor mixed = c.arena.take(&kFloat32, q.shape);
    ops::AttentionArgs args = step.attention(mixed, q);
    args.heads = spec_.attention.heads, args.scale = spec_.attention.scale;
    ops::attention(c, args);
    return shared_->out(c, mixed);
  }

  Tensor feed_forward(ops::Ctx& c, const Tensor& x) const {
    const Tensor gate_up = shared_->gate_up(c, x);
    gate_up_.add_to(c, gate_up, x);
    const Tensor inner = c.arena.take(&kFloat32, {x.rows(), spec_.mlp.inner});
    ops::glu(c, inner, gate_up, spec_.mlp.activation);
    return shared_->down(c, inner);
  }

  BlockSpec spec_;
  int64_t hidden_;
  std::shared_ptr<const SharedBlock> shared_;
  Adapter q_, k_, v_, gate_up_;
  Linear linear_;
  Norm norm_;
  Mamba2 mamba_;
};

BlockSpec read_block(const Config& config, DecoderSpec& s) {
  BlockSpec b;
  b.attention = s.attention;
  if (2 * s.hidden % b.attention.heads != 0) config.refuse("num_attention_heads", "does not divide 2 * hidden_size");
  b.attention.head_dim = 2 * s.hidden / b.attention.heads;
  b.attention.scale = 1.0f / std::sqrt(static_cast<float>(b.attention.head_dim) / 2);
  for (const auto& [key, value] :
       {std::pair{"attention_hidden_size", 2 * s.hidden}, {"attention_head_dim", b.attention.head_dim}}) {
    if (config.get(key, value) != value) config.refuse(key, fmt::format("must be {}", value));
  }
  b.mlp = s.mlp;
  b.mlp.bias = config.get("add_bias_linear", false);
  b.norm = s.norm;
  b.adapter_rank = read_positive(config, "adapter_rank", config.get("adapter_rank", 128));
  b.attention_adapters = config.get("use_shared_attention_adapter", false);
  if (b.attention_adapters && b.attention.kv_heads != b.attention.heads) {
    config.refuse("use_shared_attention_adapter", "needs as many kv heads as heads");
  }
  return b;
}

Mamba2Spec read_layer(const Config& config, const DecoderSpec& s) {
  Mamba2Spec m = read_mamba2(config, s, kKeys);
  m.conv_bias = true;
  m.norm_groups = m.groups;
  m.norm_eps = 1e-5f;
  m.dt_low = config.get("time_step_min", 0.001f);
  return m;
}

std::string block_prefix(const DecoderSpec& s, int layer) {
  return fmt::format("{}.{}.{}.shared_transformer", s.names.body, s.names.layers, layer);
}

bool stores_all_blocks(const LoadContext& context, const DecoderSpec& s, const std::vector<std::string>& kinds) {
  for (int i = 0; i < s.depth(); ++i) {
    if (kinds[i] != "hybrid") continue;
    if (context.checkpoint.find(block_prefix(s, i) + ".input_layernorm.weight") == nullptr) return false;
  }
  return true;
}

// Ignores the adapters of other layers in the block of the hybrid layer `index`.
void ignore_other_adapters(LoadContext& context, const std::string& block, int index, int hybrids, int blocks) {
  for (int other = index % blocks; other < hybrids; other += blocks) {
    if (other == index) continue;
    ignore_tensors(context, fmt::format("{}.feed_forward.gate_up_proj_adapter_list.{}.", block, other));
    for (char t : {'q', 'k', 'v'}) {
      ignore_tensors(context, fmt::format("{}.self_attn.linear_{}_adapter_list.{}.", block, t, other));
    }
  }
}

// Reads the kinds of layers from "layers_block_type": "linear_attention" (or "mamba") and "hybrid".
void read_layers(const Config& config, LoadContext& context, DecoderSpec& s) {
  const Mamba2Spec mamba = read_layer(config, s);
  const BlockSpec block = read_block(config, s);
  const int blocks = read_positive(config, "num_mem_blocks", config.get("num_mem_blocks", 1));
  const auto kinds = config.at<std::vector<std::string>>("layers_block_type");
  if (kinds.size() != s.layers.size()) {
    config.refuse("layers_block_type", fmt::format("has {} entries for {} layers", kinds.size(), s.layers.size()));
  }
  // By the prefix of the block's tensors, what they are loaded into, and whether another stage has the weights.
  using Key = std::tuple<std::string, const LoadContext*, bool>;
  using Blocks = std::map<Key, std::shared_ptr<const SharedBlock>>;
  const auto shared = std::make_shared<Blocks>();
  std::vector<std::string> homes;  // prefix of each block's tensors: its first layer
  const int hybrids = static_cast<int>(std::ranges::count(kinds, "hybrid"));
  // The reference shares blocks only if it shares the embeddings. Otherwise a file may store a block for every layer.
  const bool apart = !s.tied_head && stores_all_blocks(context, s, kinds);
  int index = 0;
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.sublayers = Sublayers::kTokenMixer;
    if (kinds[i] != "hybrid") {
      if (kinds[i] != "linear_attention" && kinds[i] != "mamba") {
        config.refuse("layers_block_type",
                      fmt::format("unknown type '{}' (expected linear_attention or hybrid)", kinds[i]));
      }
      layer.mixer = mixer_of<Mamba2>("mamba", mamba);
      continue;
    }
    const std::string own = block_prefix(s, i);
    if (index < blocks || apart) {
      homes.push_back(own);
    } else {
      ignore_tensors(context, own + ".");  // copies of the shared tensors
    }
    if (apart) ignore_other_adapters(context, own, index, hybrids, blocks);
    layer.names = s.names;
    layer.names->attention_norm = "";
    layer.mixer = [=, home = homes[apart ? index : index % blocks]](const Weights& w, int hidden) {
      const Weights at(w.context(), home + ".");
      std::shared_ptr<const SharedBlock>& mine = (*shared)[{home, &w.context(), w.context().elsewhere}];
      if (mine == nullptr) mine = std::make_shared<const SharedBlock>(at, block, hidden);
      return std::make_unique<HybridLayer>(w, at, mine, block, mamba, index, hidden);
    };
    ++index;
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "zamba2", {.inner_is_four_hidden = true, .default_max_positions = 4096});
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-5));
  s.mlp.activation = read_activation(config, "hidden_act", "gelu");
  s.tied_head = config.get("tie_word_embeddings", true);
  if (config.get("use_long_context", false)) s.max_positions = 16384;
  s.names.norm = "final_layernorm";
  read_layers(config, context, s);
  if (config.get("use_mem_rope", false)) {
    s.ropes = {read_rope(config, 2 * s.hidden / s.attention.heads, s.max_positions)};
  } else {
    for (const char* key : {"rope_parameters", "rope_theta"}) config.ignore(key);
  }
  s.auxiliary_stream = [](const Weights&, const DecoderSpec& spec) {
    return std::make_unique<EmbeddingsBeside>(spec.hidden);
  };
  // These keys follow from others, or concern initialization and the choice of kernels.
  for (const char* key : {"kv_channels", "num_query_groups", "hybrid_layer_ids", "time_step_max", "time_step_floor",
                          "use_mamba_kernels", "use_mem_eff_path", "num_logits_to_keep", "layer_types"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "zamba2", .architectures = {"Zamba2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::zamba2
