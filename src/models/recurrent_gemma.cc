// RecurrentGemma: two of Griffin's recurrent blocks for every block of local attention (arXiv:2404.07839).
#include <fmt/core.h>

#include <cmath>

#include "models/mamba.h"
#include "nn/recurrent/griffin.h"

namespace sluice::models::recurrent_gemma {
namespace {

void read_layers(const Config& config, DecoderSpec& s, const GriffinSpec& griffin) {
  const auto kinds = config.get("block_types", std::vector<std::string>{"recurrent", "recurrent", "attention"});
  if (kinds.empty()) config.refuse("block_types", "is empty");
  for (int i = 0; i < s.depth(); ++i) {
    const std::string& kind = kinds[static_cast<size_t>(i) % kinds.size()];
    if (kind == "recurrent") {
      s.layers[i].mixer = mixer_of<Griffin>("temporal_block", griffin);
    } else if (kind != "attention") {
      config.refuse("block_types", fmt::format("unknown type '{}' (expected recurrent or attention)", kind));
    }
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "recurrent_gemma",
                             {.activation_key = "hidden_activation",
                              .activation = "gelu_pytorch_tanh",
                              .tied_head = true,
                              .rope = {.partial = 0.5}});
  s.norm.offset = 1.0f;
  read_attention_bias(config, s, false);
  s.attention.out_bias = true;
  s.mlp.bias = true;
  if (s.mlp.inner % 2 != 0)
    config.refuse("intermediate_size", "must be even: gate and up projections have half of it each");
  s.mlp.inner /= 2;
  // The reference keeps the factor in bf16, whatever the type of the weights.
  s.embedding_scale = bf16_to_float(float_to_bf16(std::sqrt(static_cast<float>(s.hidden))));
  s.logit_soft_cap = static_cast<float>(read_or_off(config, "logits_soft_cap", 30.0));
  const int window = config.get("attention_window_size", 2048);
  for (LayerSpec& layer : s.layers) layer.window = read_positive(config, "attention_window_size", window);
  GriffinSpec griffin{.width = read_positive(config, "lru_width", config.get("lru_width", s.hidden)),
                      .heads = s.attention.heads,
                      .conv_width = read_conv_width(config, "conv1d_width", 4),
                      .activation = s.mlp.activation};
  if (griffin.width % griffin.heads != 0) config.refuse("lru_width", "must be a multiple of num_attention_heads");
  read_layers(config, s, griffin);
  s.names.norm = "final_norm";
  s.names.attention = "temporal_block";
  s.names.attention_norm = "temporal_pre_norm";
  s.names.mlp = "mlp_block";
  s.names.mlp_norm = "channel_pre_norm";
  for (const char* key : {"w_init_variance_scale", "final_w_init_variance_scale", "block_types"}) config.ignore(key);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "recurrent_gemma",
    .architectures = {"RecurrentGemmaForCausalLM"},
    .build = build,
    .ignored =
        {
            {"_block_types"},
            {"embeddings_scale_by_sqrt_dim", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::recurrent_gemma
