// Several engines behind one interface: what goes to one of them, what to all, and what their answers become.
#include "engine/replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "engine/collect.h"
#include "server/fake_engine.h"

namespace sluice::replicas_test {
namespace {

using namespace testing;  // engine/collect.h

class ReplicasTest : public ::testing::Test {
 protected:
  ReplicasTest() {
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < 3; ++i) {
      auto engine = std::make_unique<FakeEngine>();
      fakes.push_back(engine.get());
      engines.push_back(std::move(engine));
    }
    fakes[1]->info().kv_cache_tokens = 100;
    fakes[2]->info().kv_cache_tokens = 50;
    replicas = join_replicas(std::move(engines));
  }

  Request request(std::string_view text) const {
    Request r;
    r.prompt = replicas->tokenize(text);
    r.sampling.max_tokens = 4;
    return r;
  }
  std::vector<int> submitted() const {
    std::vector<int> counts;
    for (const FakeEngine* fake : fakes) counts.push_back(fake->submitted);
    return counts;
  }

  std::vector<FakeEngine*> fakes;
  std::unique_ptr<Engine> replicas;
};

TEST_F(ReplicasTest, RequestsAreSpread) {
  for (FakeEngine* fake : fakes) fake->stalled = true;  // a request that ended would be no load
  Collector collector(*replicas);
  for (int i = 0; i < 9; ++i) collector.submit(request("hello"));
  for (FakeEngine* fake : fakes) fake->stalled = false;
  collector.wait();
  EXPECT_EQ(submitted(), (std::vector<int>{3, 3, 3}));
}

TEST_F(ReplicasTest, PrefixesStayTogether) {
  Collector collector(*replicas);
  const std::string a(200, 'a'), b(200, 'b');
  for (int i = 0; i < 5; ++i) {
    for (const std::string& text : {a, b}) {
      collector.submit(request(text + std::to_string(i)));
      collector.wait();
    }
  }
  std::vector<int> counts = submitted();
  std::ranges::sort(counts);
  EXPECT_EQ(counts, (std::vector<int>{0, 5, 5}));
}

TEST_F(ReplicasTest, CancelReachesTheReplicaOfTheRequest) {
  for (FakeEngine* fake : fakes) fake->stalled = true;
  std::vector<RequestId> ids;
  std::atomic<int> ended{0};
  for (int i = 0; i < 6; ++i) {
    ids.push_back(replicas->submit(request("hello"), [&](const Event& event) { ended += event.last ? 1 : 0; }));
  }
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::unique(ids).size(), 0u);
  for (const RequestId id : ids) replicas->cancel(id);
  for (FakeEngine* fake : fakes) fake->stalled = false;
  for (int i = 0; i < 500 && ended < 6; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(ended, 6);
  for (const FakeEngine* fake : fakes) EXPECT_EQ(fake->cancelled, 2);
}

TEST_F(ReplicasTest, ARequestThatOneReplicaRefusesGoesToAnother) {
  fakes[0]->refuse_submit = fakes[1]->refuse_submit = true;
  Collector collector(*replicas);
  for (int i = 0; i < 4; ++i) collector.submit(request("hello"));
  collector.wait();
  EXPECT_EQ(submitted(), (std::vector<int>{0, 0, 4}));
  EXPECT_EQ(collector.answer(0)[0].tokens.size(), 4u);
  fakes[2]->refuse_submit = true;
  try {
    replicas->submit(request("hello"), [](const Event&) { ADD_FAILURE() << "an event of a refused request"; });
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kOverloaded);
  }
}

TEST_F(ReplicasTest, OverloadedOnlyIfAllAre) {
  fakes[0]->is_overloaded = fakes[2]->is_overloaded = true;
  EXPECT_FALSE(replicas->overloaded());
  fakes[1]->is_overloaded = true;
  EXPECT_TRUE(replicas->overloaded());
}

TEST_F(ReplicasTest, HealthIsThatOfTheWorst) {
  EXPECT_TRUE(replicas->health().alive);
  fakes[1]->alive = false;
  fakes[2]->errors_in_a_row = 5;
  EXPECT_FALSE(replicas->health().alive);
  EXPECT_FALSE(replicas->health().failed);
  EXPECT_EQ(replicas->health().errors_in_a_row, 5);
  fakes[1]->failed = true;
  EXPECT_TRUE(replicas->health().failed);
  EXPECT_EQ(replicas->health().failure, "replica 1 failed");
}

TEST_F(ReplicasTest, TheModelHasAllCaches) { EXPECT_EQ(replicas->model().kv_cache_tokens, 150); }

TEST_F(ReplicasTest, WhatIsForAllGoesToAll) {
  replicas->reset_prefix_cache();
  replicas->stop_accepting();
  for (const FakeEngine* fake : fakes) {
    EXPECT_EQ(fake->resets, 1);
    EXPECT_TRUE(fake->draining);
  }
}

TEST_F(ReplicasTest, MetricsNameTheReplica) {
  const std::vector<MetricFamily> families = replicas->metrics();
  ASSERT_EQ(families.size(), fakes[0]->metrics().size());
  for (const MetricFamily& family : families) {
    std::vector<std::string> engines;
    for (const MetricSample& sample : family.samples) {
      for (const auto& [label, value] : sample.labels) {
        if (label == "engine" && std::ranges::find(engines, value) == engines.end()) engines.push_back(value);
      }
    }
    EXPECT_EQ(engines, (std::vector<std::string>{"0", "1", "2"})) << family.name;
  }
}

TEST(ReplicaOptions, LimitsOfTheWholeAreDivided) {
  EngineOptions o;
  o.data_parallel_size = 3;
  o.max_num_queued_reqs = 100;
  o.kv_disk = "folder";
  o.kv_disk_bytes = 301;
  int requests = 0;
  int64_t bytes = 0;
  std::vector<int64_t> seeds;
  for (int i = 0; i < 3; ++i) {
    const EngineOptions one = replica_options(o, i);
    EXPECT_EQ(one.data_parallel_rank, i);
    EXPECT_EQ(one.kv_disk, "folder/replica-" + std::to_string(i));
    EXPECT_EQ(one.max_num_queued_tokens, 0);  // no limit
    requests += one.max_num_queued_reqs;
    bytes += one.kv_disk_bytes;
    seeds.push_back(one.seed);
  }
  EXPECT_EQ(requests, 100);
  EXPECT_EQ(bytes, 301);
  std::ranges::sort(seeds);
  EXPECT_EQ(std::ranges::unique(seeds).size(), 0u);
  o.max_num_queued_reqs = 2;
  EXPECT_EQ(replica_options(o, 2).max_num_queued_reqs, 1);
}

TEST(ReplicaOptions, ARankMustBeBelowTheSize) {
  EngineOptions o;
  o.model = demo_model();
  o.data_parallel_size = 2;
  o.data_parallel_rank = 2;
  EXPECT_THROW(Engine::describe(o), Error);
}

TEST(ReplicaOptions, NumaPartsAreRefused) {
  EngineOptions o;
  o.model = demo_model();
  o.data_parallel_size = 2;
  o.numa = "2";
  EXPECT_THROW(Engine::describe(o), Error);
  o.numa = "off";
  EXPECT_EQ(Engine::describe(o).name, "minnow-6m");
}

// Two replicas with a thread each answer as one engine does.
TEST(ReplicasOfTheModel, AnswersAreTheSameAndSamplesAreNot) {
  EngineOptions o;
  o.model = demo_model();
  o.dtype = "float32";
  o.threads = 2;
  o.max_model_len = 256;
  const auto one = Engine::load(o);
  o.data_parallel_size = 2;
  const auto two = Engine::load(o);
  const auto answers = [](Engine& engine, double temperature) {
    Collector collector(engine);
    for (int i = 0; i < 8; ++i) {
      Request request;
      request.prompt = engine.tokenize(i % 2 == 0 ? "Once upon a time" : "The city of");
      request.sampling.temperature = temperature;
      request.sampling.max_tokens = 24;
      request.sampling.ignore_eos = true;
      collector.submit(std::move(request));
    }
    collector.wait();
    std::vector<std::vector<TokenId>> tokens;
    for (size_t i = 0; i < 8; ++i) tokens.push_back(collector.answer(i)[0].tokens);
    return tokens;
  };
  EXPECT_EQ(answers(*two, 0), answers(*one, 0));
  auto samples = answers(*two, 1);
  std::ranges::sort(samples);
  EXPECT_EQ(std::ranges::unique(samples).size(), 0u);
}

}  // namespace
}  // namespace sluice::replicas_test
