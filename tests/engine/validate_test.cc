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

}  // namespace
}  // namespace sluice::validate_test
