// Tests typed access to configurations, and which keys may stay unread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::config_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config config_of(std::string_view text) { return Config(parse_json(text), "config.json"); }

template <class F>
std::string error_of(F&& body, ErrorCode code = ErrorCode::kUnsupportedModel) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.what();
    return e.what();
  }
  return "";
}

TEST(Config, GivesValuesOfEveryType) {
  const Config c = config_of(R"({"b": true, "i": -7, "l": 5000000000, "whole": 4096.0, "d": 1e-6, "s": "silu",
                                 "is": [1, 2], "ds": [1, 2.5], "ss": ["a", "b"], "n": null})");
  EXPECT_TRUE(c.at<bool>("b"));
  EXPECT_EQ(c.at<int>("i"), -7);
  EXPECT_EQ(c.at<int64_t>("l"), 5'000'000'000);
  EXPECT_EQ(c.at<int>("whole"), 4096);
  EXPECT_EQ(c.at<double>("d"), 1e-6);
  EXPECT_EQ(c.at<float>("d"), 1e-6f);
  EXPECT_EQ(c.at<double>("i"), -7.0);
  EXPECT_EQ(c.at<std::string>("s"), "silu");
  EXPECT_THAT(c.at<std::vector<int>>("is"), ElementsAre(1, 2));
  EXPECT_THAT(c.at<std::vector<double>>("ds"), ElementsAre(1.0, 2.5));
  EXPECT_THAT(c.at<std::vector<std::string>>("ss"), ElementsAre("a", "b"));
  EXPECT_EQ(c.get("absent", 3), 3);
  EXPECT_EQ(c.get("n", 3), 3);
  EXPECT_EQ(c.get("absent", std::string("x")), "x");
  EXPECT_FALSE(c.has("n"));
  EXPECT_EQ(c.find("n"), nullptr);
  EXPECT_EQ(c.find("absent"), nullptr);
  ASSERT_NE(c.find("is"), nullptr);
  EXPECT_EQ(c.find("is")->size(), 2u);
}

TEST(Config, WrongTypesNameFileKeyAndValue) {
  const Config c = config_of(R"({"s": "eight", "f": 1.5, "big": 2147483648, "huge": 18446744073709551615, "wide": 1e39,
                                 "one": 1, "mixed": [1, "a"], "null": [1, null], "far": 1e300, "o": {"__float__": "x"}})");
  const std::vector<std::function<void()>> readers = {
      [&] { c.get("s", 1); },
      [&] { c.get("s", 1.0); },
      [&] { c.get("f", 1); },
      [&] { c.get("big", 1); },
      [&] { c.get("huge", int64_t{1}); },
      [&] { c.get("far", int64_t{1}); },
      [&] { c.get("wide", 1.0f); },
      [&] { c.get("one", false); },
      [&] { c.get("one", std::string()); },
      [&] { c.get("one", std::vector<int>()); },
      [&] { c.get("mixed", std::vector<int>()); },
      [&] { c.get("mixed", std::vector<std::string>()); },
      [&] { c.get("null", std::vector<double>()); },
      [&] { c.get("o", 1.0); },
      [&] { c.object("one"); },
      [&] { c.at<int>("absent"); },
  };
  for (size_t i = 0; i < readers.size(); ++i) {
    EXPECT_THAT(error_of(readers[i]), ::testing::StartsWith("config.json: '")) << i;
  }
  EXPECT_EQ(error_of([&] { c.get("s", 1); }), R"(config.json: 's': expected a 32-bit integer, found "eight")");
  EXPECT_EQ(error_of([&] { c.at<double>("absent"); }), "config.json: 'absent': missing, expected a number");
  EXPECT_EQ(error_of([&] { c.refuse("s", "not known"); }), "config.json: 's': not known");
  EXPECT_EQ(c.at<double>("huge"), 0x1p64);
}

TEST(Config, NestedObjectsKeepTheirOwnRecord) {
  const Config c = config_of(R"({"rope_parameters": {"rope_theta": 1e4, "odd": 1}})");
  const Config rope = c.object("rope_parameters");
  EXPECT_EQ(rope.origin(), "config.json: rope_parameters");
  EXPECT_EQ(rope.at<double>("rope_theta"), 1e4);
  EXPECT_THAT(rope.unread(), ElementsAre("odd"));
  EXPECT_THAT(c.unread(), IsEmpty());
  EXPECT_EQ(c.object("absent").get("x", 1), 1);
}

TEST(Config, UnreadNamesWhatNobodyUnderstood) {
  const Config c = config_of(R"({
      "architectures": ["X"], "model_type": "x", "dtype": "bfloat16", "torch_dtype": "float32", "initializer_range": 0.02,
      "transformers_version": "5.17.0", "use_cache": true, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0,
      "attention_dropout": 0.1, "resid_pdrop": 0.1, "hidden_dropout_prob": 0.1, "auto_map": {"AutoModel": "x.Y"},
      "id2label": {"0": "a"}, "is_encoder_decoder": false, "pruned_heads": {}, "later": null,
      "hidden_size": 64, "logit_magic": 2.0, "quantization_config": {"quant_method": "awq"}, "forgotten": 0})");
  EXPECT_EQ(c.at<int>("hidden_size"), 64);
  EXPECT_THAT(c.unread(), ElementsAre("logit_magic", "quantization_config", "forgotten"));
  c.ignore("forgotten");
  EXPECT_TRUE(c.has("quantization_config"));
  EXPECT_THAT(c.unread(), ElementsAre("logit_magic"));
  EXPECT_THAT(
      config_of(R"({"is_encoder_decoder": true, "add_cross_attention": true, "pruned_heads": {"0": [1]}})").unread(),
      ElementsAre("is_encoder_decoder", "add_cross_attention", "pruned_heads"));
}

TEST(Config, ReadsWhatPythonWrites) {
  const testing::TempFolder folder;
  const Config c = read_config(folder.write("config.json", R"({"limit": [0.0, Infinity], "low": -Infinity, "nan": NaN,
      "spelled": {"__float__": "Infinity"}, "text": "Infinity \" NaN \\", "after": -1})"));
  EXPECT_THAT(c.at<std::vector<double>>("limit"), ElementsAre(0.0, HUGE_VAL));
  EXPECT_EQ(c.at<double>("low"), -HUGE_VAL);
  EXPECT_EQ(c.at<float>("low"), -HUGE_VALF);
  EXPECT_TRUE(std::isnan(c.at<double>("nan")));
  EXPECT_EQ(c.at<double>("spelled"), HUGE_VAL);
  EXPECT_EQ(c.at<std::string>("text"), "Infinity \" NaN \\");
  EXPECT_EQ(c.at<int>("after"), -1);
  EXPECT_THAT(error_of([&] { c.at<int>("low"); }), HasSubstr("'low'"));
}

TEST(Config, FilesThatAreNoObjectAreCorrupt) {
  const testing::TempFolder folder;
  for (const char* text :
       {"", "[]", "{", "nul", "{\"a\": Infinit}", "{\"a\": \"", "{\"a\": \"\\", "{\"a\":1,\"a\":2}", "\xff"}) {
    const std::string path = folder.write("config.json", text);
    EXPECT_THAT(error_of([&] { read_config(path); }, ErrorCode::kCorruptFile), HasSubstr(path)) << text;
  }
  EXPECT_THAT(error_of([&] { read_config(folder / "none.json"); }, ErrorCode::kCorruptFile), HasSubstr("none.json"));
}

}  // namespace
}  // namespace sluice::config_test
