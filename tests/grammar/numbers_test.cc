// Languages of numbers against comparisons of the numbers, in units of a thousandth.
#include "grammar/json_schema/numbers.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::grammar::json_schema::numbers_test {
namespace {

// A number with up to three decimals, with some trailing zeros.
std::string spell(int64_t thousandths, std::mt19937& random) {
  std::string out = thousandths < 0 ? "-" : "";
  const int64_t magnitude = std::abs(thousandths);
  out += std::to_string(magnitude / 1000);
  std::string fraction = std::to_string(1000 + magnitude % 1000).substr(1);
  if (random() % 2 == 0) {
    while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  }
  if (random() % 4 == 0 && !fraction.empty()) fraction += "00";
  return fraction.empty() ? out : out + "." + fraction;
}

int64_t any(std::mt19937& random) {
  static constexpr int64_t kRanges[] = {20, 2'000, 30'000, 1'200'000, 120'000'000};
  const int64_t range = kRanges[random() % 5];
  const int64_t value = static_cast<int64_t>(random() % static_cast<uint64_t>(2 * range)) - range;
  return random() % 2 == 0 ? value / 1000 * 1000 : value;
}

TEST(Numbers, BoundsCompareExactly) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const int64_t bound = any(random);
    const Decimal decimal = Decimal::of(Json::parse(spell(bound, random)));
    Budget budget;
    for (const bool exclusive : {false, true}) {
      const Automaton least = at_least(decimal, exclusive, budget), most = at_most(decimal, exclusive, budget);
      for (int i = 0; i < 60; ++i) {
        const int64_t value = i == 0       ? bound
                              : i % 3 == 0 ? bound + static_cast<int64_t>(random() % 41) - 20
                                           : any(random);
        const std::string text = spell(value, random);
        ASSERT_EQ(least.matches(text), exclusive ? value > bound : value >= bound) << text << " >= " << bound;
        ASSERT_EQ(most.matches(text), exclusive ? value < bound : value <= bound) << text << " <= " << bound;
      }
    }
  }
}

TEST(Numbers, MultiplesDivideExactly) {
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    const int64_t divisor = 1 + static_cast<int64_t>(random() % 3000);
    const Decimal decimal = Decimal::of(Json::parse(spell(divisor * (random() % 3 == 0 ? 1000 : 1), random)));
    const int64_t units = std::stoll(decimal.digits) * 1000 + std::stoll((decimal.fraction + "000").substr(0, 3));
    if (units > 20'000 * 1000) continue;
    Budget budget;
    const Automaton multiples = multiples_of(decimal, budget);
    for (int i = 0; i < 200; ++i) {
      const int64_t value = i % 2 == 0 ? units * static_cast<int64_t>(random() % 1000) : any(random);
      const std::string text = spell(value, random);
      ASSERT_EQ(multiples.matches(text), value % units == 0) << text << " / " << units;
    }
  }
}

TEST(Numbers, EqualNumbersHaveSeveralSpellings) {
  Budget budget;
  const auto equal = [&](const char* number, const char* text) {
    return equal_to(Json::parse(number), budget).matches(text);
  };
  EXPECT_TRUE(equal("1", "1.0"));
  EXPECT_TRUE(equal("1.50", "1.5"));
  EXPECT_TRUE(equal("0", "-0.0"));
  EXPECT_TRUE(equal("1e20", "100000000000000000000"));
  EXPECT_TRUE(equal("12345678901234567890", "12345678901234567890"));
  EXPECT_FALSE(equal("1", "10"));
  EXPECT_FALSE(equal("-1", "1"));
  EXPECT_TRUE(any_integer().matches("-3.0"));
  EXPECT_TRUE(any_integer().matches("1e3"));
  EXPECT_FALSE(any_integer().matches("3.5"));
  EXPECT_FALSE(any_number().matches("01"));
  EXPECT_TRUE(any_number().matches("-1.5E-7"));
}

}  // namespace
}  // namespace sluice::grammar::json_schema::numbers_test
