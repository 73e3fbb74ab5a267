// Models in GGUF files made in memory: tensors and configurations have Hugging Face's names and order, and what cannot
// be a model is refused by its name.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/gguf/failure.h"
#include "formats/gguf/text.h"
#include "support/gguf_writer.h"

namespace sluice::gguf_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::failure;
using ::testing::HasSubstr;

using Writer = testing::GgufWriter;

// A temporary folder that is deleted with the test.
class GgufCheckpointTest : public ::testing::Test {
 protected:
  GgufCheckpointTest() { fs::create_directories(root_); }
  ~GgufCheckpointTest() override { fs::remove_all(root_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(root_ / name, std::ios::binary) << bytes;
    return (root_ / name).string();
  }

  // Returns the shape of a tensor below "model.layers.", or its name when it is missing.
  static std::string shape_in_layers(const Checkpoint& checkpoint, const std::string& name) {
    const TensorEntry* entry = checkpoint.find("model.layers." + name);
    return entry != nullptr ? entry->shape.str() : name;
  }

  // Writes the sizes of a model with 2 heads, with room for more keys.
  static Writer sizes(const std::string& architecture, uint64_t tensors, uint64_t more_keys, uint32_t hidden,
                      uint32_t inner, uint32_t blocks = 1) {
    Writer w;
    const std::string a = architecture + ".";
    w.header(tensors, 8 + more_keys).key_text("general.architecture", architecture);
    w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", hidden).key_u32(a + "block_count", blocks);
    w.key_u32(a + "feed_forward_length", inner).key_u32(a + "attention.head_count", 2);
    w.key_u32(a + "attention.head_count_kv", 1).key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
    return w;
  }
  // Writes a Llama with one layer of width 64, whose tensors hold their row numbers.
  static Writer llama_keys(uint64_t tensors, uint64_t more_keys = 0, uint32_t blocks = 1) {
    return sizes("llama", tensors, more_keys, 64, 96, blocks);
  }
  struct Named {
    std::string name;
    std::vector<uint64_t> dims;
  };
  static std::vector<Named> llama_tensors() {
    return {
        {"token_embd.weight", {64, 10}},        {"output_norm.weight", {64}},       {"blk.0.attn_norm.weight", {64}},
        {"blk.0.attn_q.weight", {64, 64}},      {"blk.0.attn_k.weight", {64, 32}},  {"blk.0.attn_v.weight", {64, 32}},
        {"blk.0.attn_output.weight", {64, 64}}, {"blk.0.ffn_norm.weight", {64}},    {"blk.0.ffn_gate.weight", {64, 96}},
        {"blk.0.ffn_up.weight", {64, 96}},      {"blk.0.ffn_down.weight", {96, 64}}};
  }
  static std::string with_tensors(Writer w, const std::vector<Named>& tensors) {
    std::string data;
    for (const Named& t : tensors) {
      w.tensor(t.name, t.dims, 0, data.size());
      const uint64_t rows = (t.dims.size() > 1 ? t.dims[1] : 1) * (t.dims.size() > 2 ? t.dims[2] : 1);
      for (uint64_t row = 0; row < rows; ++row) {
        const auto value = static_cast<float>(row);
        for (uint64_t i = 0; i < t.dims[0]; ++i) data.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      data.resize((data.size() + 31) / 32 * 32);
    }
    w.data(0);
    return w.bytes + data;
  }

  fs::path root_ = fs::path(::testing::TempDir()) / ("gguf_" + std::to_string(::getpid()));
};

TEST_F(GgufCheckpointTest, AnAdapterIsNoModel) {
  Writer w;
  w.header(0, 2).key_text("general.architecture", "llama").key_text("general.type", "adapter");
  const std::string path = write("adapter.gguf", w.data(0).bytes);
  EXPECT_THAT(failure([&] { open_checkpoint(path); }).value().message, HasSubstr("--lora-modules"));
}

TEST_F(GgufCheckpointTest, RerankersHaveAHead) {
  Writer w;
  w.header(6, 9).key_text("general.architecture", "bert").key_u32("bert.context_length", 64);
  w.key_u32("bert.embedding_length", 32).key_u32("bert.block_count", 1).key_u32("bert.feed_forward_length", 48);
  w.key_u32("bert.attention.head_count", 2).key_f32("bert.attention.layer_norm_epsilon", 1e-12f);
  w.key("bert.attention.causal", 7).number<uint8_t>(0).key_u32("bert.pooling_type", 4);
  const auto checkpoint = open_checkpoint(write("m.gguf", with_tensors(w, {{"token_embd.weight", {32, 10}},
                                                                           {"token_types.weight", {32, 2}},
                                                                           {"cls.weight", {32, 32}},
                                                                           {"cls.bias", {32}},
                                                                           {"cls.output.weight", {32, 3}},
                                                                           {"cls.output.bias", {3}}})));
  EXPECT_EQ(checkpoint->config.at<std::vector<std::string>>("architectures"),
            std::vector<std::string>{"BertForSequenceClassification"});
  EXPECT_TRUE(checkpoint->config.object("id2label").has("2"));
  EXPECT_EQ(checkpoint->pooling, "");
  for (const char* name : {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"}) {
    EXPECT_NE(checkpoint->find(name), nullptr) << name;
  }
}

TEST_F(GgufCheckpointTest, EmbeddingGemmaHasDenseLayersBehindItsMean) {
  Writer w = sizes("gemma-embedding", 3, 3, 64, 96);
  w.key_u32("gemma-embedding.pooling_type", 1).key_u32("gemma-embedding.attention.sliding_window", 8);
  w.key("gemma-embedding.attention.causal", 7).number<uint8_t>(0);
  const auto checkpoint = open_checkpoint(write(
      "m.gguf",
      with_tensors(w, {{"token_embd.weight", {64, 10}}, {"dense_2.weight", {64, 96}}, {"dense_3.weight", {96, 64}}})));
  EXPECT_EQ(checkpoint->pooling, "mean");
  EXPECT_TRUE(checkpoint->config.at<bool>("use_bidirectional_attention"));
  EXPECT_EQ(checkpoint->config.at<std::vector<std::string>>("sentence_transformers_dense"),
            (std::vector<std::string>{"2_Dense.linear", "3_Dense.linear"}));
  EXPECT_NE(checkpoint->find("3_Dense.linear.weight"), nullptr);
}

TEST_F(GgufCheckpointTest, BaichuansPositionsFollowFromItsDepth) {
  const auto open = [&](uint32_t blocks) {
    std::vector<Named> tensors = {{"token_embd.weight", {64, 10}}};
    for (uint32_t i = 0; i < blocks; ++i) tensors.push_back({fmt::format("blk.{}.attn_norm.weight", i), {64}});
    return open_checkpoint(
        write("m.gguf", with_tensors(sizes("baichuan", tensors.size(), 0, 64, 96, blocks), tensors)));
  };
  EXPECT_EQ(open(32)->config.at<int>("max_position_embeddings"), 128);
  const auto larger = open(40);
  EXPECT_FALSE(larger->config.has("max_position_embeddings"));
  EXPECT_FALSE(larger->config.has("rope_theta"));
  EXPECT_EQ(larger->config.at<int>("model_max_length"), 128);
}

TEST_F(GgufCheckpointTest, BlocksThatPredictFurtherTokensAreLeftOut) {
  auto tensors = llama_tensors();
  tensors.push_back({"blk.1.nextn.eh_proj.weight", {128, 64}});
  tensors.push_back({"blk.1.attn_norm.weight", {64}});
  const auto file = [&](uint32_t blocks, uint32_t predicting) {
    return with_tensors(llama_keys(tensors.size(), 1, blocks).key_u32("llama.nextn_predict_layers", predicting),
                        tensors);
  };
  const auto checkpoint = open_checkpoint(write("m.gguf", file(2, 1)));
  EXPECT_EQ(checkpoint->config.at<int>("num_hidden_layers"), 1);
  EXPECT_EQ(checkpoint->find("model.layers.1.input_layernorm.weight"), nullptr);
  for (const auto& [blocks, predicting, message] :
       {std::tuple{2u, 2u, "nextn_predict_layers"}, {2u, 0u, "blk.1.nextn.eh_proj"}, {1u, 0u, "blk.1.nextn.eh_proj"}}) {
    const std::string path = write("bad.gguf", file(blocks, predicting));
    const auto found = failure([&] { open_checkpoint(path); });
    ASSERT_TRUE(found) << message;
    EXPECT_THAT(found->message, HasSubstr(message));
  }
}

TEST_F(GgufCheckpointTest, BlocksThatCanDraftAreKept) {
  const std::vector<Named> tensors = {{"token_embd.weight", {64, 10}},
                                      {"blk.0.attn_norm.weight", {64}},
                                      {"blk.1.attn_norm.weight", {64}},
                                      {"blk.1.nextn.eh_proj.weight", {128, 64}},
                                      {"blk.1.nextn.shared_head_norm.weight", {64}},
                                      {"blk.1.nextn.shared_head_head.weight", {64, 10}}};
  Writer w = sizes("glm4moe", tensors.size(), 7, 64, 96, 2);
  w.key_u32("glm4moe.nextn_predict_layers", 1).key_u32("glm4moe.leading_dense_block_count", 1);
  w.key_u32("glm4moe.expert_count", 4).key_u32("glm4moe.expert_used_count", 2);
  w.key_u32("glm4moe.expert_feed_forward_length", 32).key_u32("glm4moe.expert_shared_count", 1);
  w.key_u32("glm4moe.expert_gating_func", 2);
  const auto checkpoint = open_checkpoint(write("m.gguf", with_tensors(w, tensors)));
  EXPECT_EQ(checkpoint->config.at<int>("num_hidden_layers"), 1);
  EXPECT_EQ(checkpoint->config.at<int>("num_nextn_predict_layers"), 1);
  for (const char* name : {"input_layernorm", "eh_proj", "shared_head.norm"}) {
    EXPECT_NE(checkpoint->find(fmt::format("model.layers.1.{}.weight", name)), nullptr) << name;
  }
  EXPECT_EQ(checkpoint->tensors().size(), 5);  // the head is the model's
}

TEST_F(GgufCheckpointTest, EncodersMakeVectors) {
  const auto keys = [](uint8_t causal, uint32_t pooling) {
    Writer w;
    w.header(2, 9).key_text("general.architecture", "bert").key_u32("bert.context_length", 64);
    w.key_u32("bert.embedding_length", 32).key_u32("bert.block_count", 1).key_u32("bert.feed_forward_length", 48);
    w.key_u32("bert.attention.head_count", 2).key_f32("bert.attention.layer_norm_epsilon", 1e-12f);
    w.key("bert.attention.causal", 7).number(causal).key_u32("bert.pooling_type", pooling);
    return with_tensors(w, {{"token_embd.weight", {32, 10}}, {"token_types.weight", {32, 2}}});
  };
  const auto checkpoint = open_checkpoint(write("m.gguf", keys(0, 2)));
  EXPECT_EQ(checkpoint->pooling, "cls");
  EXPECT_EQ(checkpoint->config.at<int>("type_vocab_size"), 2);
  EXPECT_NE(checkpoint->find("embeddings.word_embeddings.weight"), nullptr);
  for (const auto& [causal, pooling, part] : {std::tuple{1, 1u, "causal"}, {0, 4u, "pooling_type"}}) {
    const std::string path = write("bad.gguf", keys(static_cast<uint8_t>(causal), pooling));
    const auto found = failure([&] { open_checkpoint(path); });
    ASSERT_TRUE(found) << part;
    EXPECT_THAT(found->message, HasSubstr(part));
  }
}

// The encoder of a multimodal model is not a model, and does not prevent opening the model next to it.
TEST_F(GgufCheckpointTest, ProjectorsAreNoModels) {
  const std::string model = write("m.gguf", with_tensors(llama_keys(11), llama_tensors()));
  const std::string projector =
      write("mmproj-m.gguf", Writer().header(0, 1).key_text("general.architecture", "clip").data(0).bytes);
  EXPECT_EQ(open_checkpoint(root_.string())->folder, model);
  const auto found = failure([&] { open_checkpoint(projector); });
  ASSERT_TRUE(found);
  EXPECT_THAT(found->message, HasSubstr("image or audio encoder"));
}

TEST_F(GgufCheckpointTest, SpeaksHuggingFacesNamesAndOrder) {
  const std::string path = write("m.gguf", with_tensors(llama_keys(11), llama_tensors()));
  const auto checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint->config.at<int>("hidden_size"), 64);
  EXPECT_EQ(checkpoint->config.at<int>("num_key_value_heads"), 1);
  EXPECT_EQ(checkpoint->config.at<int>("vocab_size"), 10);
  EXPECT_TRUE(checkpoint->config.at<bool>("tie_word_embeddings"));
  const TensorEntry* q = checkpoint->find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  // Row i of a head of 32 rows was stored at 2 i if i < 16, otherwise at 2 (i - 16) + 1.
  std::vector<float> values(64 * 64);
  q->read(values.data());
  for (int row = 0; row < 64; ++row) {
    const int i = row % 32, stored = row / 32 * 32 + (i < 16 ? 2 * i : 2 * (i - 16) + 1);
    EXPECT_EQ(values[row * 64], static_cast<float>(stored)) << "row " << row;
  }
  const std::vector<Tensor> some = q->rows(10, 12);  // spans two runs
  int64_t rows = 0;
  for (const Tensor& part : some) rows += part.rows();
  EXPECT_EQ(rows, 12);
  EXPECT_EQ(some[0].f32()[0], 20.0f);
}

TEST_F(GgufCheckpointTest, PartsAreOneModel) {
  const std::vector<Named> all = llama_tensors();
  const std::vector<Named> first(all.begin(), all.begin() + 6), second(all.begin() + 6, all.end());
  const auto split = [](Writer w, uint16_t number) {
    w.key("split.no", 2).number(number).key("split.count", 2).number<uint16_t>(2);
    w.key("split.tensors.count", 5).number<int32_t>(11);
    return w;
  };
  const std::string one = write("m-00001-of-00002.gguf", with_tensors(split(llama_keys(6, 3), 0), first));
  EXPECT_THAT(failure([&] { open_checkpoint(one); })->message, HasSubstr("m-00002-of-00002.gguf"));
  Writer more;
  more.header(5, 3);
  write("m-00002-of-00002.gguf", with_tensors(split(more, 1), second));
  EXPECT_EQ(open_checkpoint(one)->tensors().size(), 11u);
  EXPECT_EQ(open_checkpoint((root_ / "m-00002-of-00002.gguf").string())->tensors().size(), 11u);
  EXPECT_EQ(open_checkpoint(root_.string())->tensors().size(), 11u);
  Writer wrong;
  wrong.header(5, 3);
  write("m-00002-of-00002.gguf", with_tensors(split(wrong, 0), second));
  EXPECT_THAT(failure([&] { open_checkpoint(one); })->message, HasSubstr("split.no"));
}

TEST_F(GgufCheckpointTest, NamesWhatItDoesNotKnow) {
  const auto refused = [&](const std::string& bytes) {
    const auto found = failure([&] { open_checkpoint(write("m.gguf", bytes)); });
    return found ? found->message : "";
  };
  const auto with_key = [&](const std::function<void(Writer&)>& add) {
    Writer w = llama_keys(11, 1);
    add(w);
    return with_tensors(w, llama_tensors());
  };
  EXPECT_THAT(refused(Writer().header(0, 1).key_text("general.architecture", "rwkv7").data(0).bytes),
              HasSubstr("unknown architecture \"rwkv7\" (expected one of: afmoe, "));
  EXPECT_THAT(refused(Writer().header(0, 0).bytes), HasSubstr("general.architecture"));
  EXPECT_THAT(refused(with_key([](Writer& w) { w.key_f32("llama.attention.novelty", 1); })),
              HasSubstr("llama.attention.novelty"));
  EXPECT_THAT(refused(with_key([](Writer& w) { w.key_text("llama.rope.scaling.type", "spiral"); })),
              HasSubstr("'spiral'"));
  EXPECT_THAT(refused(with_key([](Writer& w) { w.key_u32("llama.attention.key_length", 48); })),
              HasSubstr("attn_q.weight"));
  std::vector<Named> more = llama_tensors();
  more.push_back({"blk.0.attn_mystery.weight", {64}});
  EXPECT_THAT(refused(with_tensors(llama_keys(12), more)), HasSubstr("blk.0.attn_mystery.weight"));
  more.back() = {"output_norm.bias", {64}};
  // The name is known; the model takes the tensors it needs.
  EXPECT_EQ(refused(with_tensors(llama_keys(12), more)), "");
}

// Granite 4 with a Mamba 2 layer and an attention layer: layer types, decays, convolutions, an MLP in two matrices.
TEST_F(GgufCheckpointTest, RecurrentLayersAreThoseWithoutKvHeads) {
  Writer w;
  w.header(22, 15).key_text("general.architecture", "granitehybrid");
  const std::string a = "granitehybrid.";
  w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", 64).key_u32(a + "block_count", 2);
  w.key_u32(a + "feed_forward_length", 96).key_u32(a + "attention.head_count", 2);
  w.key(a + "attention.head_count_kv", 9).number(4u).number<uint64_t>(2).number(0u).number(1u);
  w.key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f).key_u32(a + "ssm.conv_kernel", 4);
  w.key_u32(a + "ssm.inner_size", 128).key_u32(a + "ssm.state_size", 16).key_u32(a + "ssm.group_count", 1);
  w.key_u32(a + "ssm.time_step_rank", 4).key_f32(a + "attention.scale", 0.25f);
  w.key(a + "rope.scaling.finetuned", 7).number<uint8_t>(0);
  std::vector<Named> tensors = {{"token_embd.weight", {64, 10}},
                                {"output_norm.weight", {64}},
                                {"blk.0.ssm_in.weight", {64, 292}},
                                {"blk.0.ssm_conv1d.weight", {4, 160}},
                                {"blk.0.ssm_conv1d.bias", {160}},
                                {"blk.0.ssm_dt.bias", {4}},
                                {"blk.0.ssm_a", {1, 4}},
                                {"blk.0.ssm_d", {1, 4}},
                                {"blk.0.ssm_norm.weight", {128, 1}},
                                {"blk.0.ssm_out.weight", {128, 64}},
                                {"blk.1.attn_q.weight", {64, 64}},
                                {"blk.1.attn_k.weight", {64, 32}},
                                {"blk.1.attn_v.weight", {64, 32}},
                                {"blk.1.attn_output.weight", {64, 64}}};
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    tensors.push_back({layer + "ffn_gate.weight", {64, 24}});
    tensors.push_back({layer + "ffn_up.weight", {64, 24}});
    tensors.push_back({layer + "ffn_down.weight", {24, 64}});
    tensors.push_back({layer + "ffn_norm.weight", {64}});
  }
  const auto checkpoint = open_checkpoint(write("m.gguf", with_tensors(w, tensors)));
  const Config& config = checkpoint->config;
  EXPECT_EQ(config.at<std::vector<std::string>>("layer_types"), (std::vector<std::string>{"mamba", "attention"}));
  EXPECT_EQ(config.at<std::string>("position_embedding_type"), "nope");
  EXPECT_EQ(config.at<int>("mamba_d_head"), 32);
  EXPECT_EQ(config.at<int>("mamba_expand"), 2);
  EXPECT_EQ(config.at<int>("shared_intermediate_size"), 24);
  EXPECT_EQ(config.at<int>("num_local_experts"), 0);
  EXPECT_TRUE(config.at<bool>("mamba_conv_bias"));
  const auto shape = [&](const std::string& name) { return shape_in_layers(*checkpoint, "0." + name); };
  EXPECT_EQ(shape("mamba.conv1d.weight"), "[160, 1, 4]");
  EXPECT_EQ(shape("mamba.A_log"), "[4]");
  EXPECT_EQ(shape("mamba.D"), "[4]");
  EXPECT_EQ(shape("mamba.dt_bias"), "[4]");
  EXPECT_EQ(shape("mamba.norm.weight"), "[128]");
  EXPECT_EQ(shape("shared_mlp.input_linear.weight"), "[48, 64]");
  EXPECT_EQ(checkpoint->find("model.layers.1.self_attn.q_proj.weight")->pieces.size(), 4u);  // paired rows
  const TensorEntry* both = checkpoint->find("model.layers.0.shared_mlp.input_linear.weight");
  std::vector<float> values(48 * 64);
  both->read(values.data());
  for (int row = 0; row < 48; ++row) EXPECT_EQ(values[row * 64], static_cast<float>(row % 24));
}

// Kimi Linear: layers without kv heads use delta attention, whose tensors have the dimensions that the converter adds.
TEST_F(GgufCheckpointTest, KimisDeltaAttentionIsWhereThereAreNoKvHeads) {
  const std::string a = "kimi-linear.";
  const auto file = [&](uint32_t gating) {
    Writer w;
    w.header(8, 20).key_text("general.architecture", "kimi-linear");
    w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", 64).key_u32(a + "block_count", 2);
    w.key_u32(a + "feed_forward_length", 96).key_u32(a + "attention.head_count", 2);
    w.key(a + "attention.head_count_kv", 9).number(4u).number<uint64_t>(2).number(0u).number(1u);
    w.key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f).key_u32(a + "ssm.conv_kernel", 4);
    w.key_u32(a + "kda.head_dim", 16).key_u32(a + "attention.kv_lora_rank", 24).key_u32(a + "rope.dimension_count", 8);
    w.key_u32(a + "attention.key_length_mla", 24).key_u32(a + "attention.value_length_mla", 12);
    w.key_u32(a + "expert_count", 4).key_u32(a + "expert_used_count", 2).key_u32(a + "expert_gating_func", gating);
    w.key_u32(a + "expert_feed_forward_length", 8).key_u32(a + "expert_shared_count", 1);
    w.key_u32(a + "leading_dense_block_count", 1);
    return with_tensors(w, {{"token_embd.weight", {64, 10}},
                            {"output_norm.weight", {64}},
                            {"blk.0.ssm_conv1d_q.weight", {4, 1, 32, 1}},
                            {"blk.0.ssm_conv1d_k.weight", {4, 1, 32}},
                            {"blk.0.ssm_a", {1, 2}},
                            {"blk.0.ssm_dt.bias", {32}},
                            {"blk.1.exp_probs_b.bias", {4}},
                            {"blk.1.ffn_gate_exps.weight", {64, 8, 4}}});
  };
  const auto checkpoint = open_checkpoint(write("m.gguf", file(2)));
  const Config& config = checkpoint->config;
  const Config linear = config.object("linear_attn_config");
  EXPECT_EQ(linear.at<std::vector<int>>("kda_layers"), std::vector<int>{1});
  EXPECT_EQ(linear.at<std::vector<int>>("full_attn_layers"), std::vector<int>{2});
  EXPECT_EQ(linear.at<int>("num_heads"), 2);
  EXPECT_EQ(config.at<int>("qk_nope_head_dim"), 16);
  EXPECT_EQ(config.at<int>("v_head_dim"), 12);
  EXPECT_TRUE(config.at<bool>("norm_topk_prob"));
  const auto shape = [&](const std::string& name) { return shape_in_layers(*checkpoint, name); };
  EXPECT_EQ(shape("0.self_attn.q_conv1d.weight"), "[32, 1, 4]");
  EXPECT_EQ(shape("0.self_attn.k_conv1d.weight"), "[32, 1, 4]");
  EXPECT_EQ(shape("0.self_attn.A_log"), "[1, 1, 2, 1]");
  EXPECT_EQ(shape("0.self_attn.dt_bias"), "[32]");
  EXPECT_EQ(shape("1.block_sparse_moe.gate.e_score_correction_bias"), "[4]");
  EXPECT_EQ(shape("1.block_sparse_moe.experts.3.w1.weight"), "[8, 64]");
  const auto refused = failure([&] { open_checkpoint(write("m.gguf", file(1))); });
  EXPECT_THAT(refused ? refused->message : "", HasSubstr("expert_gating_func"));
}

// GLM-5: a list says which layers have an indexer of their own. Without the list, those that have its tensors do.
TEST_F(GgufCheckpointTest, LayersShareWhatAnIndexerSelects) {
  const std::string a = "glm-dsa.";
  const auto file = [&](bool lists) {
    Writer w;
    w.header(5, lists ? 26 : 25).key_text("general.architecture", "glm-dsa");
    w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", 64).key_u32(a + "block_count", 3);
    w.key_u32(a + "feed_forward_length", 96).key_u32(a + "attention.head_count", 2);
    w.key_u32(a + "attention.head_count_kv", 1).key_u32(a + "attention.key_length", 48);
    w.key_u32(a + "attention.value_length", 32).key_u32(a + "attention.key_length_mla", 32);
    w.key_u32(a + "attention.value_length_mla", 16).key_u32(a + "attention.kv_lora_rank", 32);
    w.key_u32(a + "attention.q_lora_rank", 24).key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
    w.key_u32(a + "rope.dimension_count", 16).key_u32(a + "attention.indexer.head_count", 4);
    w.key_u32(a + "attention.indexer.key_length", 16).key_u32(a + "attention.indexer.top_k", 6);
    w.key_u32(a + "expert_count", 4).key_u32(a + "expert_used_count", 2).key_u32(a + "expert_shared_count", 1);
    w.key_u32(a + "expert_feed_forward_length", 8).key_f32(a + "expert_weights_scale", 1.5f);
    w.key_u32(a + "expert_gating_func", 2).key_u32(a + "leading_dense_block_count", 3);
    if (lists) {
      w.key(a + "attention.indexer.types", 9).number(7u).number<uint64_t>(3);
      w.number<uint8_t>(1).number<uint8_t>(0).number<uint8_t>(0);
    }
    return with_tensors(w, {{"token_embd.weight", {64, 10}},
                            {"blk.0.indexer.attn_k.weight", {64, 16}},
                            {"blk.0.indexer.k_norm.bias", {16}},
                            {"blk.0.indexer.proj.weight", {64, 4}},
                            {"blk.2.indexer.attn_k.weight", {64, 16}}});
  };
  const auto types = [&](bool lists) {
    return open_checkpoint(write("m.gguf", file(lists)))->config.at<std::vector<std::string>>("indexer_types");
  };
  EXPECT_THAT(types(true), ElementsAre("full", "shared", "shared"));
  EXPECT_THAT(types(false), ElementsAre("full", "shared", "full"));
  const auto checkpoint = open_checkpoint(write("m.gguf", file(true)));
  EXPECT_NE(checkpoint->find("model.layers.0.self_attn.indexer.wk.weight"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.self_attn.indexer.k_norm.bias"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.self_attn.indexer.weights_proj.weight"), nullptr);
}

// DeepSeek-V4: files count the layers that predict further tokens, whether or not they have them.
TEST_F(GgufCheckpointTest, DeepseekV4HasPublishedNames) {
  const std::string a = "deepseek4.";
  const auto file = [&](uint32_t gating, float second_limit, bool predicts) {
    Writer w;
    w.header(predicts ? 8 : 7, 34).key_text("general.architecture", "deepseek4");
    w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", 64).key_u32(a + "block_count", 2);
    w.key_u32(a + "nextn_predict_layers", 1).key_u32(a + "attention.head_count", 2);
    w.key_u32(a + "attention.head_count_kv", 1).key_u32(a + "attention.key_length", 32);
    w.key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f).key_u32(a + "rope.dimension_count", 8);
    w.key_f32(a + "rope.freq_base", 1e4f).key_text(a + "rope.scaling.type", "yarn");
    w.key_f32(a + "rope.scaling.factor", 16).key_u32(a + "rope.scaling.original_context_length", 32);
    w.key_f32(a + "attention.compress_rope_freq_base", 1.6e5f).key_u32(a + "attention.q_lora_rank", 24);
    w.key_u32(a + "attention.output_lora_rank", 16).key_u32(a + "attention.output_group_count", 2);
    w.key(a + "attention.compress_ratios", 9).number(4u).number<uint64_t>(3).number(4u).number(128u).number(0u);
    w.key_u32(a + "attention.sliding_window", 12).key_u32(a + "attention.indexer.head_count", 4);
    w.key_u32(a + "attention.indexer.key_length", 16).key_u32(a + "attention.indexer.top_k", 6);
    w.key_u32(a + "hyper_connection.count", 4).key_u32(a + "hyper_connection.sinkhorn_iterations", 20);
    w.key_f32(a + "hyper_connection.epsilon", 1e-6f).key_u32(a + "expert_count", 4);
    w.key_u32(a + "expert_used_count", 2).key_u32(a + "expert_shared_count", 1);
    w.key_u32(a + "expert_feed_forward_length", 8).key_f32(a + "expert_weights_scale", 1.5f);
    w.key_u32(a + "expert_gating_func", gating).key_u32(a + "hash_layer_count", 1);
    w.key(a + "swiglu_clamp_exp", 9).number(6u).number<uint64_t>(2).number(10.0f).number(second_limit);
    std::vector<Named> tensors = {{"token_embd.weight", {64, 10}},
                                  {"output_hc_fn.weight", {256, 4}},
                                  {"blk.0.hc_attn_base.weight", {24}},
                                  {"blk.0.attn_compressor_ape.weight", {64, 4}},
                                  {"blk.0.ffn_gate_tid2eid.weight", {2, 10}},
                                  {"blk.1.exp_probs_b.bias", {4}},
                                  {"blk.1.ffn_down_exps.weight", {8, 64, 4}}};
    if (predicts) tensors.push_back({"blk.1.nextn.enorm.weight", {64}});
    return with_tensors(w, tensors);
  };
  const auto checkpoint = open_checkpoint(write("m.gguf", file(4, 10.0f, false)));
  const Config& config = checkpoint->config;
  EXPECT_EQ(config.at<int>("num_hidden_layers"), 2);
  EXPECT_EQ(config.at<std::vector<int>>("compress_ratios"), (std::vector<int>{4, 128, 0}));
  EXPECT_EQ(config.at<std::string>("scoring_func"), "sqrtsoftplus");
  EXPECT_EQ(config.at<double>("swiglu_limit"), 10.0);
  EXPECT_EQ(config.object("rope_scaling").at<double>("attention_factor"), 1.0);
  const auto shape = [&](const std::string& name) {
    const TensorEntry* entry = checkpoint->find(name);
    return entry != nullptr ? entry->shape.str() : name;
  };
  EXPECT_EQ(shape("embed.weight"), "[10, 64]");
  EXPECT_EQ(shape("hc_head_fn"), "[4, 256]");
  EXPECT_EQ(shape("layers.0.hc_attn_base"), "[24]");
  EXPECT_EQ(shape("layers.0.attn.compressor.ape"), "[4, 64]");
  EXPECT_EQ(shape("layers.0.ffn.gate.tid2eid"), "[10, 2]");
  EXPECT_EQ(shape("layers.1.ffn.gate.bias"), "[4]");
  EXPECT_EQ(shape("layers.1.ffn.experts.3.w2.weight"), "[64, 8]");
  EXPECT_EQ(open_checkpoint(write("m.gguf", file(4, 10.0f, true)))->config.at<int>("num_hidden_layers"), 1);
  const auto error = [&](uint32_t gating, float limit) {
    const auto refused = failure([&] { open_checkpoint(write("m.gguf", file(gating, limit, false))); });
    return refused ? refused->message : "";
  };
  EXPECT_THAT(error(1, 10.0f), HasSubstr("expert_gating_func"));
  EXPECT_THAT(error(4, 9.0f), HasSubstr("swiglu_clamp_exp"));
}

// Nemotron 3: a nonzero width makes a layer of experts, with a latent stream where the file has one.
TEST_F(GgufCheckpointTest, NemotronsExpertsAreWhereThereIsAWidth) {
  const std::string a = "nemotron_h_moe.";
  const auto file = [&](uint32_t second_width) {
    Writer w;
    w.header(6, 21).key_text("general.architecture", "nemotron_h_moe");
    w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", 64).key_u32(a + "block_count", 4);
    w.key(a + "feed_forward_length", 9).number(4u).number<uint64_t>(4).number(0u).number(40u).number(second_width);
    w.number(0u);
    w.key_u32(a + "attention.head_count", 2);
    w.key(a + "attention.head_count_kv", 9).number(4u).number<uint64_t>(4).number(0u).number(0u).number(0u);
    w.number(1u);
    w.key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f).key_u32(a + "ssm.conv_kernel", 4);
    w.key_u32(a + "ssm.inner_size", 128).key_u32(a + "ssm.state_size", 16).key_u32(a + "ssm.group_count", 2);
    w.key_u32(a + "ssm.time_step_rank", 4).key_u32(a + "expert_count", 4).key_u32(a + "expert_used_count", 2);
    w.key_u32(a + "expert_feed_forward_length", 40).key_u32(a + "expert_shared_feed_forward_length", 48);
    w.key_u32(a + "expert_shared_count", 1).key_f32(a + "expert_weights_scale", 2.5f);
    w.key_u32(a + "moe_latent_size", 24).key_u32(a + "expert_group_count", 1);
    return with_tensors(w, {{"token_embd.weight", {64, 10}},
                            {"blk.1.ffn_up_exps.weight", {24, 40, 4}},
                            {"blk.1.ffn_latent_down.weight", {64, 24}},
                            {"blk.1.ffn_latent_up.weight", {24, 64}},
                            {"blk.1.exp_probs_b.bias", {4}},
                            {"blk.1.ffn_up_shexp.weight", {64, 48}}});
  };
  const auto checkpoint = open_checkpoint(write("m.gguf", file(40)));
  const Config& config = checkpoint->config;
  EXPECT_EQ(config.at<std::vector<std::string>>("layers_block_type"),
            (std::vector<std::string>{"mamba", "moe", "moe", "attention"}));
  EXPECT_EQ(config.at<int>("moe_latent_size"), 24);
  EXPECT_EQ(config.at<int>("moe_shared_expert_intermediate_size"), 48);
  EXPECT_EQ(config.at<double>("routed_scaling_factor"), 2.5);
  for (const char* name : {"experts.3.up_proj.weight", "fc1_latent_proj.weight", "fc2_latent_proj.weight",
                           "gate.e_score_correction_bias", "shared_experts.up_proj.weight"}) {
    EXPECT_NE(checkpoint->find(std::string("backbone.layers.1.mixer.") + name), nullptr) << name;
  }
  const auto refused = failure([&] { open_checkpoint(write("m.gguf", file(48))); });
  EXPECT_THAT(refused ? refused->message : "", HasSubstr("feed_forward_length"));
}

// Llama Nemotron: the rows of queries and keys are paired for the heads of each layer.
TEST_F(GgufCheckpointTest, LayersMayHaveKvHeadsOfTheirOwn) {
  const std::string a = "deci.";
  const auto file = [&](uint32_t second_heads, uint32_t second_kv, uint32_t third_kv) {
    const auto list = [](Writer& w, const std::string& key, uint32_t x, uint32_t y, uint32_t z) {
      w.key(key, 9).number(4u).number<uint64_t>(3).number(x).number(y).number(z);
    };
    Writer w;
    w.header(4, 8).key_text("general.architecture", "deci");
    w.key_u32(a + "context_length", 128).key_u32(a + "embedding_length", 64).key_u32(a + "block_count", 3);
    list(w, a + "feed_forward_length", 96, 0, 32);
    list(w, a + "attention.head_count", 4, second_heads, 0);
    list(w, a + "attention.head_count_kv", 2, second_kv, third_kv);
    w.key_f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
    return with_tensors(w, {{"token_embd.weight", {64, 10}},
                            {"blk.0.attn_q.weight", {64, 64}},
                            {"blk.0.attn_k.weight", {64, 32}},
                            {"blk.1.attn_k.weight", {64, 64}}});
  };
  const auto checkpoint = open_checkpoint(write("m.gguf", file(4, 4, 0)));
  const Json& blocks = *checkpoint->config.find("block_configs");
  EXPECT_EQ(blocks, parse_json(R"([{"attention":{"n_heads_in_group":2},"ffn":{"intermediate_size":96}},
                                   {"attention":{"n_heads_in_group":1},"ffn":{"no_op":true}},
                                   {"attention":{"no_op":true},"ffn":{"intermediate_size":32}}])"));
  for (const auto& [layer, heads] : {std::pair{0, 2}, {1, 4}}) {
    const TensorEntry* k = checkpoint->find(fmt::format("model.layers.{}.self_attn.k_proj.weight", layer));
    ASSERT_NE(k, nullptr);
    std::vector<float> values(static_cast<size_t>(heads) * 16 * 64);
    k->read(values.data());
    for (int row = 0; row < heads * 16; ++row) {
      const int i = row % 16, stored = row / 16 * 16 + (i < 8 ? 2 * i : 2 * (i - 8) + 1);
      EXPECT_EQ(values[static_cast<size_t>(row) * 64], static_cast<float>(stored)) << "layer " << layer;
    }
  }
  for (const auto& [heads, kv, third, part] : {std::tuple{2u, 2u, 0u, "differs between layers"},
                                               {4u, 3u, 0u, "3 does not divide 4 heads"},
                                               {4u, 0u, 0u, "is 0 with 4 heads in layer 1"},
                                               {4u, 4u, 1u, "is 1 with 0 heads in layer 2"}}) {
    const auto bad = file(heads, kv, third);
    const auto refused = failure([&] { open_checkpoint(write("bad.gguf", bad)); });
    EXPECT_THAT(refused ? refused->message : "", HasSubstr(part));
  }
}

// Qwen 3.5: value heads in turns require repeating the key heads as often as the turns.
TEST_F(GgufCheckpointTest, KeysOfDeltaNetsAreRepeated) {
  const std::string a = "qwen35.";
  Writer w = sizes("qwen35", 4, 8, 32, 96);
  w.key_u32(a + "ssm.conv_kernel", 4).key_u32(a + "ssm.state_size", 3).key_u32(a + "ssm.group_count", 2);
  w.key_u32(a + "ssm.time_step_rank", 4).key_u32(a + "ssm.inner_size", 20).key_u32(a + "full_attention_interval", 4);
  w.key_u32(a + "attention.key_length", 16).key_u32(a + "attention.value_length", 16);
  const auto path = write("m.gguf", with_tensors(w, {{"token_embd.weight", {32, 10}},
                                                     {"blk.0.attn_qkv.weight", {32, 32}},
                                                     {"blk.0.ssm_conv1d.weight", {4, 32}},
                                                     {"blk.0.ssm_a", {4}}}));
  const auto checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint->config.at<int>("linear_num_key_heads"), 4);
  EXPECT_EQ(checkpoint->config.at<int>("linear_value_head_dim"), 5);
  const TensorEntry* qkv = checkpoint->find("model.layers.0.linear_attn.in_proj_qkv.weight");
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->shape.str(), "[44, 32]");
  std::vector<float> values(44 * 32);
  qkv->read(values.data());
  std::vector<int> rows;
  for (int row = 0; row < 44; ++row) rows.push_back(static_cast<int>(values[row * 32]));
  std::vector<int> expected;  // two key heads of three rows, twice; then keys in the same way; then values
  for (const int first : {0, 0, 6, 6}) {
    for (int i = 0; i < 6; ++i) expected.push_back(first + i);
  }
  for (int i = 12; i < 32; ++i) expected.push_back(i);
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(checkpoint->find("model.layers.0.linear_attn.conv1d.weight")->shape.str(), "[44, 1, 4]");
}

// gpt-oss: the gate and up halves of the experts are stored separately, and so are their biases.
TEST_F(GgufCheckpointTest, HalvesOfExpertsAreStackedWithTheirBiases) {
  const std::string a = "gpt-oss.";
  Writer w = sizes("gpt-oss", 8, 3, 32, 4);
  w.key_u32(a + "attention.sliding_window", 8).key_u32(a + "expert_count", 3).key_u32(a + "expert_used_count", 2);
  const auto path = write("m.gguf", with_tensors(w, {{"token_embd.weight", {32, 10}},
                                                     {"blk.0.attn_sinks.weight", {2}},
                                                     {"blk.0.ffn_gate_exps.weight", {32, 4, 3}},
                                                     {"blk.0.ffn_up_exps.weight", {32, 4, 3}},
                                                     {"blk.0.ffn_down_exps.weight", {4, 32, 3}},
                                                     {"blk.0.ffn_gate_exps.bias", {4, 3}},
                                                     {"blk.0.ffn_up_exps.bias", {4, 3}},
                                                     {"blk.0.ffn_down_exps.bias", {32, 3}}}));
  const auto checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint->config.at<int>("intermediate_size"), 4);
  EXPECT_NE(checkpoint->find("model.layers.0.self_attn.sinks"), nullptr);
  const TensorEntry* in = checkpoint->find("model.layers.0.mlp.experts.gate_up_proj.weight");
  ASSERT_NE(in, nullptr);
  EXPECT_EQ(in->shape.str(), "[3, 8, 32]");
  const TensorEntry* bias = checkpoint->find("model.layers.0.mlp.experts.gate_up_proj.bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(bias->shape.str(), "[3, 8]");
  std::vector<float> values(24);
  bias->read(values.data());
  for (int i = 0; i < 24; ++i) EXPECT_EQ(values[i], static_cast<float>(i / 8)) << i;  // rows of gate and up are equal
}

TEST_F(GgufCheckpointTest, EndsAreThoseOfTheMetadataAndOfKnownTexts) {
  Writer w = llama_keys(11, 3);
  w.key("tokenizer.ggml.tokens", 9).number(8u).number<uint64_t>(3).text("a").text("<|im_end|>").text("</s>");
  w.key("tokenizer.ggml.token_type", 9).number(5u).number<uint64_t>(3);
  w.number<int32_t>(1).number<int32_t>(3).number<int32_t>(3);
  w.key_u32("tokenizer.ggml.eos_token_id", 2);
  const auto checkpoint = open_checkpoint(write("m.gguf", with_tensors(w, llama_tensors())));
  EXPECT_EQ(checkpoint->generation.eos_token_ids, (std::vector<int32_t>{2, 1}));
}

}  // namespace
}  // namespace sluice::gguf_checkpoint_test
