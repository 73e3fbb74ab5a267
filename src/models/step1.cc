// Step 1, the decoder of Step-Audio-EditX (StepFun): Llama without rotation, whose scores fall with the square root of
// the distance (ALiBi's slopes, Press et al. 2021, arXiv:2108.12409).
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::step1 {
namespace {

// Biases for distances of -reach to reach. Attention is causal, so those of later keys are never read.
std::vector<float> root_biases(int heads, int reach) {
  const int64_t entries = 2 * int64_t{reach} + 1;
  const std::vector<float> slopes = alibi_slopes(heads);
  std::vector<float> biases(static_cast<size_t>(heads * entries), 0.0f);
  for (int h = 0; h < heads; ++h) {
    for (int64_t distance = 1; distance <= reach; ++distance) {
      biases[static_cast<size_t>(h * entries + reach - distance)] =
          -slopes[h] * std::sqrt(static_cast<float>(distance));
    }
  }
  return biases;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "step1", {.kv_heads = "num_attention_groups"});
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-5));
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", true);
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  config.ignore("max_seq_len");  // repeats max_position_embeddings
  s.positions = Positions::kAlibi;
  AttentionSpec& a = s.attention;
  a.relative_reach = (max_len > 0 ? max_len : s.max_positions) - 1;
  context.weight_bytes +=
      sizeof(float) * s.layers.size() * static_cast<size_t>(a.heads) * (2 * size_t(a.relative_reach) + 1);
  if (!context.dry) a.relative_bias = root_biases(a.heads, a.relative_reach);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "step1", .architectures = {"Step1ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::step1
