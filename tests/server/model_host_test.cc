// Models that come and go: one load for all that wait, room for others, idle models, failures, and ends of waits.
#include "server/model_host.h"

#include <future>

#include "server/server_fixture.h"

namespace sluice::server::model_host_test {
namespace {

using std::chrono::milliseconds;

// What acquire() answered.
struct Answer {
  std::shared_ptr<Engine> engine;
  ApiError error;
};

// A host whose loads the test holds back, fails and counts.
class ModelHostTest : public ::testing::Test {
 protected:
  struct Source {
    std::atomic<int> loads{0};
    std::atomic<bool> held{false};         // loads do not end
    std::function<void()> before = [] {};  // may throw
    double share = 0;
    std::weak_ptr<FakeEngine> engine;  // of the last load
  };

  ModelSource source(const std::string& name, milliseconds idle = milliseconds(0)) {
    auto& mine = sources_[name];
    ModelSource out{.name = name, .info = {}, .load = {}, .at_start = true, .idle = idle};
    out.info.name = name;
    out.load = [this, &mine](double share, const std::function<void(double)>& progress) -> std::unique_ptr<Engine> {
      ++mine.loads;
      mine.share = share;
      ++loading_;
      most_loading_ = std::max(most_loading_.load(), loading_.load());
      struct Leave {
        std::atomic<int>& count;
        ~Leave() { --count; }
      } leave{loading_};
      while (mine.held) {
        progress(0.5);
        std::this_thread::sleep_for(milliseconds(1));
      }
      mine.before();
      ++alive_;
      return std::make_unique<Counted>(alive_);
    };
    return out;
  }

  // An engine that is counted while it lives.
  struct Counted : FakeEngine {
    explicit Counted(std::atomic<int>& count) : count_(count) {}
    ~Counted() override { --count_; }
    std::atomic<int>& count_;
  };

  std::unique_ptr<ModelHost> host(std::vector<std::string> names, ModelHostOptions options = {},
                                  milliseconds idle = milliseconds(0)) {
    std::vector<ModelSource> list;
    for (const std::string& name : names) list.push_back(source(name, idle));
    return std::make_unique<ModelHost>(std::move(list), options);
  }

  static std::future<Answer> ask(ModelHost& host, ModelHost::Id id,
                                 std::optional<ModelHost::Clock::time_point> deadline = {}) {
    const auto promise = std::make_shared<std::promise<Answer>>();
    host.acquire(id, deadline, [promise](std::shared_ptr<Engine> engine, const ApiError& error) {
      promise->set_value({std::move(engine), error});
    });
    return promise->get_future();
  }
  static Answer get(ModelHost& host, ModelHost::Id id) { return ask(host, id).get(); }

  static bool is_loaded(const ModelHost& host, ModelHost::Id id) { return host.look(id) != nullptr; }

  std::map<std::string, Source> sources_;
  std::atomic<int> alive_{0}, loading_{0}, most_loading_{0};
};

TEST_F(ModelHostTest, AllThatWaitGetOneLoad) {
  const auto models = host({"a", "b"});
  sources_["a"].held = true;
  std::vector<std::future<Answer>> answers;
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      auto answer = ask(*models, 0);
      const std::lock_guard lock(mutex);
      answers.push_back(std::move(answer));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(models->try_acquire(0), nullptr);
  sources_["a"].held = false;
  std::set<Engine*> engines;
  for (auto& answer : answers) engines.insert(answer.get().engine.get());
  EXPECT_EQ(engines.size(), 1u);
  EXPECT_NE(*engines.begin(), nullptr);
  EXPECT_EQ(sources_["a"].loads, 1);
  EXPECT_EQ(sources_["b"].loads, 0);
  EXPECT_NE(models->try_acquire(0), nullptr);
}

// Models may be added while others are used, and share the memory that max_loaded leaves them.
TEST_F(ModelHostTest, ModelsMayBeAdded) {
  const auto models = host({"a"}, {.max_loaded = 2, .grows = true});
  EXPECT_NE(get(*models, 0).engine, nullptr);
  EXPECT_EQ(sources_["a"].share, 0.5);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      ModelSource added = [&] {
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        return source(fmt::format("added {}", i));
      }();
      const ModelHost::Id id = models->add(std::move(added));
      EXPECT_EQ(models->name(id), fmt::format("added {}", i));
      EXPECT_NE(get(*models, id).engine, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(models->size(), 5u);
  EXPECT_LE(alive_, 2);
}

// A model that loads holds up no request to one that is loaded.
TEST_F(ModelHostTest, LoadedModelsAnswerWhileOthersLoad) {
  const auto models = host({"a", "b"});
  EXPECT_NE(get(*models, 0).engine, nullptr);
  sources_["b"].held = true;
  auto waiting = ask(*models, 1);
  ASSERT_TRUE(eventually([&] { return loading_ == 1; }));
  EXPECT_NE(get(*models, 0).engine, nullptr);
  EXPECT_EQ(waiting.wait_for(milliseconds(0)), std::future_status::timeout);
  sources_["b"].held = false;
  EXPECT_NE(waiting.get().engine, nullptr);
}

TEST_F(ModelHostTest, TheLeastRecentlyUsedMakesRoom) {
  const auto models = host({"a", "b", "c"}, {.max_loaded = 2});
  for (const ModelHost::Id id : {0, 1, 0}) EXPECT_NE(get(*models, id).engine, nullptr);
  EXPECT_NE(get(*models, 2).engine, nullptr);
  EXPECT_TRUE(is_loaded(*models, 0));
  EXPECT_FALSE(is_loaded(*models, 1));
  EXPECT_EQ(alive_, 2);
  EXPECT_NE(get(*models, 1).engine, nullptr);
  EXPECT_FALSE(is_loaded(*models, 0));
  EXPECT_EQ(sources_["b"].loads, 2);
}

// A look is no use: a page that watches all models does not change which one makes room.
TEST_F(ModelHostTest, LooksDoNotCountAsUse) {
  const auto models = host({"a", "b", "c"}, {.max_loaded = 2});
  for (const ModelHost::Id id : {0, 1}) EXPECT_NE(get(*models, id).engine, nullptr);
  EXPECT_TRUE(is_loaded(*models, 0));
  EXPECT_NE(get(*models, 2).engine, nullptr);
  EXPECT_FALSE(is_loaded(*models, 0));
  EXPECT_TRUE(is_loaded(*models, 1));
}

TEST_F(ModelHostTest, IdleModelsMakeRoomBeforeBusyOnes) {
  const auto models = host({"a", "b", "c"}, {.max_loaded = 2});
  const Answer busy = get(*models, 0);
  EXPECT_NE(get(*models, 1).engine, nullptr);
  EXPECT_NE(get(*models, 2).engine, nullptr);
  EXPECT_TRUE(is_loaded(*models, 0));
  EXPECT_FALSE(is_loaded(*models, 1));
}

// Requests that run keep their engine; later ones wait for the next load, in turns with the other model.
TEST_F(ModelHostTest, ABusyModelIsUnloadedWhenItsRequestsHaveEnded) {
  const auto models = host({"a", "b"}, {.max_loaded = 1});
  Answer busy = get(*models, 0);
  auto other = ask(*models, 1);
  ASSERT_TRUE(eventually([&] { return models->try_acquire(0) == nullptr; }));
  auto later = ask(*models, 0);
  EXPECT_EQ(other.wait_for(milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(alive_, 1);
  EXPECT_EQ(busy.engine->model().name, "fake");
  busy.engine = nullptr;
  Answer second = other.get();
  EXPECT_NE(second.engine, nullptr);
  EXPECT_EQ(alive_, 1);
  second.engine = nullptr;
  EXPECT_NE(later.get().engine, nullptr);
  EXPECT_EQ(sources_["a"].loads, 2);
}

TEST_F(ModelHostTest, IdleModelsAreUnloaded) {
  const auto models = host({"a"}, {}, milliseconds(50));
  Answer answer = get(*models, 0);
  std::this_thread::sleep_for(milliseconds(120));
  EXPECT_TRUE(is_loaded(*models, 0)) << "it has a request";
  const auto ended = ModelHost::Clock::now();
  answer.engine = nullptr;
  ASSERT_TRUE(eventually([&] { return alive_ == 0; }));
  EXPECT_GE(ModelHost::Clock::now() - ended, milliseconds(50));
  EXPECT_NE(get(*models, 0).engine, nullptr) << "the next request loads it again";
}

TEST_F(ModelHostTest, KeepChangesTheIdleTime) {
  const auto models = host({"a", "b"}, {}, milliseconds(40));
  EXPECT_NE(get(*models, 0).engine, nullptr);
  models->keep(0, std::nullopt);
  EXPECT_FALSE(models->expires(0));
  EXPECT_NE(get(*models, 1).engine, nullptr);
  EXPECT_TRUE(models->expires(1));
  ASSERT_TRUE(eventually([&] { return alive_ == 1; }));
  EXPECT_TRUE(is_loaded(*models, 0));
  models->keep(0, milliseconds(0));
  EXPECT_TRUE(eventually([&] { return alive_ == 0; }));
}

TEST_F(ModelHostTest, UnloadWaitsForRequests) {
  const auto models = host({"a"});
  EXPECT_FALSE(models->unload(0));
  Answer answer = get(*models, 0);
  EXPECT_TRUE(models->unload(0));
  EXPECT_FALSE(models->unload(0));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(alive_, 1);
  answer.engine = nullptr;
  EXPECT_TRUE(eventually([&] { return alive_ == 0; }));
}

TEST_F(ModelHostTest, AFailureIsToldAndTheNextRequestTriesAgain) {
  const auto models = host({"a"});
  sources_["a"].before = [] { throw Error(ErrorCode::kCorruptFile, "model.safetensors: too short\ndetails"); };
  for (int i = 1; i <= 2; ++i) {
    const Answer failed = get(*models, 0);
    EXPECT_EQ(failed.engine, nullptr);
    EXPECT_EQ(failed.error.status, 500);
    EXPECT_EQ(failed.error.code, "model_load_failed");
    EXPECT_EQ(failed.error.message, "The model `a` could not be loaded: model.safetensors: too short.");
    EXPECT_EQ(sources_["a"].loads, i);
  }
  sources_["a"].before = [] { throw std::runtime_error("secret at 0xdeadbeef"); };
  EXPECT_EQ(get(*models, 0).error.message, "The model `a` could not be loaded: see the server's log.");
  sources_["a"].before = [] {};
  EXPECT_NE(get(*models, 0).engine, nullptr);
}

TEST_F(ModelHostTest, AModelThatDoesNotFitHasOthersUnloaded) {
  const auto models = host({"a", "b", "c"});
  for (const ModelHost::Id id : {0, 1}) EXPECT_NE(get(*models, id).engine, nullptr);
  sources_["c"].before = [&] {
    if (alive_ > 0) throw Error(ErrorCode::kOutOfMemory, "c does not fit in memory:\n  a table");
  };
  EXPECT_NE(get(*models, 2).engine, nullptr);
  EXPECT_EQ(sources_["c"].loads, 3) << "beside two, beside one, alone";
  EXPECT_EQ(alive_, 1);
  sources_["a"].before = [] { throw Error(ErrorCode::kOutOfMemory, "a does not fit in memory:\n  a table"); };
  const Answer never = get(*models, 0);
  EXPECT_EQ(never.error.status, 503);
  EXPECT_GT(never.error.retry_after_s, 0);
  EXPECT_EQ(never.error.message, "The model `a` could not be loaded: a does not fit in memory.");
}

TEST_F(ModelHostTest, TheQueueHasABound) {
  const auto models = host({"a"}, {.max_waiting = 2});
  sources_["a"].held = true;
  auto first = ask(*models, 0), second = ask(*models, 0);
  try {
    ask(*models, 0);
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 503);
    EXPECT_EQ(error.message, "Too many requests wait for the model `a` to load. Please try again later.");
  }
  sources_["a"].held = false;
  EXPECT_NE(first.get().engine, nullptr);
  EXPECT_NE(second.get().engine, nullptr);
}

TEST_F(ModelHostTest, WaitsEndInTimeAlsoWhileTheModelLoads) {
  const auto models = host({"a"}, {.max_wait = milliseconds(60)});
  sources_["a"].held = true;
  auto own = ask(*models, 0, ModelHost::Clock::now() + milliseconds(20));
  auto hosts = ask(*models, 0, ModelHost::Clock::now() + std::chrono::hours(1));
  const Answer first = own.get();
  EXPECT_EQ(first.error.status, 504);
  EXPECT_EQ(first.error.code, "deadline_exceeded");
  const Answer second = hosts.get();
  EXPECT_EQ(second.error.status, 503);
  EXPECT_EQ(second.error.message, "The model `a` is still loading. Please try again later.");
  sources_["a"].held = false;
  EXPECT_TRUE(eventually([&] { return is_loaded(*models, 0); })) << "for later requests";
}

TEST_F(ModelHostTest, WhoeverCancelsIsNotCalled) {
  const auto models = host({"a", "b"});
  sources_["a"].held = true;
  auto first = ask(*models, 0);
  ASSERT_TRUE(eventually([&] { return loading_ == 1; }));
  std::atomic<bool> called{false};
  const auto ticket = models->acquire(1, {}, [&](auto, const auto&) { called = true; });
  models->cancel(ticket);
  models->cancel(ticket);
  sources_["a"].held = false;
  EXPECT_NE(first.get().engine, nullptr);
  EXPECT_FALSE(is_loaded(*models, 1));
  EXPECT_EQ(sources_["b"].loads, 0) << "nobody waits for it any more";
  EXPECT_FALSE(called);
}

TEST_F(ModelHostTest, StopEndsWaitsAndTheLoad) {
  const auto models = host({"a", "b"});
  EXPECT_NE(get(*models, 1).engine, nullptr);
  sources_["a"].held = true;
  auto waiting = ask(*models, 0);
  ASSERT_TRUE(eventually([&] { return loading_ == 1; }));
  models->stop();
  EXPECT_EQ(waiting.get().error.message, "The server is shutting down.");
  models->end();
  EXPECT_EQ(loading_, 0);
  EXPECT_THROW(ask(*models, 0), ApiError);
  EXPECT_NE(get(*models, 1).engine, nullptr) << "what is loaded stays";
}

TEST_F(ModelHostTest, AnEngineOutlivesItsHost) {
  auto models = host({"a"});
  Answer answer = get(*models, 0);
  models = nullptr;
  EXPECT_EQ(answer.engine->model().name, "fake");
  EXPECT_EQ(alive_, 1);
  answer.engine = nullptr;
  EXPECT_TRUE(eventually([&] { return alive_ == 0; }));
}

TEST_F(ModelHostTest, ModelsOfTheStartShareTheMemory) {
  const auto models = host({"a", "b", "c", "d"}, {.max_loaded = 3});
  models->load_at_start();
  EXPECT_EQ(models->loaded(), 3u);
  EXPECT_EQ(sources_["d"].loads, 0);
  EXPECT_DOUBLE_EQ(sources_["a"].share, 1.0 / 3);
  EXPECT_DOUBLE_EQ(sources_["b"].share, 1.0 / 2);
  EXPECT_DOUBLE_EQ(sources_["c"].share, 1);
  EXPECT_EQ(most_loading_, 1) << "one after the other";
}

TEST_F(ModelHostTest, AFailureAtTheStartUnloadsNothing) {
  const auto models = host({"a", "b"});
  sources_["b"].before = [] { throw Error(ErrorCode::kOutOfMemory, "does not fit"); };
  try {
    models->load_at_start();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kOutOfMemory);
    EXPECT_STREQ(error.what(), "model 'b': does not fit");
  }
  EXPECT_TRUE(is_loaded(*models, 0));
  EXPECT_EQ(sources_["b"].loads, 1);
}

// Threads ask three models in turns, of which two fit: every request gets the engine of its model.
TEST_F(ModelHostTest, NoRequestIsLost) {
  const auto models = host({"a", "b", "c"}, {.max_loaded = 2}, milliseconds(1));
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const Answer answer = get(*models, static_cast<ModelHost::Id>(t + i) % 3);
        if (answer.engine != nullptr && answer.engine->model().name == "fake") ++answered;
        EXPECT_LE(alive_, 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 300);
  EXPECT_EQ(most_loading_, 1);
  EXPECT_TRUE(eventually([&] { return alive_ == 0; }));
}

}  // namespace
}  // namespace sluice::server::model_host_test
