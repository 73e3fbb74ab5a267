// Models that come and go: loaded by the first request that needs them, unloaded when they are idle or others need the
// room. Names are the business of Models (models.h), which has a host if its models come and go.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_group.h"
#include "server/errors.h"
#include "sluice/engine.h"
#include "sluice/metrics.h"

namespace sluice::server {

// How a model is loaded, and what is known of it before.
struct ModelSource {
  std::string name;  // its first name, for errors, metrics and the log
  ModelInfo info;    // what a load will make of it
  // Loads the model with this EngineOptions::kv_cache_share. What `progress` throws ends the load. Throws Error.
  std::function<std::unique_ptr<Engine>(double cache_share, const std::function<void(double)>& progress)> load;
  bool at_start = true;               // load_at_start() loads it
  std::chrono::milliseconds idle{0};  // it is unloaded after this time without a request; 0: never
};

struct ModelHostOptions {
  size_t max_loaded = 0;                        // models in memory at a time; 0: all
  bool grows = false;                           // models may be added: the memory is divided for max_loaded
  size_t max_waiting = 1024;                    // requests that wait for one model; further ones are refused
  std::chrono::milliseconds max_wait{300'000};  // how long a request waits for its model
};

// Thread-safe. A thread of the host loads and unloads one model after the other; no caller waits for it, except in
// load_at_start(). Whoever holds an engine that the host gave out keeps that model loaded.
class ModelHost {
 public:
  using Id = size_t;  // index into the list of sources
  using Clock = std::chrono::steady_clock;
  using Ticket = uint64_t;
  // Gets the engine, or null and the reason. Must not block and must not throw.
  using Done = std::function<void(std::shared_ptr<Engine> engine, const ApiError& error)>;

  ModelHost(std::vector<ModelSource> sources, ModelHostOptions options);
  ~ModelHost();  // ends a load in progress and unloads all models

  // Adds a model that is loaded when it is first needed.
  Id add(ModelSource source);

  // Loads the models of the start one after the other, as many as max_loaded allows, and unloads none for them. Throws
  // the Error of the first that cannot be loaded.
  void load_at_start();

  // Calls `done` once: at once, or on a thread of the host when the model is loaded or cannot be. Requests wait until
  // `deadline`, but no longer than max_wait. Throws ApiError, and then does not call `done`, if too many wait already.
  Ticket acquire(Id model, std::optional<Clock::time_point> deadline, Done done);
  // The caller waits no more. `done` may be in progress, else it is not called.
  void cancel(Ticket ticket);
  // The engine if the model is loaded, else null.
  std::shared_ptr<Engine> try_acquire(Id model);
  // The same, but it does not count as a use of the model.
  std::shared_ptr<Engine> look(Id model) const;

  // Unloads the model when the requests that run have ended. False: it is not loaded.
  bool unload(Id model);
  // For a loaded model: how long it stays without a request until it is unloaded. 0: as `unload`; none: for ever.
  void keep(Id model, std::optional<std::chrono::milliseconds> idle);

  // Loads and unloads no more. Requests that wait get an error.
  void stop();
  void end() { threads_.join(); }  // the same, and calls nobody back any more

  size_t size() const;
  std::string name(Id model) const;
  std::shared_ptr<const ModelInfo> info(Id model) const;  // of the last load, or else of the source
  // When the model will be unloaded if no request comes; none: never, or it is not loaded.
  std::optional<Clock::time_point> expires(Id model) const;
  size_t loaded() const;
  std::vector<MetricFamily> metrics() const;

 private:
  enum class State { kUnloaded, kLoading, kLoaded, kUnloading };
  struct Waiter {
    Ticket ticket;
    Done done;
    Clock::time_point until;
    bool own_deadline;  // `until` is the request's, not the host's
  };
  struct Slot {
    Id id = 0;
    ModelSource source{};
    State state = State::kUnloaded;
    std::shared_ptr<Engine> engine{};  // while the model is in memory
    std::shared_ptr<const ModelInfo> info{};
    int users = 0;  // holders of the engine
    Clock::time_point last_used{};
    std::optional<std::chrono::milliseconds> idle{};
    std::vector<Waiter> waiters{};
    Clock::time_point wanted_since{};  // of the first waiter
    bool evicts = true;                // others may be unloaded for it
    // How many others may be loaded beside it; less after a load that ran out of memory.
    size_t most_others = std::numeric_limits<size_t>::max();
    uint64_t loads = 0, failures = 0;
    double load_seconds = 0;  // of the last load
    std::optional<Error> failure{};
  };
  // What a load made.
  struct Loaded {
    std::shared_ptr<Engine> engine{};
    std::shared_ptr<const ModelInfo> info{};
    std::optional<Error> failure{};
  };
  struct Shared;
  using Lock = std::unique_lock<std::mutex>;

  Ticket enqueue(Id model, Clock::time_point until, bool own_deadline, Done done);  // see acquire
  std::shared_ptr<Engine> hold(Slot& slot, bool is_use, Lock& lock) const;
  void work();   // the thread that loads and unloads
  void watch();  // the thread that ends the wait of requests whose time is over
  // The following are called with the lock, and release it while they load, unload or call back.
  bool step(Lock& lock);  // false: there is nothing to do
  void unload(Slot& slot, Lock& lock);
  void load(Slot& slot, size_t others, Lock& lock);
  void finish_load(Slot& slot, Lock& lock);
  void fail_load(Slot& slot, const Error& error, size_t others, Lock& lock);
  Loaded try_load(const ModelSource& source, double cache_share) const;
  Slot* next_to_load();
  Slot* next_to_unload();
  Slot* victim();
  size_t others_of(const Slot& slot) const;  // other models in memory
  size_t limit() const;

  const ModelHostOptions options_;
  const std::shared_ptr<Shared> shared_;
  Ticket last_ticket_ = 0;
  std::atomic<bool> stopping_{false};
  ThreadGroup threads_{[this] { stop(); }};
};

}  // namespace sluice::server
