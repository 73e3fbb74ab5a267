// The Nth allocation, or the Nth system call, fails in whatever thread: while a model loads, and while a server
// answers. The result is an error or success, nothing is lost, and the next request is served, unless the engine
// reported that it failed. A sample of all N is tried, at equal distances. SLUICE_EVERY_FAILURE=1 tries all.
// SLUICE_ALLOCATION=N and SLUICE_SYSTEM_CALL=N try one.
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "server/http_client.h"
#include "server/server.h"
#include "simulation/child.h"
#include "simulation/machine/calls.h"
#include "simulation/machine/machine.h"
#include "simulation/machine/memory.h"
#include "simulation/model.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::simulation {
namespace {

constexpr int64_t kMostSamples = 250;

Machine& machine() { return Machine::get(); }

// What fails, and how one of it is chosen.
struct Resource {
  const char* variable;  // of the environment; chooses one N
  const char* name;
  uint64_t (*count)();  // so far
  void (*refuse)(uint64_t);
};
constexpr Resource kAllocations{"SLUICE_ALLOCATION", "allocations", [] { return memory_use().allocations; },
                                refuse_allocation};
constexpr Resource kCalls{"SLUICE_SYSTEM_CALL", "system calls", [] { return call_use().calls; }, refuse_call};

// JSON values that are built from lists leak what they have built when an allocation in them fails. Nothing outside the
// library can release it.
constexpr int64_t kMostLost = 4096;
// Asio's reactor does not close its two descriptors when an allocation in its constructor fails.
constexpr int kMostDescriptorsLost = 2;

bool warm = false;  // static variables have their memory

struct Use {
  MemoryUse memory = memory_use();
  int descriptors = open_descriptors();
};

void expect_nothing_lost(const Use& before) {
  if (!warm) return;
  const Use after;
  const bool no_memory = after.memory.refused > before.memory.refused;
  const int64_t bytes = after.memory.bytes - before.memory.bytes;
  if (bytes > (no_memory ? kMostLost : 0)) {
    machine().fail(fmt::format("{} blocks of {} bytes are lost; numbers of allocations: {}",
                               after.memory.blocks - before.memory.blocks, bytes,
                               fmt::join(blocks_since(before.memory.allocations), ", ")));
  }
  const int descriptors = after.descriptors - before.descriptors;
  if (descriptors > (no_memory ? kMostDescriptorsLost : 0)) {
    machine().fail(fmt::format("{} descriptors are lost", descriptors));
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
void for_each_n(const Resource& resource, const std::function<int64_t()>& counted,
                const std::function<bool(uint64_t)>& run) {
  if (const char* one = std::getenv(resource.variable)) {
    EXPECT_TRUE(run(std::strtoull(one, nullptr, 10)));
    return;
  }
  const int64_t count = counted();
  ASSERT_GE(count, 0);
  const bool all = std::getenv("SLUICE_EVERY_FAILURE") != nullptr;
  const int64_t distance = all ? 1 : std::max<int64_t>(1, count / kMostSamples);
  fmt::print("{} {}, one of {} is tried\n", count, resource.name, distance);
  int failures = 0;
  for (int64_t n = 1; n <= count && failures < 3; n += distance) {
    if (run(static_cast<uint64_t>(n))) continue;
    ++failures;
    ADD_FAILURE() << resource.variable << "=" << n;
  }
}

class Failures : public ::testing::Test {
 protected:
  Failures() {
    log::set_level(log::Level::kOff);
    warm = false;
    write_model_files(folder_.path().string(), 256);
  }

  const testing::TempFolder folder_;
};

// Loading

uint64_t load(const EngineOptions& options, const Resource& resource, uint64_t refused) {
  machine().start(1, {});
  const Use before;
  const uint64_t begin = resource.count();
  std::thread([&] {
    machine().current().faulty = true;
    resource.refuse(refused == 0 ? 0 : begin + refused);
    try {
      Engine::load(options);
    } catch (const std::bad_alloc&) {
    } catch (const Error& e) {
      if (refused == 0) machine().fail(e.what());
    }
    resource.refuse(0);
  }).join();
  const uint64_t count = resource.count() - begin;
  expect_nothing_lost(before);
  return count;
}

void load_with_failures(
    const EngineOptions& options, const std::function<void()>& prepare = [] {}) {
  prepare();
  load(options, kAllocations, 0);
  machine().stop();
  warm = true;
  for (const Resource& resource : {kAllocations, kCalls}) {
    const auto run = [&](uint64_t n) {
      prepare();
      return run_alone([&] { return load(options, resource, n); });
    };
    for_each_n(
        resource, [&] { return run(0); }, [&](uint64_t n) { return run(n) >= 0; });
  }
}

TEST_F(Failures, LoadingTheBundledModel) {
  EngineOptions options;
  options.model = "models/minnow-6m";
  options.backend = "reference";
  options.threads = 1;
  options.kv_cache_memory_bytes = 4 << 20;
  load_with_failures(options);
}

// Each run packs the weights and writes them to a new folder.
TEST_F(Failures, LoadingWithPackedWeights) {
  const testing::TempFolder packed;
  EngineOptions options;
  options.model = folder_.path().string();
  options.threads = 1;
  options.kv_cache_memory_bytes = 1 << 20;
  options.packed_cache = packed / "weights";
  load_with_failures(options, [&] { std::filesystem::remove_all(options.packed_cache); });
}

TEST_F(Failures, LoadingTheSimulatedModel) {
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

// When something fails.
enum class Phase { kStart, kAnswers, kStop };

// A server over the simulated model, and a client that asks it everything. `refused`: what fails, of all that is asked
// for in the phase.
class Serving {
 public:
  Serving(std::string model, Phase phase) : phase_(phase) {
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

  // Returns how many there are.
  uint64_t run(const Resource& resource, uint64_t refused) {
    machine().start(1, {.event_cost = 1000});
    const Use before;
    uint64_t count = 0;
    std::thread([&] { count = serve(resource, refused); }).join();
    expect_nothing_lost(before);
    return count;
  }

 private:
  uint64_t serve(const Resource& resource, uint64_t refused) {
    const auto engine = Engine::load(engine_options_);
    uint64_t count = 0;
    // Runs one phase's work, with the failure if this is the phase.
    const auto in_phase = [&](Phase phase, const std::function<void()>& work) {
      if (phase != phase_) return work();
      const uint64_t begin = resource.count();
      resource.refuse(refused == 0 ? 0 : begin + refused);
      work();
      count = resource.count() - begin;
      resource.refuse(0);
    };

    std::unique_ptr<Server> server;
    std::optional<std::thread> thread;
    bool served = false;
    in_phase(Phase::kStart, [&] {
      as_program([&] {
        server = std::make_unique<Server>(*engine, server_options_);
        thread.emplace([&] {
          as_program([&] { server->run(); });
          served = true;
        });
      });
      if (thread) std::this_thread::sleep_for(std::chrono::seconds(1));
    });
    if (!thread) return count;
    if (!served) {
      port_ = server->port();
      ask_all();
      in_phase(Phase::kAnswers, [&] { ask_all(); });
      if (engine->health().failed) {
        std::this_thread::sleep_for(std::chrono::seconds(10));
        if (!served) machine().fail("the engine failed, but the server does not end");
      } else {
        ask_again();
        in_phase(Phase::kStop, [&] {
          as_program([&] { server->shutdown(); });
          std::this_thread::sleep_for(std::chrono::seconds(10));
        });
        if (!served) machine().fail("the server does not end");
      }
    } else if (phase_ != Phase::kStart || refused == 0) {
      machine().fail("the server ended by itself");
    }
    thread->join();
    server.reset();
    return count;
  }

  // Something may fail here. What is thrown then ends the work.
  static void as_program(const std::function<void()>& work) {
    machine().current().faulty = true;
    try {
      work();
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {
    } catch (const std::system_error&) {
    }
    machine().current().faulty = false;
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

  const Phase phase_;
  EngineOptions engine_options_;
  ServerOptions server_options_;
  int port_ = 0;
};

void serve_with_failures(const std::string& model, Phase phase) {
  Serving serving(model, phase);
  serving.run(kAllocations, 0);
  machine().stop();
  warm = true;
  for (const Resource& resource : {kAllocations, kCalls}) {
    for_each_n(
        resource, [&] { return run_alone([&] { return serving.run(resource, 0); }); },
        [&](uint64_t n) { return run_alone([&] { return serving.run(resource, n); }) >= 0; });
  }
}

TEST_F(Failures, StartOfTheServer) { serve_with_failures(folder_.path().string(), Phase::kStart); }
TEST_F(Failures, Answers) { serve_with_failures(folder_.path().string(), Phase::kAnswers); }
TEST_F(Failures, EndOfTheServer) { serve_with_failures(folder_.path().string(), Phase::kStop); }

}  // namespace
}  // namespace sluice::simulation
