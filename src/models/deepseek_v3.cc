// DeepSeek-V3 and R1 (arXiv:2412.19437), and Kimi K2 and Moonlight under the same architecture: latent attention;
// experts chosen by sigmoid scores with corrections in the best groups.
#include "models/deepseek.h"
#include "nn/next_token_layers.h"

namespace sluice::models::deepseek_v3 {
namespace {

DecoderSpec read(const Config& config) {
  DecoderSpec s = latent_llama_like(config, "deepseek_v3");
  const auto only = [&](const char* key, const std::string& wanted) {
    const auto value = config.get(key, wanted);
    if (value != wanted) config.refuse(key, "must be " + wanted + ", not '" + value + "'");
  };
  only("scoring_func", "sigmoid");
  only("topk_method", "noaux_tc");
  read_deepseek_experts(config, s, true,
                        {.default_shared = 1, .default_scale = 2.5f, .default_groups = 8, .default_top_groups = 4});
  read_deepseek_layers(config, s, 3);
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read(config);
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build_predictor(const Config& config, LoadContext& context, const Model& model, int max_len) {
  return next_token_layer(config, read, context, model, max_len);
}

const ModelFamily family{.name = "deepseek_v3",
                         .architectures = {"DeepseekV3ForCausalLM"},
                         .build = build,
                         .build_predictor = build_predictor};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::deepseek_v3
