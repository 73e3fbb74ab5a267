// Tests the JSON parser and its limits on untrusted text.
#include "base/json.h"

#include <gtest/gtest.h>

#include "sluice/error.h"
#include "support/cpu_time.h"

namespace sluice::json_test {
namespace {

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(dump_json(parse_json(R"({"b":1,"a":{"z":[],"y":null}})")), R"({"b":1,"a":{"z":[],"y":null}})");
}

TEST(Json, RefusesWhatRfc8259Refuses) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1,}", "NaN", "[1] x", "01", "'a'", "\"\\ud800\"", "\"\xff\"",
                           "1e400", "\"\x01\"", "nul", "[1 2]"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(error_of(nested(64)), "");
  EXPECT_NE(error_of(nested(65)), "");
  EXPECT_NE(error_of(std::string(1'000'000, '[')), "");
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_NE(error_of(R"({"a":1,"b":2,"a":3})").find("duplicate key \"a\""), std::string::npos);
}

TEST(Json, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  text += "}";
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(parse_json(text).size(), 300'000u); }), 10);
}

TEST(Json, ValuesAreLimited) { EXPECT_NE(error_of("[1,2,3]", {.depth = 64, .values = 3}), ""); }

}  // namespace
}  // namespace sluice::json_test
