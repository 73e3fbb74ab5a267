// Tests which replica a request goes to.
#include "route/policy.h"

#include <gtest/gtest.h>

#include <map>

#include "sluice/error.h"

namespace sluice::route {
namespace {

constexpr ReplicaMask kThree = 7;  // of three replicas

class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest() { options.replica = {"http://a:1", "http://b:1", "http://c:1"}; }

  Policy& policy() {
    if (!policy_) {
      replicas = make_replicas(options.replica);
      policy_.emplace(options, replicas);
    }
    return *policy_;
  }
  static Prompt prompt(char name, size_t blocks = 4) {
    return read_prompt(std::string("{\"prompt\": \"") + std::string(blocks * kBlockBytes, name) + "\"}");
  }
  size_t choose(const Prompt& prompt, const std::string& session = "", ReplicaMask allowed = kThree,
                bool sticky = false) {
    return policy().choose({.prompt = prompt, .session = session, .sticky = sticky}, allowed).value();
  }
  void load(int64_t a, int64_t b, int64_t c) {
    policy();
    replicas[0]->load = a;
    replicas[1]->load = b;
    replicas[2]->load = c;
  }

  RouteOptions options;
  Replicas replicas;

 private:
  std::optional<Policy> policy_;
};

TEST_F(PolicyTest, AKnownPrefixGoesToItsReplica) {
  load(0, 0, 1);
  const size_t first = choose(prompt('x'));
  EXPECT_NE(first, 2u);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(choose(prompt('x', 6)), first);
  EXPECT_EQ(replicas[first]->prefix_hits, 9u);
  EXPECT_EQ(replicas[first]->prefix_blocks, 4u + 8 * 6);
}

TEST_F(PolicyTest, UnknownPrefixesSpreadOverEquallyLoadedReplicas) {
  std::map<size_t, int> counts;
  for (int i = 0; i < 30; ++i) ++counts[choose(prompt(static_cast<char>('A' + i)))];
  EXPECT_EQ(counts, (std::map<size_t, int>{{0, 10}, {1, 10}, {2, 10}}));
}

TEST_F(PolicyTest, RepeatedPromptsDoNotDecideWhereNewOnesGo) {
  for (int repeats = 1; repeats < 7; ++repeats) {
    std::map<size_t, int> counts;
    for (int i = 0; i < 6; ++i) {
      const Prompt next = prompt(static_cast<char>('A' + repeats * 6 + i));
      ++counts[choose(next)];
      for (int n = 0; n < repeats; ++n) choose(next);
    }
    EXPECT_EQ(counts, (std::map<size_t, int>{{0, 2}, {1, 2}, {2, 2}})) << repeats;
  }
}

TEST_F(PolicyTest, ALoadedReplicaLosesItsPrefixToTheLeastLoadedOne) {
  load(9, 0, 9);
  ASSERT_EQ(choose(prompt('x')), 1u);
  load(8, 12, 9);
  EXPECT_EQ(choose(prompt('x')), 1u);  // 8 * 5/4 + 2 = 12
  load(8, 13, 9);
  EXPECT_EQ(choose(prompt('x')), 0u);
  load(9, 8, 0);
  EXPECT_EQ(choose(prompt('y')), 2u);
  load(2, 1, 0);
  EXPECT_EQ(choose(prompt('x')), 1u);  // two have it now: the less loaded one
}

TEST_F(PolicyTest, APrefixOfAReplicaThatMayNotBeChosenDoesNotCount) {
  load(9, 0, 9);
  ASSERT_EQ(choose(prompt('x')), 1u);
  load(0, 0, 1);
  EXPECT_EQ(choose(prompt('x'), "", 5), 0u);
  EXPECT_FALSE(policy().choose({.prompt = prompt('x'), .session = ""}, 0));
}

TEST_F(PolicyTest, SessionsHaveAReplicaEach) {
  std::map<size_t, int> counts;
  std::map<std::string, size_t> homes;
  for (int i = 0; i < 300; ++i) ++counts[homes[std::to_string(i)] = choose({}, std::to_string(i))];
  ASSERT_EQ(counts.size(), 3u);
  for (const auto& [replica, count] : counts) EXPECT_GT(count, 60);
  for (const auto& [session, home] : homes) {
    EXPECT_EQ(choose({}, session), home);
    // Without one of the replicas, only its own sessions move.
    const size_t other = choose({}, session, kThree & ~ReplicaMask{4});
    EXPECT_EQ(other == home, home != 2) << session;
  }
}

TEST_F(PolicyTest, APrefixCountsMoreThanASessionAndLoadMoreThanBoth) {
  const size_t home = choose({}, "s"), other = (home + 1) % 3;
  int64_t loads[3] = {9, 9, 9};
  loads[other] = 0;
  load(loads[0], loads[1], loads[2]);
  ASSERT_EQ(choose(prompt('x')), other);
  load(0, 0, 0);
  EXPECT_EQ(choose(prompt('x'), "s"), other);
  EXPECT_EQ(choose(prompt('y'), "s"), home);
  loads[0] = loads[1] = loads[2] = 0;
  loads[home] = 3;
  load(loads[0], loads[1], loads[2]);
  EXPECT_NE(choose(prompt('z'), "s"), home);
  EXPECT_EQ(choose(prompt('z'), "s", kThree, /*sticky=*/true), home);
}

TEST_F(PolicyTest, LeastLoad) {
  options.policy = "least-load";
  load(3, 1, 2);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(choose(prompt('x'), "s"), 1u);
  EXPECT_EQ(choose(prompt('x'), "s", 5), 2u);
}

TEST_F(PolicyTest, RoundRobin) {
  options.policy = "round-robin";
  load(3, 1, 2);
  const size_t first = choose(prompt('x'));
  EXPECT_EQ(choose(prompt('x')), (first + 1) % 3);
  EXPECT_EQ(choose(prompt('x')), (first + 2) % 3);
  EXPECT_EQ(choose(prompt('x')), first);
}

TEST_F(PolicyTest, UnknownPolicyIsRefused) {
  options.policy = "best";
  EXPECT_THROW(policy(), Error);
}

TEST(Weight, GrowsWithTheBodyUpToALimit) {
  EXPECT_EQ(weight_of(0), 1);
  EXPECT_EQ(weight_of(16 << 10), 2);
  EXPECT_EQ(weight_of(100 << 10), 7);
  EXPECT_EQ(weight_of(64 << 20), 16);
}

TEST(ReplicaUrls, AreChecked) {
  EXPECT_EQ(Replica("http://Host:81/").authority, "host:81");
  EXPECT_EQ(Replica("http://host").url, "http://host:80");
  EXPECT_EQ(Replica("http://[::1]:8000").authority, "[::1]:8000");
  EXPECT_EQ(Replica("http://[::1]:8000").host, "::1");
  for (const char* bad : {"", "host:80", "https://host", "http://host/v1", "http://", "http://host:0",
                          "http://host:70000", "http://user@host", "ftp://host"}) {
    try {
      make_replicas({bad});
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.param, "replica");
      EXPECT_NE(std::string(e.what()).find("expected"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(make_replicas({}), Error);
  EXPECT_THROW(make_replicas({"http://a:1", "http://A:1/"}), Error);
  EXPECT_THROW(make_replicas(std::vector<std::string>(65, "http://a:1")), Error);
}

}  // namespace
}  // namespace sluice::route
