// The Nth allocation fails, in whatever thread: while a model loads, and while a server answers. The result is an error
// or success, nothing is lost, and the next request is served, unless the engine reported that it failed. A sample of
// all N is tried, from a seed that is printed. SLUICE_EVERY_ALLOCATION=1 tries all; SLUICE_ALLOCATION=N tries one.
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "base/log.h"
#include "server/http_client.h"
#include "server/server.h"
#include "simulation/child.h"
#include "simulation/machine/machine.h"
#include "simulation/machine/memory.h"
#include "simulation/model.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::simulation {
namespace {

constexpr int kMostSamples = 250;

Machine& machine() { return Machine::get(); }

// JSON values that are built from lists leak what they have built when an allocation in them fails. Nothing outside the
// library can release it.
constexpr int64_t kMostLost = 4096;

bool warm = false;  // static variables have their memory

void expect_nothing_lost(const MemoryUse& before) {
  if (!warm) return;
  const MemoryUse after = memory_use();
  const int64_t lost = after.bytes - before.bytes;
  if (lost > (after.refused > before.refused ? kMostLost : 0)) {
    machine().fail(fmt::format("{} blocks of {} bytes are lost; numbers of allocations: {}",
                               after.blocks - before.blocks, lost, fmt::join(blocks_since(before.allocations), ", ")));
  }
}

// Runs the scenario in a process of its own. Returns the number that it returns; -1: it failed.
int64_t run_alone(const std::function<uint64_t()>& scenario) {
  const auto result = in_child<uint64_t>("simulation", [&] {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);  // servers announce themselves
    return scenario();
  });
  return result ? static_cast<int64_t>(*result) : -1;
}

// Calls run(n) for all n of 1 .. count, or for a sample of them.
void for_each_n(const std::function<int64_t()>& counted, const std::function<bool(uint64_t)>& run) {
  if (const char* one = std::getenv("SLUICE_ALLOCATION")) {
    EXPECT_TRUE(run(std::strtoull(one, nullptr, 10)));
    return;
  }
  const int64_t count = counted();
  ASSERT_GT(count, 0);
  const bool all = std::getenv("SLUICE_EVERY_ALLOCATION") != nullptr;
  const auto seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  std::mt19937_64 random(seed);
  fmt::print("{} allocations, {}\n", count, all ? "all of them" : fmt::format("seed {}", seed));
  int failures = 0;
  for (int64_t i = 1; i <= (all ? count : std::min<int64_t>(count, kMostSamples)) && failures < 3; ++i) {
    const uint64_t n = all ? static_cast<uint64_t>(i) : 1 + random() % static_cast<uint64_t>(count);
    if (run(n)) continue;
    ++failures;
    ADD_FAILURE() << "SLUICE_ALLOCATION=" << n;
  }
}

class Allocations : public ::testing::Test {
 protected:
  Allocations() {
    log::set_level(log::Level::kOff);
    warm = false;
    write_model_files(folder_.path().string(), 256);
  }

  // On a thread of the machine: the program's first one keeps its thread-local variables.
  static void on_thread(const std::function<void()>& body) { std::thread(body).join(); }

  const testing::TempFolder folder_;
};

// Loading

uint64_t load(const EngineOptions& options, uint64_t refused) {
  machine().start(1, {});
  machine().current().faulty = true;
  const MemoryUse before = memory_use();
  refuse_allocation(refused == 0 ? 0 : before.allocations + refused);
  std::thread([&] {
    try {
      Engine::load(options);
    } catch (const std::bad_alloc&) {
    } catch (const Error& e) {
      if (refused == 0) machine().fail(e.what());
    }
  }).join();
  refuse_allocation(0);
  expect_nothing_lost(before);
  return memory_use().allocations - before.allocations;
}

void load_with_failures(const EngineOptions& options) {
  load(options, 0);
  machine().stop();
  warm = true;
  for_each_n([&] { return run_alone([&] { return load(options, 0); }); },
             [&](uint64_t n) { return run_alone([&] { return load(options, n); }) >= 0; });
}

TEST_F(Allocations, LoadingTheBundledModel) {
  EngineOptions options;
  options.model = "models/minnow-6m";
  options.backend = "reference";
  options.threads = 1;
  options.kv_cache_memory_bytes = 4 << 20;
  load_with_failures(options);
}

TEST_F(Allocations, LoadingTheSimulatedModel) {
  EngineOptions options;
  options.model = folder_.path().string();
  options.backend = "reference";
  options.threads = 1;
  options.kv_cache_memory_bytes = 1 << 20;
  load_with_failures(options);
}

// Serving

struct Exchange {
  std::string request;
  bool head = false;
};

std::vector<std::string> exchanges() {
  const char* schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  return {
      post_text("/v1/completions", R"({"prompt":"abc","max_tokens":5,"n":2,"stop":["zz","qq"],"logprobs":1})"),
      post_text("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":6,"stream":true})"),
      post_text("/tokenize", R"({"prompt":"some text"})"),
      post_text("/v1/embeddings", R"({"input":"some text"})"),
      post_text("/v1/chat/completions",
                fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],"max_tokens":8,"response_format":)"
                            R"({{"type":"json_schema","json_schema":{{"name":"a","schema":{}}}}}}})",
                            schema)),
      get_text("/metrics"),
      post_text("/v1/completions", R"({"prompt":)"),
  };
}

// A server over the simulated model, and a client that asks it everything. `refused`: of the allocations after the
// start. Returns how many there are.
class Serving {
 public:
  explicit Serving(std::string model) {
    engine_options_.model = std::move(model);
    engine_options_.backend = "reference";
    engine_options_.threads = 1;
    engine_options_.max_num_seqs = 8;
    engine_options_.kv_cache_memory_bytes = 1 << 20;
    server_options_.port = 0;
    server_options_.log_level = "off";
    server_options_.worker_threads = 1;
    server_options_.served_model_name = {"simulated"};
  }

  uint64_t run(uint64_t refused) {
    machine().start(1, {.event_cost = 1000});
    const MemoryUse before = memory_use();
    uint64_t count = 0;
    std::thread([&] { count = serve(refused); }).join();
    expect_nothing_lost(before);
    return count;
  }

 private:
  uint64_t serve(uint64_t refused) {
    machine().current().faulty = true;
    const auto engine = Engine::load(engine_options_);
    auto server = std::make_unique<Server>(*engine, server_options_);
    bool served = false;
    std::thread thread([&] {
      server->run();
      served = true;
    });
    machine().current().faulty = false;
    port_ = server->port();
    ask_all();
    const uint64_t begin = memory_use().allocations;
    refuse_allocation(refused == 0 ? 0 : begin + refused);
    ask_all();
    const uint64_t count = memory_use().allocations - begin;
    refuse_allocation(0);
    if (engine->health().failed) {
      std::this_thread::sleep_for(std::chrono::seconds(10));
      if (!served) machine().fail("the engine failed, but the server does not end");
    } else {
      ask_again();
      server->shutdown();
    }
    thread.join();
    server.reset();
    return count;
  }

  void ask_all() {
    for (const std::string& request : exchanges()) {
      TestClient client(port_);
      if (!client.connected()) return;
      client.send(request);
      const int status = client.read_response(false, 60'000).status;
      const bool known = status == 0 || status == 200 || status == 400 || status == 500 || status == 503;
      if (!known) machine().fail(fmt::format("status {}", status));
    }
  }

  // The next request is served. A connection that was cut may take a moment.
  void ask_again() {
    TestClient client(port_);
    client.send(exchanges()[0]);
    const TestResponse response = client.read_response(false, 60'000);
    if (response.status != 200) machine().fail(fmt::format("the next request: {} {}", response.status, response.body));
  }

  EngineOptions engine_options_;
  ServerOptions server_options_;
  int port_ = 0;
};

TEST_F(Allocations, Serving) {
  Serving serving(folder_.path().string());
  serving.run(0);
  machine().stop();
  warm = true;
  for_each_n([&] { return run_alone([&] { return serving.run(0); }); },
             [&](uint64_t n) { return run_alone([&] { return serving.run(n); }) >= 0; });
}

}  // namespace
}  // namespace sluice::simulation
