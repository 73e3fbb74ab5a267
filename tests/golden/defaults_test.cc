// Tests configurations that leave keys out, or have keys that the reference does not read: their logits must be those
// of the complete configuration, as transformers 5.17 writes it after reading the short one.
#include <gtest/gtest.h>

#include "golden/stored_model.h"

namespace sluice::defaults_test {
namespace {

using Change = std::function<void(StoredModel&)>;

std::vector<float> logits_after(const std::string& golden, const Change& change) {
  StoredModel model = read_stored_model(golden);
  change(model);
  const testing::TempFolder folder;
  write(model, folder);
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(3 + i * 7 % 50);
  return logits_of(folder, ids).values;
}

struct Equivalent {
  const char* golden;
  Json complete;  // sets keys
  Json shorter;   // sets keys of the same golden; a key that is "absent" is erased
};

void change(StoredModel& m, const Json& keys) {
  m.set(keys);
  for (const auto& [key, value] : keys.items()) {
    if (value == "absent") m.config.erase(key);
  }
}

Json rope(double theta) { return {{"rope_type", "default"}, {"rope_theta", theta}}; }

Json yarn(double theta, double factor, int original) {
  return {{"rope_type", "yarn"}, {"rope_theta", theta}, {"factor", factor},
          {"beta_fast", 32.0},   {"beta_slow", 1.0},    {"original_max_position_embeddings", original}};
}

Json llama3(double theta, double factor) {
  return {{"rope_type", "llama3"},  {"rope_theta", theta},     {"factor", factor},
          {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
}

Json with(Json object, const Json& more) {
  object.update(more);
  return object;
}

std::vector<Equivalent> equivalents() {
  const Json scaled = {{"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"llama_4_scaling_beta", 0.1}};
  const Json sliding = rope(1e4), proportional = {
                                      {"rope_type", "proportional"},
                                      {"rope_theta", 1e6},
                                      {"partial_rotary_factor", 0.25},
                                  };
  const auto ropes = [](const Json& local, const Json& global) -> Json {
    return {{"sliding_attention", local}, {"full_attention", global}};
  };
  const auto parameters = [](const Json& value) -> Json { return {{"rope_parameters", value}}; };
  return {
      {"apertus", parameters(llama3(12e6, 8)), {{"rope_parameters", "absent"}, {"rope_theta", 15e4}}},
      {"cwm-1", parameters(llama3(1e6, 16)), {{"rope_parameters", "absent"}, {"rope_theta", 15e4}}},
      {"gpt_oss",
       parameters(with(yarn(7e4, 32, 4096), {{"truncate", false}})),
       {{"rope_parameters", "absent"}, {"rope_theta", 7e4}}},
      {"ministral3-1", parameters(with(yarn(1e6, 16, 16384), scaled)), parameters("absent")},
      {"mistral4-1", parameters(with(yarn(1e4, 128, 8192), scaled)), parameters("absent")},
      {"gemma4_text-4", parameters(ropes(sliding, proportional)), parameters("absent")},
      {"gemma4_text-4", parameters(ropes(sliding, rope(1e6))),
       parameters(ropes(sliding, with(rope(1e6), {{"partial_rotary_factor", 0.25}})))},
      {"gpt_neox",
       parameters(with(rope(5e3), {{"partial_rotary_factor", 0.5}})),
       {{"rope_parameters", "absent"},
        {"rotary_emb_base", 5e3},
        {"rotary_pct", 0.5},
        {"rope_theta", 2e4},
        {"partial_rotary_factor", 1.0}}},
      {"olmo_hybrid-1", parameters(rope(1e4)), parameters("absent")},
      {"olmo_hybrid-1", parameters(rope(1e4)), parameters({{"rope_type", "default"}})},
      {"olmo_hybrid-1", parameters({{"rope_type", "default"}, {"rope_theta", nullptr}}),
       parameters({{"rope_type", nullptr}})},
      {"olmo_hybrid-1", parameters({{"rope_type", "default"}, {"rope_theta", nullptr}}), parameters(nullptr)},
  };
}

// transformers' classes do not have the key.
TEST(Defaults, ModelsOfExpertsAloneHaveNoIntermediateSize) {
  for (const char* golden : {"qwen3_5_moe_text", "solar_open-2"}) {
    const auto plain = logits_after(golden, [](StoredModel&) {});
    EXPECT_EQ(logits_after(golden, [](StoredModel& m) { m.config.erase("intermediate_size"); }), plain) << golden;
  }
}

TEST(Defaults, Glm4MoeLiteHasTheEpsilonOfGlm) {
  const auto set = logits_after("glm4_moe_lite-1", [](StoredModel& m) { m.set({{"rms_norm_eps", 1e-5}}); });
  EXPECT_EQ(logits_after("glm4_moe_lite-1", [](StoredModel& m) { m.config.erase("rms_norm_eps"); }), set);
}

TEST(Defaults, DeepSeekV2HasTwoSharedExperts) {
  const auto plain = logits_after("deepseek_v2-2", [](StoredModel&) {});
  EXPECT_EQ(logits_after("deepseek_v2-2", [](StoredModel& m) { m.config.erase("n_shared_experts"); }), plain);
}

TEST(Defaults, RotationsAreThoseOfTheCompleteConfiguration) {
  for (const Equivalent& e : equivalents()) {
    SCOPED_TRACE(e.golden + e.shorter.dump());
    const std::vector<float> want = logits_after(e.golden, [&](StoredModel& m) { change(m, e.complete); });
    EXPECT_EQ(logits_after(e.golden, [&](StoredModel& m) { change(m, e.shorter); }), want);
  }
}

// The keys of Mamba's layers are there even if the model has none.
TEST(Defaults, NemotronHWithoutMamba) {
  const auto logits = logits_after("nemotron_h-bias", [](StoredModel& m) {
    std::erase_if(m.tensors, [](const auto& tensor) {
      return tensor.first.find(".layers.2.") != std::string::npos ||
             tensor.first.find(".layers.3.") != std::string::npos;
    });
    m.set({{"layers_block_type", {"moe", "full_attention"}}});
  });
  EXPECT_FALSE(logits.empty());
}

// Without tied embeddings, every hybrid layer has a block of its own. A model with as many blocks as hybrid layers has
// the same graph; only its tensors of adapters for other layers are missing.
TEST(Defaults, Zamba2SharesBlocksOnlyIfEmbeddingsAreTied) {
  const auto logits = [](bool tied, int blocks) {
    return logits_after("zamba2-2", [&](StoredModel& m) {
      const std::string first = "model.layers.1.shared_transformer.", third = "model.layers.4.shared_transformer.";
      const std::string adapter = "feed_forward.gate_up_proj_adapter_list.";
      std::map<std::string, StoredMatrix> copies;
      for (const auto& [name, matrix] : m.tensors) {
        if (name.starts_with(first)) copies[third + name.substr(first.size())] = matrix;
      }
      m.tensors.merge(copies);
      for (float& v : m.tensors.at(third + "self_attn.q_proj.weight").values) v *= -2;
      if (blocks == 3) {
        for (const char* side : {"0", "1"}) {
          m.tensors.erase(first + adapter + "2." + side + ".weight");
          m.tensors.erase(third + adapter + "0." + side + ".weight");
        }
      }
      m.tensors["lm_head.weight"] = m.tensors.at("model.embed_tokens.weight");
      m.set({{"tie_word_embeddings", tied}, {"num_mem_blocks", blocks}});
    });
  };
  const std::vector<float> apart = logits(false, 2);
  EXPECT_EQ(apart, logits(true, 3));
  EXPECT_NE(apart, logits(true, 2));
}

// Tensors of zeros must not change the logits, and only the tensors that transformers stores are asked for.
TEST(Defaults, BiasesOfSomeProjections) {
  struct Biased {
    const char *golden, *key;
    std::vector<std::string> modules;
  };
  const std::vector<std::string> attention = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                              "self_attn.o_proj"};
  const Biased models[] = {
      {"afmoe-2", "attention_bias", attention},          // the gate has none
      {"laguna-elements", "attention_bias", attention},  // the gate has none
      {"hy_v3-1",
       "mlp_bias",  // experts have none
       {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "shared_mlp.gate_proj", "shared_mlp.up_proj",
        "shared_mlp.down_proj"}},
  };
  for (const Biased& b : models) {
    SCOPED_TRACE(b.golden);
    const auto logits = [&](float value) {
      return logits_after(b.golden, [&](StoredModel& m) {
        std::map<std::string, StoredMatrix> biases;
        for (const auto& [name, matrix] : m.tensors) {
          for (const std::string& module : b.modules) {
            if (!name.ends_with("." + module + ".weight")) continue;
            const int64_t rows = matrix.shape[0];
            biases[name.substr(0, name.size() - 6) + "bias"] = {{rows}, std::vector<float>(rows, value)};
          }
        }
        m.tensors.merge(biases);
        m.set({{b.key, true}});
      });
    };
    const std::vector<float> plain = logits_after(b.golden, [](StoredModel&) {});
    EXPECT_EQ(logits(0.0f), plain);
    EXPECT_NE(logits(0.5f), plain);
  }
}

}  // namespace
}  // namespace sluice::defaults_test
