// ERNIE 4.5 with experts in a range of layers, chosen by corrected scores.
#include "nn/decoder_config.h"
#include "nn/next_token_layers.h"

namespace sluice::models::ernie4_5_moe {
namespace {

DecoderSpec read(const Config& config) {
  DecoderSpec s =
      llama_like(config, "ernie4_5_moe", {.norm_eps = 1e-5, .tied_head = true, .rope = {.theta = 500000.0}});
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = config.get("use_bias", false);
  s.attention.interleaved_rope = true;
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1536));
  read_experts(config, s, "moe_num_experts", "moe_k", inner);
  s.moe.correction = "moe_statics.e_score_correction_bias";
  s.moe.correction_shape = {1, s.moe.experts};
  s.moe.normalize = true;
  s.moe.smallest_sum = config.get("moe_norm_min", 1e-12f);
  s.moe.shared_inner = inner * config.get("moe_num_shared_experts", 2);
  s.moe.shared_bias = s.head_bias = s.mlp.bias;
  const int first = config.get("moe_layer_start_index", 1), last = config.get("moe_layer_end_index", -1);
  const int interval = read_positive(config, "moe_layer_interval", config.get("moe_layer_interval", 1));
  for (int i = 0; i < s.depth(); ++i) {
    s.layers[i].moe = (i + 1) % interval == 0 && i >= first && (last < 0 || i <= last);
  }
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  config.ignore("num_nextn_predict_layers");
  ignore_tensors(context, "model.mtp_");
  return decoder_lm(read(config), context, max_len);
}

// As in Baidu's FastDeploy: a dense layer, behind which comes the model's own norm.
std::unique_ptr<Model> build_predictor(const Config& config, LoadContext& context, const Model& model, int max_len) {
  NextTokenNames names;
  names.path = "mtp_block.0";
  names.norm.clear();
  names.input.embedding_norm = "mtp_emb_norm.0";
  names.input.hidden_norm = "mtp_hidden_norm.0";
  names.input.projection = "mtp_linear_proj.0";
  names.input_path = "";
  names.dense = true;
  return next_token_layer(config, read, context, model, max_len, names);
}

const ModelFamily family{
    .name = "ernie4_5_moe",
    .architectures = {"Ernie4_5_MoeForCausalLM"},
    .build = build,
    .ignored =
        {
            {"moe_capacity"},
            {"moe_gate", "\"topk\""},
            {"moe_use_aux_free", "true"},
        },
    .build_predictor = build_predictor,
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::ernie4_5_moe
