// Solar Pro (Upstage): Mistral whose residual stream is blended with copies of itself from earlier layers, "block skip
// connections".
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "nn/decoder_config.h"

namespace sluice::models::solar {
namespace {

struct SkipSpec {
  // Layers before which the stream is copied and before which it is blended, for each of the two copies.
  std::array<std::vector<int>, 2> copied{}, blended{};
  float share = 0;  // of the copy in the blend
};

bool lists(const std::vector<int>& layers, int layer) { return std::ranges::find(layers, layer) != layers.end(); }

class SkipConnections final : public AuxiliaryStream {
 public:
  SkipConnections(const SkipSpec& spec, int hidden) : spec_(spec), hidden_(hidden) {}

  int64_t floats_per_token() const override { return 2 * hidden_; }
  size_t tensors() const override { return 2; }
  std::vector<Shape> shapes(int64_t tokens) const override { return {{tokens, hidden_}, {tokens, hidden_}}; }
  Tensors begin(ops::Ctx& c, const BatchView&, const Tensor& x) override {
    return {c.arena.take(&kFloat32, x.shape), c.arena.take(&kFloat32, x.shape)};
  }
  void before_layer(ops::Ctx& c, int layer, const Tensors& copies, const Tensor& x) const override {
    for (size_t i = 0; i < copies.size(); ++i) {
      if (lists(spec_.copied[i], layer)) ops::copy(c, copies[i], x);
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      if (!lists(spec_.blended[i], layer)) continue;
      ops::map(c, x, ops::Map::kScale, 1.0f - spec_.share);
      ops::add(c, x, copies[i], spec_.share);
    }
  }
  void after_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  SkipSpec spec_;
  int64_t hidden_;
};

std::vector<int> read_layers(const Config& config, const char* key, int depth) {
  const auto layers = config.at<std::vector<int>>(key);
  for (const int layer : layers) {
    if (layer < 0 || layer >= depth) config.refuse(key, fmt::format("{} is no layer of {}", layer, depth));
  }
  return layers;
}

SkipSpec read_skips(const Config& config, int depth) {
  SkipSpec skips;
  skips.copied = {read_layers(config, "bskcn_1", depth), read_layers(config, "bskcn_2", depth)};
  skips.blended = {read_layers(config, "bskcn_3", depth), read_layers(config, "bskcn_4", depth)};
  for (size_t i = 0; i < skips.copied.size(); ++i) {
    for (const int layer : skips.blended[i]) {
      if (std::ranges::any_of(skips.copied[i], [&](int copied) { return copied <= layer; })) continue;
      config.refuse(i == 0 ? "bskcn_3" : "bskcn_4", fmt::format("nothing is copied before layer {}", layer));
    }
  }
  // The shares in training and in inference.
  const auto shares = config.at<std::vector<double>>("bskcn_tv");
  if (shares.size() != 2) config.refuse("bskcn_tv", fmt::format("has {} values, expected 2", shares.size()));
  skips.share = static_cast<float>(shares[1]);
  return skips;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "solar");
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  read_one_window(config, s, 2047);
  s.auxiliary_stream = [skips = read_skips(config, s.depth())](const Weights&, const DecoderSpec& spec) {
    return std::make_unique<SkipConnections>(skips, spec.hidden);
  };
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "solar", .architectures = {"SolarForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::solar
