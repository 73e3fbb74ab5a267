// Granite with sliding windows and attention sinks, dense and with experts.
#include <fmt/core.h>

#include <algorithm>

#include "models/granite.h"

namespace sluice::models::granite_swa {
namespace {

// Reads one frequency per layer; 0 means no rotation.
void read_layer_ropes(const Config& config, DecoderSpec& s) {
  const auto thetas = config.get("layer_rope_theta", std::vector<double>{});
  if (thetas.empty()) return;
  if (thetas.size() != s.layers.size()) {
    config.refuse("layer_rope_theta", fmt::format("has {} entries for {} layers", thetas.size(), s.layers.size()));
  }
  const RopeSpec whole = s.ropes[0];
  s.ropes.clear();
  for (int i = 0; i < s.depth(); ++i) {
    s.layers[i].rope = -1;
    if (thetas[i] == 0) continue;
    if (!(thetas[i] > 1)) config.refuse("layer_rope_theta", fmt::format("must be above 1, not {}", thetas[i]));
    const auto same = std::ranges::find(s.ropes, thetas[i], &RopeSpec::theta);
    s.layers[i].rope = static_cast<int>(same - s.ropes.begin());
    if (same != s.ropes.end()) continue;
    s.ropes.push_back(whole);
    s.ropes.back().theta = thetas[i];
  }
}

DecoderSpec granite_swa_like(const Config& config, std::string family, const LlamaDefaults& defaults) {
  DecoderSpec s = granite_like(config, std::move(family), defaults);
  s.attention.sinks = true;
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 128));
  read_windows(config, s, window, [](int layer) { return layer % 4 != 0; });
  read_layer_ropes(config, s);
  return s;
}

std::unique_ptr<Model> build_dense(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = granite_swa_like(config, "granite_swa", {.norm_eps = 1e-5, .tied_head = true});
  s.mlp.bias = config.get("mlp_bias", false);
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build_experts(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = granite_swa_like(config, "granitemoe_swa", {});
  read_granite_experts(config, s);
  s.moe.layout = ExpertLayout::kStackedParameters;
  s.moe.router = "router";
  s.moe.gate = "experts.gate_up_proj";
  s.moe.down = "experts.down_proj";
  const int shared = config.get("shared_intermediate_size", 0);
  if (shared < 0) config.refuse("shared_intermediate_size", "must not be negative");
  if (shared > 0) add_granite_shared_mlp(s, shared);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily dense{.name = "granite_swa", .architectures = {"GraniteSWAForCausalLM"}, .build = build_dense};
const ModelFamily experts{
    .name = "granitemoe_swa", .architectures = {"GraniteMoeSWAForCausalLM"}, .build = build_experts};
const Registry<ModelFamily> registered_dense{dense}, registered_experts{experts};

}  // namespace
}  // namespace sluice::models::granite_swa
