// Tests classifiers and embedding models made of the text decoders of multimodal models, under the names that
// transformers gives them. Their scores and vectors must be those of the same decoder under its plain name.
#include <gtest/gtest.h>

#include "golden/stored_model.h"

namespace sluice::classifiers_test {
namespace {

struct Decoder {
  const char* golden;
  const char* plain;       // the decoder's own name
  const char* text;        // transformers' name of the decoder of a multimodal model
  const char* multimodal;  // and of the whole model
};

class Classifiers : public ::testing::TestWithParam<Decoder> {};

StoredModel classifier(const std::string& golden) {
  constexpr int64_t kLabels = 3;
  StoredModel model = read_stored_model(golden);
  const int64_t hidden = model.config.at("hidden_size");
  StoredMatrix score{.shape = {kLabels, hidden}, .values = {}};
  for (int64_t i = 0; i < kLabels * hidden; ++i) score.values.push_back(static_cast<float>(i % 11) / 8.0f - 0.5f);
  model.tensors["score.weight"] = std::move(score);
  model.tensors.erase("lm_head.weight");
  model.set({{"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}}});
  return model;
}

std::vector<float> scores(StoredModel model, const char* architecture) {
  model.set({{"architectures", {architecture}}});
  const testing::TempFolder folder;
  write(model, folder);
  return logits_of(folder, std::vector<int32_t>{3, 14, 15, 9, 26, 5}).values;
}

// The decoder inside of another configuration, and its tensors beside others.
StoredModel wrapped(StoredModel model, const std::string& body) {
  Json text = model.config;
  const Json labels = text.at("id2label");
  text["id2label"] = {{"0", "one"}};
  model.config = {{"text_config", std::move(text)}, {"id2label", labels}, {"vision_config", {{"depth", 1}}}};
  model.rename("model.", body);
  model.tensors["visual.blocks.0.weight"] = {.shape = {1, 2}, .values = {1, 2}};
  return model;
}

TEST_P(Classifiers, HaveTheScoresOfTheirDecoders) {
  const Decoder& decoder = GetParam();
  const StoredModel model = classifier(decoder.golden);
  const std::string suffix = "ForSequenceClassification";
  const std::vector<float> want = scores(model, (decoder.plain + suffix).c_str());
  EXPECT_EQ(want.size(), 3u);
  EXPECT_EQ(scores(model, (decoder.text + suffix).c_str()), want);
  EXPECT_EQ(scores(wrapped(model, "model.language_model."), (decoder.multimodal + suffix).c_str()), want);
}

TEST_P(Classifiers, HaveTheVectorsOfTheirDecoders) {
  const Decoder& decoder = GetParam();
  StoredModel model = classifier(decoder.golden);
  model.tensors.erase("score.weight");
  const std::vector<float> want = scores(model, (decoder.plain + std::string("Model")).c_str());
  EXPECT_EQ(want.size(), model.config.at("hidden_size").get<size_t>());
  EXPECT_EQ(scores(wrapped(model, "language_model."), (decoder.multimodal + std::string("Model")).c_str()), want);
}

TEST(ClassifiersOfOtherNames, Gpt2) {
  StoredModel model = read_stored_model("gpt2");
  const std::vector<float> vector = scores(model, "GPT2Model");
  ASSERT_EQ(vector.size(), model.config.at("n_embd").get<size_t>());
  StoredMatrix score{.shape = {2, std::ssize(vector)}, .values = std::vector<float>(2 * vector.size())};
  score.values.front() = 1;  // the first label's score is the first number of the vector
  model.tensors["score.weight"] = std::move(score);
  const std::vector<float> two = scores(model, "GPT2ForSequenceClassification");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_FLOAT_EQ(two[0], vector[0]);
  EXPECT_EQ(two[1], 0);
}

INSTANTIATE_TEST_SUITE_P(All, Classifiers,
                         ::testing::Values(Decoder{"gemma3_text", "Gemma3", "Gemma3Text", "Gemma3"},
                                           Decoder{"qwen3_5_text", "Qwen3_5", "Qwen3_5Text", "Qwen3_5"}),
                         [](const auto& info) { return info.param.golden; });

}  // namespace
}  // namespace sluice::classifiers_test
