// Tests where a request's sampling defaults come from: the checkpoint, or options.
#include "engine/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/error.h"

namespace sluice::sampling_defaults_test {
namespace {

GenerationConfig checkpoint() {
  GenerationConfig out;
  out.temperature = 0.6;
  out.top_k = 20;
  out.max_new_tokens = 100;
  return out;
}

SamplingParams defaults(const std::string& overrides, const std::string& source = "auto") {
  EngineOptions options;
  options.generation_config = source;
  options.override_generation_config = overrides;
  return sampling_defaults(options, checkpoint());
}

TEST(SamplingDefaults, AreTheCheckpoints) {
  const SamplingParams params = defaults("");
  EXPECT_EQ(params.temperature, 0.6);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.max_tokens, 100);
}

TEST(SamplingDefaults, CanIgnoreTheCheckpoint) {
  const SamplingParams params = defaults("", "none");
  EXPECT_EQ(params.temperature, SamplingParams().temperature);
  EXPECT_EQ(params.top_k, SamplingParams().top_k);
  EXPECT_EQ(params.max_tokens, std::nullopt);
}

TEST(SamplingDefaults, CanBeReplacedOneByOne) {
  const SamplingParams params = defaults(R"({"temperature": 0, "max_new_tokens": 7, "min_p": 0.5})");
  EXPECT_EQ(params.temperature, 0);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.min_p, 0.5);
  EXPECT_EQ(params.max_tokens, 7);
  EXPECT_EQ(defaults(R"({"top_p": 0.25})", "none").top_p, 0.25);
}

TEST(SamplingDefaults, RefuseWhatIsNoDefault) {
  for (const char* wrong : {R"({"temprature": 1})", R"({"temperature": -1})", R"({"temperature": "x"})",
                            R"({"top_k": 1.5})", R"({"top_p": 0})", R"({"max_new_tokens": 0})", "[1]"}) {
    try {
      defaults(wrong);
      FAIL() << wrong;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      EXPECT_THAT(e.what(), ::testing::HasSubstr("--override-generation-config: "));
    }
  }
}

}  // namespace
}  // namespace sluice::sampling_defaults_test
