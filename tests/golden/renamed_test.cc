// Tests families that transformers does not have, or has under another name, and whose graph equals that of a family
// with a golden. The golden's weights under the family's names, fused and scaled as it stores them, must give the
// golden's logits.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "base/mmap.h"
#include "golden/stored_model.h"
#include "sluice/error.h"

namespace sluice::renamed_test {
namespace {

namespace fs = std::filesystem;
using Model = StoredModel;

// Loads the golden after `change` and compares all logits; `column` scales the expected value of a token.
void expect_golden(
    const std::string& name, const std::function<void(Model&)>& change,
    const std::function<float(int64_t token)>& column = [](int64_t) { return 1.0f; }) {
  SCOPED_TRACE(name);
  const fs::path golden = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch" / name;
  const testing::TempFolder folder;
  Model model = read_stored_model(name);
  change(model);
  write(model, folder);

  std::map<std::string, TensorEntry> expected;
  const MappedFile file((golden / "golden.safetensors").string());
  for (TensorEntry& entry : read_safetensors(file.bytes(), name)) expected.emplace(entry.name, entry);
  const auto* ids = reinterpret_cast<const int32_t*>(expected.at("ids_1").data);
  const Tensor want = expected.at("logits_1").view();
  const TextLogits got = logits_of(folder, {ids, static_cast<size_t>(want.rows())});
  const int64_t vocab = static_cast<int64_t>(got.values.size()) / want.rows();  // may be more than the golden's
  for (int64_t position = 0; position < want.rows(); ++position) {
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < want.shape[1]; ++i) {
      const double e = double{want.f32()[position * want.row_stride + i]} * column(i);
      worst = std::max(worst, std::abs(got.values[static_cast<size_t>(position * vocab + i)] - e));
      largest = std::max(largest, std::abs(e));
    }
    EXPECT_LE(worst, 2e-4 * largest) << "row " << position;
  }
}

void rename_to_internlm2(Model& m) {
  const int64_t dim = m.config.at("head_dim"), kv = m.config.at("num_key_value_heads");
  const int64_t group = m.config.at("num_attention_heads").get<int64_t>() / kv;
  std::vector<Model::Chunk> chunks;
  for (int64_t g = 0; g < kv; ++g) {
    chunks.insert(chunks.end(), {{'q', g * group * dim, group * dim}, {'k', g * dim, dim}, {'v', g * dim, dim}});
  }
  m.fuse_qkv("wqkv", chunks);
  for (const char* key : {"attention_bias", "mlp_bias"}) m.config.erase(key);
  m.set({{"architectures", {"InternLM2ForCausalLM"}}, {"model_type", "internlm2"}, {"bias", false}});
  m.rename("self_attn.o_proj", "attention.wo");
  m.rename("self_attn", "attention");
  m.rename("mlp.gate_proj", "feed_forward.w1");
  m.rename("mlp.up_proj", "feed_forward.w3");
  m.rename("mlp.down_proj", "feed_forward.w2");
  m.rename("input_layernorm", "attention_norm");
  m.rename("post_attention_layernorm", "ffn_norm");
  m.rename("embed_tokens", "tok_embeddings");
  m.rename("lm_head", "output");
}

TEST(Renamed, InternLm2GroupsItsProjections) { expect_golden("llama", rename_to_internlm2); }

TEST(Renamed, MonoInternVlHasMlpsThatTextDoesNotUse) {
  expect_golden("llama", [](Model& m) {
    rename_to_internlm2(m);
    m.set({{"architectures", {"InternLM2VEForCausalLM"}}});
    m.tensors["model.layers.1.feed_forward_ve.w1.weight"] = {.shape = {1, 2}, .values = {1, 2}};
  });
}

TEST(Renamed, InternLm3HasBiasesOfQwen2) {
  expect_golden("qwen2", [](Model& m) {
    for (const char* key : {"use_sliding_window", "max_window_layers", "layer_types"}) m.config.erase(key);
    m.set({{"architectures", {"InternLM3ForCausalLM"}}, {"qkv_bias", true}, {"bias", false}});
  });
}

// Every query head gets a copy of its key and value.
std::vector<Model::Chunk> multi_head_chunks(const Model& m) {
  const int64_t dim = m.config.at("head_dim"), heads = m.config.at("num_attention_heads");
  const int64_t group = heads / m.config.at("num_key_value_heads").get<int64_t>();
  std::vector<Model::Chunk> chunks = {{'q', 0, heads * dim}};
  for (char t : {'k', 'v'}) {
    for (int64_t h = 0; h < heads; ++h) chunks.push_back({t, h / group * dim, dim});
  }
  return chunks;
}

void make_baichuan(Model& m) {
  m.fuse_qkv("W_pack", multi_head_chunks(m));
  for (const char* key : {"attention_bias", "mlp_bias", "num_key_value_heads", "head_dim"}) m.config.erase(key);
  m.set({{"architectures", {"BaichuanForCausalLM"}}, {"model_max_length", 256}, {"z_loss_weight", 0}});
}

TEST(Renamed, BaichuanPacksItsProjections) { expect_golden("llama", make_baichuan); }

// The second generation's head is recognized by its vocabulary size; logits beyond the golden's tokens are zero.
TEST(Renamed, Baichuan2HasAHeadOfUnitRows) {
  std::vector<float> lengths;
  expect_golden(
      "llama",
      [&](Model& m) {
        make_baichuan(m);
        constexpr int64_t kVocab = 125696;
        m.set({{"vocab_size", kVocab}});
        const StoredMatrix& head = m.tensors.at("lm_head.weight");
        const int64_t width = head.shape[1];
        for (int64_t i = 0; i < head.shape[0]; ++i) {
          double squares = 0;
          for (int64_t j = 0; j < width; ++j) squares += std::pow(double{head.values[i * width + j]}, 2);
          lengths.push_back(static_cast<float>(std::sqrt(squares)));
        }
        for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"}) {
          m.tensors.at(name).values.resize(static_cast<size_t>(kVocab * width));
          m.tensors.at(name).shape = {kVocab, width};
        }
      },
      [&](int64_t token) { return 1.0f / lengths[static_cast<size_t>(token)]; });
}

TEST(Renamed, MiniCpmScalesLikeGranite) {
  expect_golden("granite", [](Model& m) {
    const double layers = m.config.at("num_hidden_layers"), hidden = m.config.at("hidden_size");
    const double dim = hidden / m.config.at("num_attention_heads").get<double>();
    m.scale("q_proj", static_cast<float>(m.config.at("attention_multiplier").get<double>() * std::sqrt(dim)));
    m.set({{"architectures", {"MiniCPMForCausalLM"}},
           {"scale_emb", m.config.at("embedding_multiplier")},
           {"scale_depth", m.config.at("residual_multiplier").get<double>() * std::sqrt(layers)},
           {"dim_model_base", hidden / m.config.at("logits_scaling").get<double>()}});
    for (const char* key :
         {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling", "mlp_bias"}) {
      m.config.erase(key);
    }
  });
}

TEST(Renamed, ExaoneIsLlama) {
  expect_golden("llama", [](Model& m) {
    for (const char* key : {"attention_bias", "mlp_bias", "head_dim"}) m.config.erase(key);
    m.set({{"architectures", {"ExaoneForCausalLM"}}});
    m.rename("self_attn.o_proj", "self_attn.out_proj");
    m.rename("self_attn", "attn.attention");
    m.rename("mlp.gate_proj", "mlp.c_fc_0");
    m.rename("mlp.up_proj", "mlp.c_fc_1");
    m.rename("mlp.down_proj", "mlp.c_proj");
    m.rename("input_layernorm", "ln_1");
    m.rename("post_attention_layernorm", "ln_2");
    m.rename("model.norm", "transformer.ln_f");
    m.rename("model.embed_tokens", "transformer.wte");
    m.rename("model.layers", "transformer.h");
    m.move("num_hidden_layers", "num_layers");
    m.move("rms_norm_eps", "layer_norm_epsilon");
    m.move("hidden_act", "activation_function");
  });
}

TEST(Renamed, ChatGlmIsGlm) {
  expect_golden("glm", [](Model& m) {
    const int64_t q = m.tensors.at("model.layers.0.self_attn.q_proj.weight").shape[0];
    const int64_t kv = m.tensors.at("model.layers.0.self_attn.k_proj.weight").shape[0];
    const std::vector<Model::Chunk> chunks = {{'q', 0, q}, {'k', 0, kv}, {'v', 0, kv}};
    m.fuse_qkv("query_key_value", chunks);
    m.fuse_qkv("query_key_value", chunks, "bias");
    m.rename("self_attn.o_proj", "self_attn.dense");
    m.rename("self_attn", "self_attention");
    m.rename("mlp.gate_up_proj", "mlp.dense_h_to_4h");
    m.rename("mlp.down_proj", "mlp.dense_4h_to_h");
    m.rename("model.layers", "transformer.encoder.layers");
    m.rename("model.norm", "transformer.encoder.final_layernorm");
    m.rename("model.embed_tokens", "transformer.embedding.word_embeddings");
    m.rename("lm_head", "transformer.output_layer");
    const Json golden = m.config;
    m.config = {{"architectures", {"ChatGLMModel"}},
                {"add_bias_linear", false},
                {"add_qkv_bias", true},
                {"apply_query_key_layer_scaling", true},
                {"ffn_hidden_size", golden.at("intermediate_size")},
                {"hidden_size", golden.at("hidden_size")},
                {"kv_channels", golden.at("head_dim")},
                {"layernorm_epsilon", golden.at("rms_norm_eps")},
                {"multi_query_attention", true},
                {"multi_query_group_num", golden.at("num_key_value_heads")},
                {"num_attention_heads", golden.at("num_attention_heads")},
                {"num_layers", golden.at("num_hidden_layers")},
                {"original_rope", true},
                {"padded_vocab_size", golden.at("vocab_size")},
                {"post_layer_norm", true},
                {"rmsnorm", true},
                {"rope_ratio", golden.at("rope_parameters").at("rope_theta").get<double>() / 10000.0},
                {"seq_length", golden.at("max_position_embeddings")}};
  });
}

TEST(Renamed, DeepseekMoeRoutesLikeMixtral) {
  expect_golden("mixtral", [](Model& m) {
    m.rename("block_sparse_moe", "mlp");
    m.rename(".w1.", ".gate_proj.");
    m.rename(".w2.", ".down_proj.");
    m.rename(".w3.", ".up_proj.");
    m.move("num_local_experts", "n_routed_experts");
    m.config["moe_intermediate_size"] = m.config.at("intermediate_size");
    if (m.config.at("sliding_window").is_null()) m.config.erase("sliding_window");
    m.config.erase("router_jitter_noise");
    m.set({{"architectures", {"DeepseekForCausalLM"}},
           {"aux_loss_alpha", 0.001},
           {"first_k_dense_replace", 0},
           {"moe_layer_freq", 1},
           {"norm_topk_prob", true},
           {"scoring_func", "softmax"},
           {"seq_aux", true}});
  });
}

TEST(Renamed, Glm4MoeLiteIsDeepseekV3) {
  expect_golden("deepseek_v3", [](Model& m) {
    m.config.erase("first_k_dense_replace");
    m.set({{"architectures", {"Glm4MoeLiteForCausalLM"}}, {"mlp_layer_types", {"dense", "sparse", "sparse"}}});
  });
}

// Keys that a configuration leaves out have the family's values, not those of related ones.
TEST(Renamed, DeepseekV3WithDefaults) {
  expect_golden("deepseek_v3-2", [](Model& m) { m.config.erase("routed_scaling_factor"); });
  expect_golden("deepseek_v3-yarn", [](Model& m) { m.config.erase("n_shared_experts"); });
  expect_golden("glm4_moe_lite-1", [](Model& m) {
    for (const char* key : {"routed_scaling_factor", "n_shared_experts", "n_group", "topk_group"}) m.config.erase(key);
  });
}

// transformers renames the experts' module back in dense layers, too.
TEST(Renamed, KimiLinearAsTransformersSavesIt) {
  expect_golden("kimi_linear-1", [](Model& m) { m.rename(".mlp.", ".block_sparse_moe."); });
}

// transformers joins the convolutions of queries, keys and values, and saves equal thirds. Here they are 43, 43 and 42
// of the channels.
TEST(Renamed, OlmoHybridAsTransformersSavesIt) {
  expect_golden("olmo_hybrid-1", [](Model& m) {
    for (int layer = 0; layer < m.config.at("num_hidden_layers"); ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.linear_attn.", layer);
      std::vector<float> all;
      std::vector<StoredMatrix*> parts;
      for (const char* part : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
        const auto found = m.tensors.find(prefix + part);
        if (found == m.tensors.end()) break;
        parts.push_back(&found->second);
        all.insert(all.end(), found->second.values.begin(), found->second.values.end());
      }
      if (parts.empty()) continue;
      const int64_t width = parts[0]->shape[2], channels = static_cast<int64_t>(all.size()) / width;
      auto next = all.begin();
      for (StoredMatrix* part : parts) {
        const int64_t rows = std::min<int64_t>((channels + 2) / 3, (all.end() - next) / width);
        *part = {.shape = {rows, 1, width}, .values = {next, next + rows * width}};
        next += rows * width;
      }
    }
  });
}

// A head that is no copy of the embedding table is used although the configuration ties them, as in transformers.
TEST(Renamed, AHeadOfItsOwnIsUsedWhateverTheConfigurationSays) {
  expect_golden("llama", [](Model& m) { m.set({{"tie_word_embeddings", true}}); });
  expect_golden("smollm3", [](Model& m) { m.tensors["lm_head.weight"] = m.tensors.at("model.embed_tokens.weight"); });
}

// The text part of an image model, in both layouts that transformers has written, beside tensors of its other parts.
TEST(Renamed, TextInsideOfOtherModels) {
  const auto wrap = [](Model& m, const char* architecture, const std::string& body, const std::string& head) {
    m.config.erase("architectures");
    m.config = {{"architectures", {architecture}}, {"text_config", m.config}, {"vision_config", {{"hidden_size", 8}}}};
    m.rename("lm_head.", head);
    m.rename("model.", body);
    m.tensors["vision_tower.layers.0.weight"] = {.shape = {2, 2}, .values = {1, 2, 3, 4}};
  };
  expect_golden("gemma3_text", [&](Model& m) {
    wrap(m, "Gemma3ForConditionalGeneration", "language_model.model.", "language_model.lm_head.");
  });
  expect_golden("mistral",
                [&](Model& m) { wrap(m, "Mistral3ForConditionalGeneration", "model.language_model.", "lm_head."); });
}

// The size of Gemma 4 without encoders has a family of its own, whose window is wider by default.
TEST(Renamed, UnifiedGemma4IsGemma4WithoutInputsOfLayers) {
  expect_golden("gemma4_text-3", [](Model& m) {
    m.set({{"architectures", {"Gemma4UnifiedForCausalLM"}}, {"model_type", "gemma4_unified_text"}});
    for (const char* key : {"enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size",
                            "vocab_size_per_layer_input", "hidden_size_per_layer_input"}) {
      m.config.erase(key);
    }
    m.config = {{"architectures", {"Gemma4UnifiedForConditionalGeneration"}}, {"text_config", m.config}};
    m.rename("model.", "model.language_model.");
    m.tensors["model.vision_embedder.patch_dense.weight"] = {.shape = {2, 2}, .values = {1, 2, 3, 4}};
  });
}

TEST(Renamed, TextBesideOtherPartsOfTheConfiguration) {
  expect_golden("qwen2", [](Model& m) {
    m.config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
    m.config["rope_theta"] = m.config.at("rope_parameters").at("rope_theta");
    m.config.erase("rope_parameters");
    m.set({{"architectures", {"Qwen2_5_VLForConditionalGeneration"}},
           {"model_type", "qwen2_5_vl"},
           {"vision_start_token_id", 1},
           {"image_token_id", 2},
           {"vision_config", {{"depth", 1}}}});
    m.tensors["visual.patch_embed.weight"] = {.shape = {1, 2}, .values = {1, 2}};
  });
}

TEST(Renamed, SolarOpenIsGlm4MoeWithoutNormsOfQueries) {
  expect_golden("glm4_moe-2", [](Model& m) { m.set({{"architectures", {"SolarOpenForCausalLM"}}}); });
}

TEST(Renamed, ExaoneMoeIsDots1WithoutWindows) {
  expect_golden("dots1", [](Model& m) {
    for (const char* key : {"layer_types", "max_window_layers", "attention_bias"}) m.config.erase(key);
    m.move("n_routed_experts", "num_experts");
    m.move("n_shared_experts", "num_shared_experts");
    m.rename("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias");
    m.set({{"architectures", {"ExaoneMoeForCausalLM"}},
           {"sliding_window", nullptr},
           {"mlp_layer_types", {"dense", "sparse", "sparse"}}});
  });
}

TEST(Renamed, CwmSlidesLikeMistral) {
  expect_golden("mistral", [](Model& m) {
    const std::vector<std::string> kinds(m.config.at("num_hidden_layers").get<size_t>(), "sliding_attention");
    m.set({{"architectures", {"CwmForCausalLM"}}, {"layer_types", kinds}});
  });
}

TEST(Renamed, LlamaAndMistralUnderOtherNames) {
  const auto named = [](const char* architecture) {
    return [=](Model& m) { m.set({{"architectures", {architecture}}}); };
  };
  for (const char* architecture : {"AquilaForCausalLM", "AquilaModel", "XverseForCausalLM"}) {
    expect_golden("llama-llama3", named(architecture));
  }
  expect_golden("mistral", named("GritLM"));
}

// StableLM as published before transformers supported it.
TEST(Renamed, StableLmEpochSpellsTwoKeysOtherwise) {
  expect_golden("stablelm", [](Model& m) {
    const Json rope = m.config.at("rope_parameters");
    m.config.erase("rope_parameters");
    m.move("layer_norm_eps", "norm_eps");
    m.set({{"architectures", {"StableLMEpochForCausalLM"}},
           {"rope_theta", rope.at("rope_theta")},
           {"rope_pct", rope.at("partial_rotary_factor")},
           {"num_heads", m.config.at("num_attention_heads")},
           {"rotary_scaling_factor", 1.0}});
  });
}

// Decoders in configuration objects of other names, with other prefixes.
TEST(Renamed, TextInsideOfOtherWrappers) {
  const auto inside = [](const char* place, const char* architecture, const char* body, const char* head) {
    return [=](Model& m) {
      Json text = m.config, whole = {{"architectures", {architecture}}, {"vision_config", {{"depth", 1}}}};
      whole[Json::json_pointer(place)] = std::move(text);
      m.config = std::move(whole);
      m.rename("model.", body);  // first, because heads may get a name that contains it
      m.rename("lm_head.", head);
      m.tensors["vision_model.encoder.weight"] = {.shape = {1, 2}, .values = {1, 2}};
    };
  };
  expect_golden("qwen2",
                inside("/llm_config", "InternVLChatModel", "language_model.model.", "language_model.lm_head."));
  expect_golden("deepseek_v3", inside("/text_config", "KimiVLForConditionalGeneration", "language_model.model.",
                                      "language_model.lm_head."));
  expect_golden("llama",
                inside("/text_config", "HCXVisionForCausalLM", "language_model.model.", "language_model.lm_head."));
  expect_golden("hyperclovax-1", inside("/text_config", "HCXVisionV2ForCausalLM", "model.language_model.model.",
                                        "model.language_model.lm_head."));
  expect_golden("muse_glimmer-1",
                inside("/text_config", "MuseGlimmerForConditionalGeneration", "model.language_model.", "lm_head."));
  expect_golden("qwen3_moe", [&](Model& m) {
    m.set({{"model_type", "qwen3_omni_moe_text"}});
    inside("/thinker_config/text_config", "Qwen3OmniMoeForConditionalGeneration", "thinker.model.",
           "thinker.lm_head.")(m);
  });
  expect_golden("step3p5-1", inside("/text_config", "Step3p7ForConditionalGeneration", "model.", "lm_head."));
  expect_golden("minimax_m3-1", [&](Model& m) {
    m.config.erase("model_type");
    inside("/text_config", "MiniMaxM3SparseForConditionalGeneration", "language_model.model.",
           "language_model.lm_head.")(m);
    m.set({{"model_type", "minimax_m3_vl"}});
  });
  expect_golden("nemotron_h", [&](Model& m) {
    inside("/llm_config", "NemotronH_Nano_VL_V2", "model.", "language_model.lm_head.")(m);
    m.rename("backbone.", "language_model.backbone.");
  });
}

// Two keys contradict each other about the head: the stored head is used.
TEST(Renamed, AStoredHeadIsUsedWhereTheConfigurationContradictsItself) {
  expect_golden("qwen2", [](Model& m) {
    m.config = {{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", m.config}};
    m.config["text_config"]["tie_word_embeddings"] = true;
    m.config["tie_word_embeddings"] = false;
  });
}

struct Published {
  const char* golden;
  Json more;
};

// Keys of published files that have no effect, or repeat what the family does anyway.
TEST(Renamed, PublishedConfigurationsCarryMoreThanTheModel) {
  const Published files[] = {
      {"cohere2", Json{{"cache_implementation", "hybrid"},
                       {"layer_switch", 4},
                       {"order_of_interleaved_layers", "local_attn_first"},
                       {"position_embedding_type", "rope_gptj"},
                       {"rotary_pct", 1.0},
                       {"use_embedding_sharding", true},
                       {"use_gated_activation", true},
                       {"use_parallel_block", true},
                       {"use_parallel_embedding", true}}},
      {"gemma2", Json{{"cache_implementation", "hybrid"}, {"hidden_act", "gelu_pytorch_tanh"}}},
      {"llama", Json{{"max_sequence_length", 2048}, {"is_llama_config", true}, {"rope_interleaved", false}}},
      {"qwen2", Json{{"use_mrope", false}}},
      {"qwen3_moe", Json{{"qkv_bias", false}, {"shared_expert_intermediate_size", 0}, {"use_qk_norm", true}}},
      {"phi3",
       Json{{"attention_bias", false}, {"lm_head_bias", false}, {"full_attn_mod", 1}, {"interpolate_factor", 1}}},
      {"starcoder2", Json{{"layer_norm_eps", 1e-5}, {"mlp_type", "default"}, {"norm_type", "layer_norm"}}},
      {"falcon", Json{{"apply_residual_connection_post_layernorm", false}}},
      {"gptj", Json{{"rotary", true}}},
      {"apertus", Json{{"qk_norm", true}, {"post_norm", false}, {"mlp_bias", false}}},
      {"minimax_m2", Json{{"attn_type_list", {1, 1, 1}},
                          {"qk_norm_type", "per_layer"},
                          {"use_qk_norm", true},
                          {"use_routing_bias", true},
                          {"scoring_func", "sigmoid"},
                          {"shared_intermediate_size", 0},
                          {"num_mtp_modules", 3},
                          {"use_mtp", true}}},
      {"nemotron_h", Json{{"rms_norm_eps", 1e-5}, {"rope_theta", 10000}, {"partial_rotary_factor", 1.0}}},
      {"ernie4_5_moe",
       Json{{"moe_capacity", {64, 64, 64}}, {"moe_use_aux_free", true}, {"num_nextn_predict_layers", 1}}},
      {"dots1", Json{{"scoring_func", "noaux_tc"}, {"moe_layer_freq", 1}, {"use_sliding_window", false}}},
  };
  for (const Published& file : files) {
    expect_golden(file.golden, [&](Model& m) { m.set(file.more); });
  }
  expect_golden("hunyuan_v1_moe", [](Model& m) {
    const std::vector<int> each(m.config.at("num_hidden_layers").get<size_t>(), 1);
    Json top = Json::array(), inner = Json::array();
    for (size_t i = 0; i < each.size(); ++i) {
      top.push_back(m.config.at("moe_topk"));
      inner.push_back(m.config.at("intermediate_size"));
    }
    m.set({{"moe_topk", top}, {"moe_intermediate_size", inner}, {"num_shared_expert", each}, {"use_qk_norm", true}});
  });
}

TEST(Renamed, OtherValuesOfThoseKeysAreRefusedByName) {
  const auto refusal = [](const char* golden, const Json& more) -> std::string {
    const testing::TempFolder folder;
    Model model = read_stored_model(golden);
    model.set(more);
    write(model, folder);
    const std::vector<int32_t> ids = {3, 4};
    try {
      logits_of(folder, ids);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const Published files[] = {
      {"cohere2", Json{{"rotary_pct", 0.5}}},
      {"cohere2", Json{{"order_of_interleaved_layers", "global_attn_first"}}},
      {"llama", Json{{"rope_interleaved", true}}},
      {"qwen2", Json{{"use_mrope", true}}},
      {"qwen3_moe", Json{{"use_qk_norm", false}}},
      {"phi3", Json{{"full_attn_mod", 2}}},
      {"starcoder2", Json{{"norm_type", "rms_norm"}}},
      {"minimax_m2", Json{{"attn_type_list", {1, 0, 1}}}},
      {"minimax_m2", Json{{"layernorm_mlp_beta", 3.5}}},
      {"hunyuan_v1_moe", Json{{"num_shared_expert", {1, 2, 1}}}},
      {"hunyuan_v1_moe", Json{{"use_cla", true}}},
      {"llama", Json{{"use_novelty", false}}},
      {"grok-2", Json{{"global_attn_every_n", 2}}},
      {"jais-1", Json{{"activation_function", "gelu_new"}}},
      {"mimo_v2-1", Json{{"attention_projection_layout", "split"}}},
      {"minimax_text_01-1", Json{{"shared_intermediate_size", 64}}},
      {"minimax_text_01-1", Json{{"attn_type_list", {0, 0}}}},
      {"minimax_text_01-1", Json{{"rotary_dim", 24}}},
      {"mistral_large3-1", Json{{"scoring_func", "sigmoid"}}},
      {"muse_glimmer-1", Json{{"layer_rope_theta", {0, 10000.0, 500000.0, 500000.0, 0}}}},
      {"ouro-1", Json{{"early_exit_threshold", 0.5}}},
      {"rnj1-1", Json{{"layer_types", {"full_attention", "chunked_attention", "full_attention"}}}},
      {"solar-1", Json{{"bskcn_3", {0}}}},
      {"solar-1", Json{{"bskcn_tv", {0.8}}}},
      {"telechat-1", Json{{"embed_layernorm", true}}},
      {"telechat-1", Json{{"base_seqlen", nullptr}}},
  };
  for (const Published& file : files) {
    const std::string said = refusal(file.golden, file.more), key = file.more.begin().key();
    EXPECT_NE(said.find("'" + key + "'"), std::string::npos) << file.golden << " " << key << ": " << said;
  }
}

}  // namespace
}  // namespace sluice::renamed_test
