// Tests that checkpoints are refused by name if they ask for something unknown, contradict themselves or lack a tensor.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/thread_pool.h"
#include "formats/safetensors.h"
#include "nn/model.h"
#include "sluice/error.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice::model_errors_test {
namespace {

namespace fs = std::filesystem;

struct Change {
  std::function<void(Json& config)> config = [](Json&) {};
  std::function<void(Json& rows)> tensors = [](Json&) {};
};

// A checkpoint's model, and what loading it leaves behind.
struct Loaded {
  explicit Loaded(const std::string& folder, bool dry = true)
      : checkpoint(open_checkpoint(folder)),
        context{.checkpoint = *checkpoint, .queue = queue, .dtype = &kFloat32, .dry = dry},
        model(find_family(checkpoint->config).build(checkpoint->config, context, 0)) {}

  std::unique_ptr<Checkpoint> checkpoint;
  ThreadPool threads{1};
  ops::Queue queue{ops::select_backend("reference").open(0), threads};
  LoadContext context;
  std::unique_ptr<Model> model;
};

// Returns the loader's error for a golden after the change; empty if it loads.
std::string error_of(const Change& change, const char* name = "llama", bool dry = true) {
  const fs::path golden = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch" / name;
  const testing::TempFolder source, folder;
  Json config = read_json_file((golden / "config.json").string());
  Json rows = read_json_file((golden / "weights.json").string());
  change.config(config);
  change.tensors(rows);
  source.write("config.json", dump_json(config));
  source.write("weights.json", dump_json(rows));
  testing::write_hashed_checkpoint(source.path().string(), folder.path().string());
  try {
    Loaded loaded(folder.path().string(), dry);
    loaded.context.finish();
    const std::vector<std::string> unread = loaded.checkpoint->config.unread();
    return unread.empty() ? "" : "unread " + unread.front();
  } catch (const Error& e) {
    return e.what();
  }
}

Change set(const std::string& key, const Json& value) {
  return {.config = [=](Json& config) { config[key] = value; }};
}

void expect_error(const Change& change, const std::string& part, const char* name = "llama") {
  const std::string error = error_of(change, name);
  EXPECT_NE(error.find(part), std::string::npos) << "wanted " << part << ", got: " << error;
}

TEST(ModelErrors, IndexersAreRefusedByTheirKeys) {
  const char* name = "glm_moe_dsa-selected";
  EXPECT_EQ(error_of({}, name), "");
  expect_error(set("layer_types", {"indexed_attention", "sliding_attention", "indexed_attention"}), "layer_types",
               "deepseek_v32-1");
  expect_error(set("index_topk", 0), "index_topk", name);
  expect_error(set("index_head_dim", 8), "index_head_dim", name);
  expect_error(set("q_lora_rank", nullptr), "q_lora_rank", name);
  expect_error(set("indexer_types", {"shared", "full", "full", "full"}), "indexer_types", name);
  expect_error(set("indexer_types", {"full", "sliding", "full", "full"}), "sliding", name);
  expect_error(set("indexer_types", {"full", "full"}), "2 entries for 4 layers", name);
}

// Each version of transformers has its own name for these layers.
TEST(ModelErrors, LayersWithAnIndexerHaveTwoNames) {
  const char* other = "deepseek_sparse_attention";
  EXPECT_EQ(error_of(set("layer_types", {other, other, other}), "deepseek_v32-1"), "");
}

// Zero shared experts, for example, are stored as tensors without elements.
TEST(ModelErrors, TensorsWithoutElementsAreNotMissed) {
  const auto add = [](Json& rows) {
    rows.push_back({{"name", "model.layers.0.empty.weight"}, {"shape", {0, 64}}, {"mean", 0.0}, {"std", 0.1}});
  };
  EXPECT_EQ(error_of({.tensors = add}), "");
}

// transformers writes the default of rope_theta into every configuration of this family.
TEST(ModelErrors, Cohere2MoeHasAThetaThatNobodyReads) {
  expect_error(set("rope_theta", 12345.0), "rope_theta", "llama");
  EXPECT_EQ(error_of(set("rope_theta", 12345.0), "cohere2_moe-1"), "");
}

// The class of the configuration switches windows off. Its layers cannot ask for them, then.
TEST(ModelErrors, QwenHasNoWindowsUnlessItUsesThem) {
  Json keys = {{"use_sliding_window", false},
               {"sliding_window", 8},
               {"layer_types", {"full_attention", "sliding_attention", "full_attention"}}};
  const auto change = [&](Json& config) { config.update(keys); };
  expect_error({.config = change}, "without a sliding_window", "qwen2");
  keys["use_sliding_window"] = true;
  EXPECT_EQ(error_of({.config = change}, "qwen2"), "");
}

TEST(ModelErrors, BambaRotatesHalfOfAHead) {
  const auto change = [](double partial) {
    return [=](Json& config) { config.update({{"rope_parameters", nullptr}, {"partial_rotary_factor", partial}}); };
  };
  EXPECT_EQ(error_of({.config = change(0.5)}, "bamba"), "");
  expect_error({.config = change(1.0)}, "must be 0.5", "bamba");
}

// transformers has the key for this family, and never reads it.
TEST(ModelErrors, Cohere2MoeHasNoScaledRotation) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const Json keys = {{"rope_parameters", nullptr}, {"rope_scaling", yarn}};
  expect_error({.config = [&](Json& config) { config.update(keys); }}, "must be null", "cohere2_moe-1");
}

TEST(ModelErrors, TheUnchangedModelLoads) { EXPECT_EQ(error_of({}), ""); }

TEST(ModelErrors, ConfigurationKeysAreNamed) {
  expect_error(set("architectures", {"NoSuchForCausalLM"}), "NoSuchForCausalLM");
  expect_error(set("architectures", Json::array()), "architectures");
  expect_error(set("hidden_size", nullptr), "hidden_size");
  expect_error(set("hidden_size", "64"), "hidden_size");
  expect_error(set("hidden_size", -64), "hidden_size");
  expect_error(set("num_key_value_heads", 3), "num_key_value_heads");
  expect_error(set("hidden_act", "swish_of_tomorrow"), "swish_of_tomorrow");
  expect_error(set("some_new_switch", true), "unread some_new_switch");
  expect_error(set("quantization_config", {{"quant_method", "awq"}}), "bits");
  expect_error(set("quantization_config", {{"quant_method", "mxfp4"}, {"block", 32}}), "block");
}

TEST(ModelErrors, RopeSettingsAreChecked) {
  expect_error(set("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "spiral"}}), "spiral");
  expect_error(set("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "linear"}}), "factor");
  expect_error(set("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "default"}, {"twist", 2}}), "twist");
  expect_error(set("rope_parameters", {{"rope_theta", 1e4},
                                       {"rope_type", "longrope"},
                                       {"factor", 2.0},
                                       {"short_factor", {1.0}},
                                       {"long_factor", {1.0}}}),
               "short_factor");
  expect_error(set("rope_theta", 500.0), "rope_theta");
  expect_error(set("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), "rope_scaling");
}

TEST(ModelErrors, OlderRopeKeysMeanTheSame) {
  EXPECT_EQ(error_of({.config =
                          [](Json& config) {
                            config.erase("rope_parameters");
                            config["rope_theta"] = 10000.0;
                            config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
                            config.erase("dtype");
                            config["torch_dtype"] = "bfloat16";
                          }}),
            "");
}

TEST(ModelErrors, OptionsNobodyImplementsAreNamed) {
  expect_error(set("use_bidirectional_attention", true), "use_bidirectional_attention", "gemma3_text");
  expect_error(set("hidden_act", "silu"), "act_fn.alpha_n", "apertus");  // left over, because silu has no parameters
  expect_error(set("rotary_dim", 7), "rotary_dim", "gptj");
  expect_error({.config =
                    [](Json& config) {
                      config.erase("attention_layers");
                      config["attention_types"] = {{{"global", "local"}, "once"}};
                    }},
               "attention_types", "gpt_neo");
  expect_error(set("layer_types", {"full_attention"}), "layer_types", "gemma2");
}

TEST(ModelErrors, ExpertsAreChecked) {
  expect_error(set("num_experts_per_tok", 5), "num_experts_per_tok", "mixtral");
  expect_error(set("n_group", 3), "n_group", "dots1");
  expect_error(set("topk_group", 3), "topk_group", "glm4_moe");
  expect_error(set("moe_intermediate_size", 0), "moe_intermediate_size", "qwen3_moe");
}

TEST(ModelErrors, LatentAttentionAndItsExpertsAreChecked) {
  expect_error(set("topk_method", "greedy"), "topk_method", "deepseek_v3");
  expect_error(set("num_experts_per_tok", 5), "topk_group", "deepseek_v3");  // two groups of two experts each
  expect_error(set("norm_topk_prob", true), "norm_topk_prob", "deepseek_v2");
  expect_error(set("topk_method", "noaux_tc"), "topk_method", "deepseek_v2");
  expect_error(set("kv_lora_rank", 0), "kv_lora_rank", "deepseek_v2");
  expect_error(set("quantization_config", {{"quant_method", "hqq"}}), "quant_method", "gpt_oss");
  expect_error(set("experts_per_token", 3), "experts_per_token", "gpt_oss");
  expect_error(set("num_experts_per_tok", 1), "num_experts_per_tok", "phimoe");
  expect_error(set("num_attention_heads", 2), "num_attention_heads", "jetmoe");
}

TEST(ModelErrors, StepsLayersAreChecked) {
  expect_error(set("swiglu_limits", {0.0, 0.2, 0.0, 0.0, 0.0}), "swiglu_limits", "step3p5-1");
  expect_error(set("layer_types", {"full_attention"}), "layer_types", "step3p5-1");
  expect_error(set("yarn_only_types", Json::array()), "yarn_only_types", "step3p5-1");
  expect_error(set("moe_layers_enum", "1,two"), "moe_layers_enum", "step3p5-1");
  expect_error(set("moe_layers_enum", "1, 2"), "layers.3.mlp.gate_proj.weight", "step3p5-1");
  expect_error(set("norm_expert_weight", false), "norm_expert_weight", "step3p5-1");
  expect_error(set("num_attention_heads_per_layer", {4, 6, 5, 4}), "num_attention_heads_per_layer", "laguna-1");
  expect_error(set("gating", "per-layer"), "gating", "laguna-1");
}

TEST(ModelErrors, DeepseeksRelativesAreChecked) {
  expect_error(set("num_hidden_layers", 3), "num_hidden_layers", "longcat_flash-1");
  expect_error(set("mla_scale_q_lora", false), "mla_scale_q_lora", "longcat_flash-1");
  expect_error(set("zero_expert_type", "copy"), "zero_expert_type", "longcat_flash-1");
  expect_error(set("n_group", nullptr), "n_group", "sarvam_mla-1");
  expect_error(set("rope_scaling", nullptr), "rope_scaling", "sarvam_mla-1");
  expect_error(set("rope_scaling", {{"type", "deepseek_yarn"}, {"factor", 40}}), "mscale", "sarvam_mla-1");
  expect_error(set("n_routed_experts", 4), "num_experts", "sarvam_mla-1");
  expect_error(set("kv_lora_rank", nullptr), "kv_lora_rank", "pangu_ultra_moe-1");
  expect_error(set("rope_scaling", {{"type", "yarn"}, {"factor", 4}}), "rope_scaling", "bailing_moe_v2_5-1");
  expect_error(set("layer_group_size", 3), "layer_group_size", "bailing_moe_v2_5-1");
  expect_error(set("group_norm_size", 5), "group_norm_size", "bailing_moe_v2_5-1");
}

// PLaMo 2's texts end at the window of its attention if it has one. Block-sparse attention would choose among blocks.
TEST(ModelErrors, ContextsEndWhereImplementationsDiffer) {
  const auto positions = [](const char* name, const std::function<void(Json&)>& change) {
    const fs::path golden = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch" / name;
    const testing::TempFolder source, folder;
    Json config = read_json_file((golden / "config.json").string());
    change(config);
    source.write("config.json", dump_json(config));
    source.write("weights.json", dump_json(read_json_file((golden / "weights.json").string())));
    testing::write_hashed_checkpoint(source.path().string(), folder.path().string());
    return Loaded(folder.path().string()).model->shape().max_positions;
  };
  EXPECT_EQ(positions("plamo2-1", [](Json& config) { config["attention_window_size"] = 64; }), 64);
  EXPECT_EQ(positions("plamo2-1",
                      [](Json& config) {
                        config["attention_window_size"] = 64;
                        config["full_attention_idx"] = {1, 3};
                      }),
            256);
  EXPECT_EQ(positions("minimax_m3-1", [](Json&) {}), 96);
}

TEST(ModelErrors, SettingsOfSingleLayersAreChecked) {
  const auto in_block = [](size_t block, const std::string& key, const Json& value) {
    return Change{.config = [=](Json& config) { config["block_configs"][block][key] = value; }};
  };
  const char* const name = "nemotron_h_puzzle-1";
  expect_error(in_block(2, "q_indexer_top_k", 8), "q_indexer_top_k", name);
  expect_error(in_block(2, "block_type", "lstm"), "lstm", name);
  expect_error(in_block(1, "n_routed_experts", 5), "layers.1.mixer.gate.weight", name);
  expect_error(in_block(2, "sliding_window", -1), "sliding_window", name);
  expect_error(set("block_configs", nullptr), "block_configs", name);
}

TEST(ModelErrors, CompressedAttentionIsChecked) {
  const char* const name = "deepseek_v4-1";
  expect_error(set("layer_types", {"full_attention", "sliding_attention", "sliding_attention"}), "full_attention",
               name);
  expect_error(set("layer_types", {"sliding_attention"}), "layer_types", name);
  expect_error(set("mlp_layer_types", {"dense", "moe", "moe"}), "mlp_layer_types", name);
  expect_error(set("num_key_value_heads", 2), "num_key_value_heads", name);
  expect_error(set("n_shared_experts", 2), "n_shared_experts", name);
  expect_error(set("o_groups", 3), "o_groups", name);
  expect_error(set("scoring_func", "softmax"), "scoring_func", name);
  expect_error(set("norm_topk_prob", false), "norm_topk_prob", name);
  expect_error(set("swiglu_limit", 0.5), "swiglu_limit", name);
  expect_error(set("hc_sinkhorn_iters", 0), "hc_sinkhorn_iters", name);
  expect_error(set("qk_rope_head_dim", 16), "qk_rope_head_dim", name);
  expect_error(set("compress_rates", {{"compressed_sparse_attention", 8}}), "compressor.ape", name);
  // Published configurations have other names of the same settings.
  const auto published = [](Json& config) {
    for (const char* key :
         {"layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor"}) {
      config.erase(key);
    }
    config.update({{"compress_ratios", {0, 4, 128, 0}},
                   {"compress_rate_hca", 16},
                   {"num_hash_layers", 1},
                   {"expert_dtype", nullptr},
                   {"topk_method", "noaux_tc"},
                   {"rope_scaling", {{"type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", 64}}}});
  };
  EXPECT_EQ(error_of({.config = published}, name), "");
}

TEST(ModelErrors, RecurrentLayersAreChecked) {
  expect_error(set("conv_kernel", 17), "conv_kernel", "mamba");
  expect_error(set("intermediate_size", 100), "in_proj.weight", "mamba");
  expect_error(set("time_step_rank", "many"), "time_step_rank", "falcon_mamba");
  expect_error(set("num_heads", 7), "num_heads", "mamba2");
  expect_error(set("n_groups", 3), "n_groups", "mamba2");
  expect_error(set("time_step_limit", {1.0, 0.5}), "time_step_limit", "mamba2");
  expect_error(set("attn_layer_offset", 2), "attn_layer_offset", "jamba");
  expect_error(set("attn_layer_indices", {3}), "attn_layer_indices", "bamba");
  expect_error(set("attn_rotary_emb", 16), "attn_rotary_emb", "bamba");
  expect_error(set("position_embedding_type", "alibi"), "position_embedding_type", "granitemoehybrid");
  expect_error(set("layer_types", {"mamba", "conv", "attention"}), "conv", "granitemoehybrid");
  expect_error(set("layers_block_type", {"mamba", "lstm"}), "lstm", "nemotron_h");
  expect_error(set("num_hidden_layers", 3), "num_hidden_layers", "nemotron_h");
  expect_error(set("layer_types", {"conv"}), "layer_types", "lfm2");
  expect_error(set("linear_num_key_heads", 3), "linear_num_key_heads", "qwen3_next");
  expect_error(set("linear_conv_kernel_dim", 0), "linear_conv_kernel_dim", "qwen3_next");
  expect_error(set("block_types", {"recurrent", "dense"}), "dense", "recurrent_gemma");
  expect_error(set("mlp_beta_factor", 0), "mlp_beta_factor", "minimax");
}

// MiniMax's files may contain decays that follow from the sizes; other decays would be another model.
TEST(ModelErrors, StoredDecaysMustFollowFromTheSizes) {
  const auto with_slopes = [](const std::vector<double>& slopes) {
    return Change{.tensors = [=](Json& rows) {
      rows.push_back({{"name", "model.layers.0.self_attn.slope_rate"}, {"shape", {4, 1, 1}}, {"values", slopes}});
    }};
  };
  EXPECT_EQ(error_of(with_slopes({0.25, 0.0625, 0.015625, 0.00390625}), "minimax", false), "");
  EXPECT_NE(
      error_of(with_slopes({0.25, 0.125, 0.0625, 0.03125}), "minimax", false).find("layers.0.self_attn.slope_rate"),
      std::string::npos);
}

TEST(ModelErrors, OlderNamesOfRecurrentLayersMeanTheSame) {
  EXPECT_EQ(error_of(set("time_step_rank", "auto"), "mamba"), "");
  EXPECT_EQ(error_of(set("layer_types", {"mamba", "attention", "mamba"}), "granitemoehybrid"), "");
  EXPECT_EQ(error_of({.config =
                          [](Json& config) {
                            config.erase("layers_block_type");
                            config["hybrid_override_pattern"] = "M-*-";
                          }},
                     "nemotron_h"),
            "");
  EXPECT_EQ(error_of({.config =
                          [](Json& config) {
                            config.erase("layer_types");
                            config["full_attn_idxs"] = {1, 3};
                            config["block_ff_dim"] = config["intermediate_size"];
                          }},
                     "lfm2"),
            "");
}

// Keys of published files that transformers 5 no longer writes.
TEST(ModelErrors, KeysOfPublishedFilesAreUnderstood) {
  const auto with = [](const Json& keys) {
    return Change{.config = [=](Json& config) {
      config.erase("rope_parameters");
      for (const auto& [key, value] : keys.items()) config[key] = value;
    }};
  };
  const Json yarn = {{"type", "yarn"},       {"factor", 40},   {"mscale", 0.707},
                     {"beta_fast", 32},      {"beta_slow", 1}, {"original_max_position_embeddings", 64},
                     {"mscale_all_dim", 0.5}};
  EXPECT_EQ(error_of(with({{"aux_loss_alpha", 0.001},
                           {"ep_size", 1},
                           {"moe_layer_freq", 1},
                           {"rope_scaling", yarn},
                           {"rope_theta", 10000},
                           {"scoring_func", "softmax"},
                           {"seq_aux", true},
                           {"topk_method", "gready"}}),
                     "deepseek_v2"),
            "");
  EXPECT_EQ(error_of(with({{"ep_size", 1},
                           {"moe_layer_freq", 1},
                           {"rope_scaling", yarn},
                           {"rope_theta", 10000},
                           {"scoring_func", "sigmoid"},
                           {"topk_method", "noaux_tc"}}),
                     "deepseek_v3"),
            "");
  const Json quantized = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  EXPECT_EQ(error_of(with({{"experts_per_token", 2},
                           {"initial_context_length", 64},
                           {"swiglu_limit", 7.0},
                           {"quantization_config", quantized}}),
                     "gpt_oss"),
            "");
  const Json longrope = {{"type", "longrope"},
                         {"short_mscale", 1.2},
                         {"long_mscale", 1.3},
                         {"short_factor", {1, 1, 1, 1, 1, 1, 1, 1}},
                         {"long_factor", {2, 2, 2, 2, 2, 2, 2, 2}},
                         {"original_max_position_embeddings", 64}};
  EXPECT_EQ(
      error_of(with({{"original_max_position_embeddings", 64}, {"rope_scaling", longrope}, {"rope_theta", 10000.0}}),
               "phimoe"),
      "");
}

TEST(ModelErrors, APartOfTheRotatedDimensionsIsRefused) {
  const Change partial = set("rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}});
  expect_error(partial, "partial_rotary_factor", "deepseek_v2");
  expect_error(partial, "partial_rotary_factor", "deepseek_v3");
}

TEST(ModelErrors, LayersThatPredictFurtherTokensAreLeftAlone) {
  const auto with_layer = [](int layer) {
    return Change{.tensors = [=](Json& rows) {
      rows.push_back({{"name", "model.layers." + std::to_string(layer) + ".eh_proj.weight"},
                      {"shape", {64, 128}},
                      {"mean", 0},
                      {"std", 1}});
    }};
  };
  EXPECT_EQ(error_of(with_layer(3), "deepseek_v3"), "");
  expect_error(with_layer(4), "model.layers.4.eh_proj.weight", "deepseek_v3");
  expect_error(with_layer(3), "model.layers.3.eh_proj.weight", "deepseek_v2");
}

TEST(ModelErrors, TensorsAreNamed) {
  expect_error({.tensors = [](Json& rows) { rows.erase(0); }}, "'lm_head.weight' [320, 64] is missing");
  expect_error({.tensors = [](Json& rows) { rows[2]["shape"] = {63}; }},
               "'model.layers.0.input_layernorm.weight' has shape [63]");
  expect_error(
      {.tensors =
           [](Json& rows) {
             rows.push_back({{"name", "model.layers.0.extra.weight"}, {"shape", {4}}, {"mean", 0}, {"std", 1}});
           }},
      "'model.layers.0.extra.weight' [4] is not used");
  expect_error({.tensors =
                    [](Json& rows) {
                      rows.push_back(
                          {{"name", "model.layers.0.self_attn.q_proj.bias"}, {"shape", {64}}, {"mean", 0}, {"std", 1}});
                    }},
               "q_proj.bias");
}

}  // namespace
}  // namespace sluice::model_errors_test
