// Starts the server and its clients, watches them, and checks that nothing is left in the end.
#include "simulation/simulation.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "base/log.h"
#include "server/server.h"
#include "simulation/child.h"
#include "simulation/machine/memory.h"
#include "simulation/model.h"
#include "support/temp_folder.h"

namespace sluice::simulation {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

Machine& machine() { return Machine::get(); }

const std::string& model_folder() {
  static const testing::TempFolder folder;
  static const std::string path = [] {
    const std::string name = folder / "simulated";  // answers depend on the folder's name
    std::filesystem::create_directory(name);
    write_model_files(name, 4096);
    return name;
  }();
  return path;
}

// Bytes that the server may hold for its clients beyond what it needs anyway.
int64_t memory_bound(const Plan& plan) {
  constexpr int64_t kBase = 1 << 20, kPerConnection = 256 << 10;
  constexpr int64_t kPerBodyByte = 3;  // a body grows in a string of up to twice its size
  return kBase + plan.server.max_total_body_bytes * kPerBodyByte + plan.server.max_connections * kPerConnection;
}

class Run {
 public:
  Run(const Plan& plan, uint64_t events) {
    world_.plan = plan;
    world_.last_event = events;
    world_.plan.engine.model = model_folder();
    world_.plan.server.served_model_name = {"simulated"};
  }

  Counts go() {
    start();
    std::vector<std::thread> clients = start_clients();
    std::optional<std::thread> stopper;
    if (world_.plan.shuts_down_early) stopper.emplace([this] { stop_early(); });
    for (std::thread& client : clients) client.join();
    if (stopper) stopper->join();
    if (!world_.stopping) check_quiet();
    stop();
    return world_.counts;
  }

 private:
  void start() {
    set_pace(world_.plan.pace);
    machine().current().faulty = false;
    engine_ = Engine::load(world_.plan.engine);
    machine().current().faulty = true;  // and so are the server's threads
    server_ = std::make_unique<Server>(*engine_, world_.plan.server);
    world_.port = server_->port();
    serving_ = std::thread([this] {
      server_->run();
      served_ = true;
    });
    machine().current().faulty = false;
    expect_metric(world_, "http_connections", 1, kSecond);  // it has begun: run() may throw before
    idle_bytes_ = memory_use().faulty_bytes;
    machine().weather() = world_.plan.weather;
    machine().watch([this] { watch(); });
  }

  template <class F>
  void add(std::vector<std::thread>& to, int count, F client) {
    for (int i = 0; i < count; ++i) to.emplace_back([this, client, i] { client(world_, i); });
  }

  std::vector<std::thread> start_clients() {
    std::vector<std::thread> clients;
    const Plan& plan = world_.plan;
    add(clients, plan.honest, honest_client);
    add(clients, plan.watchers, watching_client);
    add(clients, plan.leavers, leaving_client);
    add(clients, plan.slow, slow_client);
    add(clients, plan.garbage, garbage_client);
    add(clients, plan.uploads, uploading_client);
    add(clients, plan.bombs, bomb_client);
    add(clients, plan.drips, dripping_client);
    if (plan.crowd > 0) clients.emplace_back([this] { crowding_clients(world_); });
    if (plan.idle > 0) clients.emplace_back([this] { idle_clients(world_); });
    return clients;
  }

  // After every event.
  void watch() {
    const Health health = engine_->health();
    const int64_t in_engine = health.running + health.waiting, expected = world_.ledger.sequences();
    if (in_engine > expected) {
      machine().fail(fmt::format("the engine has {} sequences, but clients wait for {}", in_engine, expected));
    }
    if (health.failed) machine().fail("the engine failed");
    const int64_t bytes = memory_use().faulty_bytes - idle_bytes_, bound = memory_bound(world_.plan);
    if (bytes > bound) machine().fail(fmt::format("{} bytes of memory, expected at most {}", bytes, bound));
  }

  void stop_early() {
    while (machine().events() < world_.last_event / 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    end_server();
  }

  void end_server() {
    world_.stopping = true;
    server_->shutdown();
    const int64_t within =
        (world_.plan.server.shutdown_timeout_ms / 1000 + 4) * kSecond + 40 * world_.plan.weather.lateness;
    const int64_t end = machine().now() + within;
    while (!served_) {
      if (machine().now() > end) machine().fail("the server does not end");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    serving_.join();
    server_.reset();  // clients that still wait to be accepted see the end
  }

  // All clients have left: nothing of them may stay.
  void check_quiet() {
    Weather calm;
    calm.preempt = world_.plan.weather.preempt;
    machine().weather() = calm;
    const int64_t begin = machine().now();
    for (Health health = engine_->health(); health.running + health.waiting > 0; health = engine_->health()) {
      if (machine().now() > begin + world_.plan.notice()) machine().fail("the engine works for nobody");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const int64_t patience = (world_.plan.server.keep_alive_timeout_ms / 1000 + 5) * kSecond;
    expect_metric(world_, "http_connections", 1, patience);
    expect_metric(world_, "http_request_body_bytes", 0, kSecond);
    expect_metric(world_, "vllm:num_requests_running", 0, kSecond);
    expect_metric(world_, "vllm:num_requests_waiting", 0, kSecond);
    expect_metric(world_, "vllm:kv_cache_usage_perc", 0, kSecond);
    ask_once(world_);
  }

  void stop() {
    machine().weather().no_memory = machine().weather().no_call = 0;
    if (server_ != nullptr) end_server();
    machine().watch({});
    engine_.reset();
  }

  World world_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
  std::thread serving_;
  bool served_ = false;
  int64_t idle_bytes_ = 0;
};

// On a thread of its own, as the program's first thread keeps its thread-local variables.
Counts run_plan(const Plan& plan, uint64_t events) {
  Counts counts;
  std::thread([&] { counts = Run(plan, events).go(); }).join();
  return counts;
}

// Servers announce themselves on stdout, which is nothing while this lives.
class Silence {
 public:
  Silence() {
    std::fflush(stdout);
    const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(nothing, STDOUT_FILENO);
    ::close(nothing);
  }
  ~Silence() {
    std::fflush(stdout);
    ::dup2(saved_, STDOUT_FILENO);
    ::close(saved_);
  }

 private:
  const int saved_ = ::dup(STDOUT_FILENO);
};

// A run of all clients in fine weather, so that static variables have their memory before runs are compared.
void warm_up() {
  static bool warm = false;
  if (std::exchange(warm, true)) return;
  log::set_level(log::Level::kOff);
  constexpr uint64_t kSeed = 0, kEvents = 20'000;
  Plan plan = make_plan(kSeed);
  plan.weather = {};
  plan.honest = plan.watchers = plan.leavers = plan.slow = plan.garbage = plan.bombs = 2;
  plan.uploads = plan.idle = plan.crowd = 0;
  plan.shuts_down_early = false;
  machine().start(kSeed, {});
  run_plan(plan, kEvents);
  machine().stop();
}

Result run_here(uint64_t seed, uint64_t events) {
  Result result;
  machine().start(seed, {});
  const MemoryUse before = memory_use();
  result.counts = run_plan(make_plan(seed), events);
  const MemoryUse after = memory_use();
  // The JSON library's constructors leak what they have built when an allocation in them fails.
  if (after.blocks != before.blocks && after.refused == before.refused) {
    machine().fail(fmt::format("{} blocks of {} bytes of memory are lost; numbers of allocations: {}",
                               after.blocks - before.blocks, after.bytes - before.bytes,
                               fmt::join(blocks_since(before.allocations), ", ")));
  }
  result.passed = true;
  result.events = machine().events();
  result.trace = machine().trace();
  result.seconds = static_cast<double>(machine().now()) * 1e-9;
  return result;
}

}  // namespace

void write_model() { model_folder(); }

Result run_seed(uint64_t seed, uint64_t events) {
  write_model();
  ::signal(SIGHUP, SIG_DFL);  // the server looks whether it is ignored
  const Silence silence;
  warm_up();
  return in_child<Result>(fmt::format("simulation: seed {}", seed), [&] { return run_here(seed, events); })
      .value_or(Result{});
}

}  // namespace sluice::simulation
