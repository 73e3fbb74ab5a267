// Every sampler of a chain against its definition in double precision, by Pearson's chi-square of many samples. All
// backends sample the same tokens, so one of them takes the many samples. The others are compared with the reference.
#include <gtest/gtest.h>

#include <random>

#include "ops/sampler_reference.h"
#include "ops/testing.h"

namespace sluice::ops::sampler_chain_test {
namespace {

using Chain = std::vector<SamplerStep>;

class SamplerChainTest : public OpsTest {
 protected:
  static constexpr int kSamples = static_cast<int>(sized(200'000, 10'000)), kTogether = 10'000, kCompared = 2'000;

  void SetUp() override {
    std::normal_distribution<float> normal(0.0f, 1.5f);
    for (int64_t i = 0; i < logits_->shape[1]; ++i) logits_.row(0)[i] = normal(random);
    logits_.row(0)[7] = -INFINITY;
  }

  std::vector<int> tokens(Checked& on, const Chain& chain, int first, int count) {
    Owned steps(&kUInt8, {static_cast<int64_t>(chain.size() * sizeof(SamplerStep))});
    std::copy(chain.begin(), chain.end(), steps->as<SamplerStep>());
    Owned rows(&kUInt8, {count * static_cast<int64_t>(sizeof(SampleRow))});
    Owned out(&kUInt8, {count * static_cast<int64_t>(sizeof(SampledRow))});
    for (int i = 0; i < count; ++i) {
      rows->as<SampleRow>()[i] = {.scale = 1.0f,
                                  .key = {11u, 5u},
                                  .position = static_cast<uint32_t>(first + i),
                                  .steps = static_cast<int32_t>(chain.size())};
    }
    sample(on.ctx, {.logits = logits_,
                    .rows = rows,
                    .sampled = out,
                    .for_host = {},
                    .edits = {},
                    .steps = steps,
                    .masks = {},
                    .top = {}});
    std::vector<int> sampled;
    for (int i = 0; i < count; ++i) sampled.push_back(out->as<SampledRow>()[i].token);
    return sampled;
  }

  std::vector<int> counts(const Chain& chain) {
    std::vector<int> counted(static_cast<size_t>(logits_->shape[1]));
    for (int first = 0; first < kSamples; first += kTogether) {
      for (const int token : tokens(device, chain, first, kTogether)) ++counted[static_cast<size_t>(token)];
    }
    return counted;
  }

  void expect_distribution(const Chain& chain) {
    if (GetParam()->rank > 0) {
      ASSERT_EQ(tokens(device, chain, 0, kCompared), tokens(reference, chain, 0, kCompared));
    }
    if (kernels_before<&OpTable::sample>(GetParam()) > 0) return;
    const std::vector<double> p =
        reference::distribution({logits_.row(0), static_cast<size_t>(logits_->shape[1])}, chain);
    const std::vector<int> counted = counts(chain);
    double chi_square = 0.0;
    int cells = 0, kept = 0;
    for (size_t i = 0; i < counted.size(); ++i) {
      const double expected = p[i] * kSamples;
      kept += p[i] > 0 ? 1 : 0;
      EXPECT_TRUE(p[i] > 0.0 || counted[i] == 0) << "token " << i << " was cut, and sampled " << counted[i] << " times";
      if (expected < 5.0) continue;
      chi_square += (counted[i] - expected) * (counted[i] - expected) / expected;
      ++cells;
    }
    // The mean is cells - 1 and the variance twice that. The limit is five standard deviations.
    EXPECT_LT(chi_square, cells - 1 + 5.0 * std::sqrt(2.0 * cells)) << cells << " cells";
    EXPECT_GT(kept, 1);
    EXPECT_LT(kept, chain.size() > 1 ? 120 : 121);
  }

  Owned logits_{&kFloat32, {1, 120}};
};

using enum SamplerKind;

TEST_P(SamplerChainTest, TheUsualSamplers) {
  expect_distribution({{.kind = kTemperature, .a = 1 / 0.7}});
  expect_distribution({{.kind = kTopNSigma, .b = 1.7f}});
  expect_distribution({{.kind = kTopK, .count = 20}});
  expect_distribution({{.kind = kTopP, .a = 0.8}});
  expect_distribution({{.kind = kMinP, .b = 0.06f}});
}

TEST_P(SamplerChainTest, TypicalP) {
  expect_distribution({{.kind = kTypicalP, .a = 0.5}});
  expect_distribution({{.kind = kTypicalP, .a = 0.9}});
}

TEST_P(SamplerChainTest, TopA) { expect_distribution({{.kind = kTopA, .b = 0.2f}}); }

TEST_P(SamplerChainTest, EpsilonCutoff) { expect_distribution({{.kind = kEpsilon, .b = 0.011f}}); }

TEST_P(SamplerChainTest, EtaCutoff) {
  expect_distribution({{.kind = kEta, .b = 0.02f}});  // by the entropy
  expect_distribution({{.kind = kEta, .b = 0.0002f}});
}

TEST_P(SamplerChainTest, Xtc) {
  expect_distribution({{.kind = kXtc, .b = 0.5f, .c = 0.03f}});
  expect_distribution({{.kind = kTopK, .count = 10}, {.kind = kXtc, .b = 1.0f, .c = 0.08f}});
  expect_distribution({{.kind = kTopK, .count = 10}, {.kind = kXtc, .b = 1.0f, .c = 0.45f}});  // nothing is so likely
}

TEST_P(SamplerChainTest, DynamicTemperature) {
  expect_distribution({{.kind = kTemperature, .a = 1.0, .b = 0.8f, .c = 1.0f}});
  expect_distribution({{.kind = kTemperature, .a = 1 / 0.5, .b = 1.0f, .c = 2.5f}});
}

TEST_P(SamplerChainTest, Smoothing) {
  expect_distribution({{.kind = kSmoothing, .b = 0.4f, .c = 1.0f}});
  expect_distribution({{.kind = kSmoothing, .b = 0.2f, .c = 2.0f}, {.kind = kTemperature, .a = 1 / 1.2}});
}

TEST_P(SamplerChainTest, Mirostat) {
  expect_distribution({{.kind = kMirostat1, .count = 120, .b = 5.0f}});
  expect_distribution({{.kind = kMirostat1, .count = 120, .b = 6.0f}});
  expect_distribution({{.kind = kTemperature, .a = 0.5}, {.kind = kMirostat1, .count = 120, .b = 6.0f}});
  expect_distribution({{.kind = kMirostat2, .b = 5.5f}});
}

TEST_P(SamplerChainTest, AdaptiveP) {
  expect_distribution({{.kind = kAdaptiveP, .b = 0.05f}});
  expect_distribution({{.kind = kTopK, .count = 20}, {.kind = kAdaptiveP, .b = 0.3f}});
}

// Samplers work on what those before them left, whose first token may be another one.
TEST_P(SamplerChainTest, SeveralSamplers) {
  expect_distribution({{.kind = kTypicalP, .a = 0.6}, {.kind = kMinP, .b = 0.3f}, {.kind = kTemperature, .a = 0.5}});
  expect_distribution({{.kind = kTopK, .count = 50},
                       {.kind = kTopP, .a = 0.9},
                       {.kind = kXtc, .b = 0.7f, .c = 0.05f},
                       {.kind = kSmoothing, .b = 0.3f, .c = 1.5f},
                       {.kind = kEpsilon, .b = 0.01f}});
  expect_distribution({{.kind = kTypicalP, .a = 0.4},
                       {.kind = kTemperature, .a = 1.0, .b = 0.5f, .c = 1.0f},
                       {.kind = kEta, .b = 0.01f},
                       {.kind = kTopA, .b = 0.3f},
                       {.kind = kTopNSigma, .b = 1.0f}});
}

SLUICE_FOR_EVERY_KERNEL(SamplerChainTest, &OpTable::sample);

}  // namespace
}  // namespace sluice::ops::sampler_chain_test
