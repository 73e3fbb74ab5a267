// HRM-Text (Sapient Intelligence, arXiv:2605.20613): two stacks of gated-attention layers without norm weights. The low
// stack runs several times for each run of the high one. Both start from the sum of the two states, and every run has
// its own keys and values.
//
// The model was trained with a prompt whose tokens all see each other. Prompts are causal here, as they are in
// transformers without token_type_ids and in vLLM.
#include <fmt/core.h>

#include "base/log.h"
#include "nn/decoder_config.h"

namespace sluice::models::hrm_text {
namespace {

struct Cycles {
  int layers = 0;  // in each stack
  int high = 0;    // runs of the high stack
  int low = 0;     // runs of the low stack before each of them
  int depth() const { return layers * high * (low + 1); }
  bool is_high(int layer) const { return layer / layers % (low + 1) == low; }
  // The layer's first run.
  int stored(int layer) const { return (is_high(layer) ? low * layers : 0) + layer % layers; }
};

// The state that each stack left.
class States final : public AuxiliaryStream {
 public:
  States(const Weights& body, const DecoderSpec& s, const Cycles& cycles)
      : cycles_(cycles),
        hidden_(s.hidden),
        norm_(body.context(), {}, s.norm),
        zeros_(body.context(), std::vector<float>(static_cast<size_t>(s.hidden))),
        first_low_(body.context(), body.vector("z_L_init", s.hidden)) {}

  int64_t floats_per_token() const override { return 2 * hidden_; }
  size_t tensors() const override { return 2; }
  std::vector<Shape> shapes(int64_t tokens) const override { return {{tokens, hidden_}, {tokens, hidden_}}; }
  Tensors begin(ops::Ctx& c, const BatchView&, const Tensor& x) override {
    const Tensor high = c.arena.take(&kFloat32, x.shape), low = c.arena.take(&kFloat32, x.shape);
    ops::copy(c, high, x);
    ops::layer_norm(c, low, x, zeros_.data(), first_low_.data(), 1.0f);  // every row becomes z_L_init
    return {high, low};
  }
  void before_layer(ops::Ctx& c, int layer, const Tensors& states, const Tensor& x) const override {
    if (layer % cycles_.layers != 0) return;
    ops::copy(c, x, states[0]);
    ops::add(c, x, states[1]);
  }
  void after_layer(ops::Ctx& c, int layer, const Tensors& states, const Tensor& x) const override {
    if ((layer + 1) % cycles_.layers != 0 || layer + 1 == cycles_.depth()) return;  // the decoder norms the last result
    norm_.into(c, states[cycles_.is_high(layer) ? 0 : 1], x);
  }
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  Cycles cycles_;
  int64_t hidden_;
  Norm norm_;
  Vector zeros_, first_low_;
};

// "num_hidden_layers" counts every run of a layer where "num_layers_per_stack" is given.
Cycles read_cycles(const Config& config, int depth) {
  constexpr int kMostRuns = 64;
  const auto runs = [&](const char* key, int fallback) {
    const int value = read_positive(config, key, config.get(key, fallback));
    if (value > kMostRuns) config.refuse(key, fmt::format("must be at most {}", kMostRuns));
    return value;
  };
  Cycles cycles{.high = runs("H_cycles", 2), .low = runs("L_cycles", 3)};
  cycles.layers = read_positive(config, "num_layers_per_stack", config.get("num_layers_per_stack", depth));
  const bool counts_runs = cycles.layers != depth;
  if (counts_runs && cycles.depth() != depth) {
    config.refuse("num_layers_per_stack", fmt::format("{} in {} and {} cycles are not num_hidden_layers {}",
                                                      cycles.layers, cycles.high, cycles.low, depth));
  }
  return cycles;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "hrm_text", {.head_dim = 128});
  const Cycles cycles = read_cycles(config, s.depth());
  read_attention_bias(config, s, true);
  if (s.attention.qkv_bias) config.refuse("attention_bias", "true is not supported");
  if (config.get("mlp_bias", false)) config.refuse("mlp_bias", "true is not supported");
  if (s.attention.kv_heads != s.attention.heads) {
    config.refuse("num_key_value_heads", fmt::format("must be num_attention_heads {}", s.attention.heads));
  }
  if (config.get("prefix_lm", true)) {
    log::warning(
        "{}: prompts are causal, but the model was trained with tokens of a prompt that see all others "
        "(prefix_lm)",
        s.family);
  }
  const double range = config.get("initializer_range", 0.02);
  s.embedding_scale = static_cast<float>(read_or_off(config, "embedding_scale", 0));
  if (s.embedding_scale == 0 && range > 0) s.embedding_scale = static_cast<float>(1.0 / range);
  if (!(s.embedding_scale > 0)) config.refuse("embedding_scale", "must be positive");
  s.norm.weight = false;
  s.names.attention = "attn";
  s.mlp.in = {"gate_up_proj"};
  AttentionSpec& a = s.attention;
  a.output_gate = true;
  a.qkv = {"gqkv_proj"};  // gates come first there
  const int64_t width = a.q_width();
  a.qkv_rows = {{width, width}, {0, width}, {2 * width, width}, {3 * width, width}};
  s.layers.assign(static_cast<size_t>(cycles.depth()), {});
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    const int stored = cycles.stored(i);
    layer.path = fmt::format("{}_module.layers.{}", cycles.is_high(i) ? 'H' : 'L', i % cycles.layers);
    if (stored != i) layer.same_as = stored;
  }
  s.auxiliary_stream = [cycles](const Weights& body, const DecoderSpec& spec) {
    return std::make_unique<States>(body, spec, cycles);
  };
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "hrm_text",
    .architectures = {"HrmTextForCausalLM"},
    .build = build,
    .ignored = {{"L_bp_cycles"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::hrm_text
