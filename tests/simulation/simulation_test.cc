// Runs the simulation of the whole server for a number of events. SLUICE_SIMULATION_EVENTS changes the number.
#include "simulation/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace sluice::simulation {
namespace {

constexpr uint64_t kEventsPerSeed = 30'000;

TEST(ServerSimulation, EverySeedHoldsTheInvariants) {
  const char* asked = std::getenv("SLUICE_SIMULATION_EVENTS");
  const uint64_t events = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 1'000'000;
  uint64_t done = 0;
  Counts counts;
  for (uint64_t seed = 1; done < events; ++seed) {
    const Result result = run_seed(seed, kEventsPerSeed);
    ASSERT_TRUE(result.passed) << "seed " << seed;
    done += result.events;
    counts += result.counts;
  }
  EXPECT_GT(counts.answered, 100u);
  EXPECT_GT(counts.refused, 10u);
  EXPECT_GT(counts.left, 100u);
  EXPECT_GT(counts.hostile, 100u);
}

TEST(ServerSimulation, ASeedReplaysExactly) {
  for (const uint64_t seed : {3, 4, 5}) {
    const Result first = run_seed(seed, kEventsPerSeed), second = run_seed(seed, kEventsPerSeed);
    ASSERT_TRUE(first.passed && second.passed);
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.events, second.events);
    EXPECT_NE(first.trace, run_seed(seed + 10, kEventsPerSeed).trace);
  }
}

}  // namespace
}  // namespace sluice::simulation
