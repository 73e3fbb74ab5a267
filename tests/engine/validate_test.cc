// Ranges of sampling parameters, as their table states them.
#include "engine/validate.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "sluice/error.h"
#include "sluice/sampling_parameters.h"

namespace sluice::validate_test {
namespace {

constexpr int kVocab = 100;

// Returns the parameter that validate() refuses, or nothing.
std::string refused(const SamplingParams& sampling) {
  Request request;
  request.prompt = {1};
  request.sampling = sampling;
  try {
    validate(request, kVocab);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
    return e.param;
  }
  return {};
}

TEST(SamplingParameters, DefaultsAreValidAndDocumented) {
  const SamplingParams defaults;
  EXPECT_EQ(refused(defaults), "");
  std::set<std::string_view> names;
  for (const SamplingParameter& row : kSamplingParameters) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.help.empty()) << row.name;
    EXPECT_LT(row.min, row.max) << row.name;
    EXPECT_TRUE(row.fallback.ends_with(fmt::format("{}", row.of(defaults)))) << row.name << ": " << row.fallback;
  }
}

TEST(SamplingParameters, RangesAreChecked) {
  for (const SamplingParameter& row : kSamplingParameters) {
    SCOPED_TRACE(row.name);
    const auto with = [&](double value) {
      SamplingParams sampling;
      sampling.top_k = 4;  // penalty_alpha needs candidates
      row.set(sampling, value);
      return refused(sampling);
    };
    EXPECT_EQ(with(row.min), row.above_min ? row.name : "");
    EXPECT_EQ(with(row.max), "");
    EXPECT_EQ(with(row.is_integer() ? row.min - 1 : row.min - 1e-9), row.name);
    if (row.is_integer()) continue;
    EXPECT_EQ(with(std::nextafter(row.min, row.max)), "");
    EXPECT_EQ(with(std::nextafter(row.max, INFINITY)), row.name);
    EXPECT_EQ(with(NAN), row.name);
    EXPECT_EQ(with(-INFINITY), row.name);
  }
}

std::string refused(const Request& request) {
  try {
    validate(request, kVocab);
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("contrastive search"), std::string::npos) << e.what();
    return e.param;
  }
  return {};
}

TEST(ContrastiveSearch, RefusesWhatDoesNotWorkWithIt) {
  const auto with = [](auto&& change) {
    Request request;
    request.prompt = {1};
    request.sampling.penalty_alpha = 0.6;
    request.sampling.top_k = 4;
    change(request);
    return refused(request);
  };
  EXPECT_EQ(with([](Request&) {}), "");
  for (const int top_k : {-1, 0, 1, kMostCandidates + 1}) {
    EXPECT_EQ(with([=](Request& r) { r.sampling.top_k = top_k; }), "top_k") << top_k;
  }
  EXPECT_EQ(with([](Request& r) { r.n = 2; }), "n");
  EXPECT_EQ(with([](Request& r) { r.best_of = 2; }), "best_of");
  EXPECT_EQ(with([](Request& r) { r.beams = {.width = 2}; }), "num_beams");
  EXPECT_EQ(with([](Request& r) { r.context_shift = true; }), "context_shift");
  EXPECT_EQ(with([](Request& r) { r.sampling.mirostat = 2; }), "mirostat");
  EXPECT_EQ(with([](Request& r) { r.sampling.typical_p = 0.5; }), "typical_p");
  // Penalties and what excludes tokens change which ones are the likeliest.
  EXPECT_EQ(with([](Request& r) { r.sampling.repetition_penalty = 1.2, r.sampling.no_repeat_ngram_size = 2; }), "");
  EXPECT_EQ(with([](Request& r) { r.sampling.min_tokens = 2, r.sampling.temperature = 0.5, r.sampling.top_p = 0.9; }),
            "");
}

}  // namespace
}  // namespace sluice::validate_test
