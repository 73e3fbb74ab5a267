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

TEST_F(ReplicasTest, HealthIsThatOfTheWorstThatWorks) {
  EXPECT_TRUE(replicas->health().alive);
  fakes[1]->alive = false;
  fakes[2]->errors_in_a_row = 5;
  EXPECT_FALSE(replicas->health().alive);
  EXPECT_FALSE(replicas->health().failed);
  EXPECT_EQ(replicas->health().errors_in_a_row, 5);
  fakes[1]->failed = true;
  EXPECT_TRUE(replicas->health().alive);
  EXPECT_FALSE(replicas->health().failed);
  EXPECT_EQ(replicas->health().failure, "replica 1: its engine has stopped");
  fakes[0]->failed = fakes[2]->failed = true;
  EXPECT_FALSE(replicas->health().alive);
  EXPECT_TRUE(replicas->health().failed);
}

TEST_F(ReplicasTest, AReplicaThatFailedGetsNoRequests) {
  fakes[0]->failed = true;
  Collector collector(*replicas);
  for (int i = 0; i < 6; ++i) collector.submit(request("hello"));
  collector.wait();
  EXPECT_EQ(fakes[0]->submitted, 0);
  EXPECT_EQ(fakes[1]->submitted + fakes[2]->submitted, 6);
  std::vector<double> up;
  for (const MetricFamily& family : replicas->metrics()) {
    if (family.name != "sluice:replica_up") continue;
    for (const MetricSample& sample : family.samples) up.push_back(sample.value);
  }
  EXPECT_EQ(up, (std::vector<double>{0, 1, 1}));
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
  ASSERT_EQ(families.size(), fakes[0]->metrics().size() + 2);  // and those of replicas
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

// A fake engine with names of adapters.
class AdaptedEngine : public FakeEngine {
 public:
  void load_adapter(const std::string& name, const std::string& folder) override {
    adapters_.push_back({name, folder});
  }
  bool unload_adapter(std::string_view name) override {
    return std::erase_if(adapters_, [&](const AdapterInfo& a) { return a.name == name; }) > 0;
  }
  std::vector<AdapterInfo> adapters() const override { return adapters_; }

 private:
  std::vector<AdapterInfo> adapters_;
};

class RestartTest : public ::testing::Test {
 protected:
  RestartTest() {
    std::vector<std::unique_ptr<Engine>> engines;
    for (size_t i = 0; i < 2; ++i) engines.push_back(make(i));
    engines[1]->load_adapter("at the start", "a");
    const auto load = [this](int replica, int max_model_len, const std::function<void(double)>& progress) {
      progress(0);
      EXPECT_EQ(max_model_len, fakes[1 - static_cast<size_t>(replica)]->info().max_model_len);
      if (failures-- > 0) throw Error(ErrorCode::kInternal, "no memory");
      auto engine = make(static_cast<size_t>(replica));
      engine->load_adapter("at the start", "a");
      return engine;
    };
    replicas = join_replicas(std::move(engines), {.load = load, .pause = std::chrono::milliseconds(20)});
  }
  std::unique_ptr<Engine> make(size_t replica) {
    auto engine = std::make_unique<AdaptedEngine>();
    fakes[replica] = engine.get();
    return engine;
  }
  double metric(const std::string& name, size_t replica) const {
    for (const MetricFamily& family : replicas->metrics()) {
      if (family.name == name) return family.samples[replica].value;
    }
    return -1;
  }
  void wait_for_restart() const {
    for (int i = 0; i < 1000 && !replicas->health().failure.empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(replicas->health().failure, "");
  }

  FakeEngine* fakes[2] = {};
  std::atomic<int> failures{0};
  std::unique_ptr<Engine> replicas;
};

TEST_F(RestartTest, AReplicaThatFailedIsLoadedAnew) {
  failures = 2;
  fakes[1]->failed = true;
  EXPECT_EQ(replicas->health().failure, "replica 1: its engine has stopped");
  EXPECT_TRUE(replicas->health().alive);
  wait_for_restart();
  EXPECT_EQ(failures, -1);
  EXPECT_EQ(metric("sluice:replica_up", 1), 1);
  EXPECT_EQ(metric("sluice:replica_restarts", 0), 0);
  EXPECT_EQ(metric("sluice:replica_restarts", 1), 1);
  fakes[0]->refuse_submit = true;
  Collector collector(*replicas);
  Request request;
  request.prompt = replicas->tokenize("hello");
  collector.submit(std::move(request));
  collector.wait();
  EXPECT_EQ(fakes[1]->submitted, 1);
}

TEST_F(RestartTest, ALateCancelDoesNotHitARequestOfTheNextEngine) {
  fakes[0]->refuse_submit = fakes[1]->stalled = true;
  const auto submit = [&](std::atomic<int>& ended) {
    Request request;
    request.prompt = replicas->tokenize("hello");
    return replicas->submit(std::move(request), [&](const Event& event) { ended += event.last ? 1 : 0; });
  };
  std::atomic<int> before{0}, after{0};
  const RequestId old = submit(before);
  fakes[1]->failed = true;
  wait_for_restart();
  fakes[1]->stalled = true;
  const RequestId next = submit(after);
  EXPECT_NE(next, old);
  replicas->cancel(old);
  EXPECT_EQ(fakes[1]->cancelled, 0);
  replicas->cancel(next);
  EXPECT_EQ(fakes[1]->cancelled, 1);
  for (int i = 0; i < 500 && after == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(after, 1);
}

TEST_F(RestartTest, TheNewEngineHasTheAdaptersOfTheOthers) {
  replicas->unload_adapter("at the start");
  replicas->load_adapter("later", "b");
  fakes[0]->failed = true;
  wait_for_restart();
  for (const FakeEngine* fake : fakes) {
    ASSERT_EQ(fake->adapters().size(), 1u);
    EXPECT_EQ(fake->adapters()[0].name, "later");
  }
}

TEST_F(RestartTest, WithoutAnotherReplicaNothingIsLoaded) {
  failures = 1 << 20;
  fakes[0]->failed = fakes[1]->failed = true;
  for (int i = 0; i < 100 && replicas->health().failed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(replicas->health().failed);
  EXPECT_EQ(failures, 1 << 20);
  EXPECT_EQ(replicas->model().name, "fake");
  EXPECT_EQ(replicas->tokenize("a").size(), 2u);  // still works
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
