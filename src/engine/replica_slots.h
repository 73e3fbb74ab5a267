// The engines of the replicas (--data-parallel-size). One that fails gets no more requests, and is loaded anew while
// the others go on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cache/replica_choice.h"
#include "sluice/engine.h"

namespace sluice {

// How a replica that failed is loaded anew.
struct ReplicaRestart {
  // Loads the replica with a context of exactly `max_model_len` tokens; null: replicas are not loaded anew.
  std::function<std::unique_ptr<Engine>(int replica, int max_model_len, const std::function<void(double)>& progress)>
      load{};
  // The pause before the first attempt. It doubles with every further one, up to `longest`, and is the first one again
  // once the replica has worked for `longest`.
  std::chrono::milliseconds pause{1000}, longest{60'000};
};

// Thread-safe. An id of a request says which engine of its replica it belongs to, so that a late cancel() cannot hit a
// request of the next engine.
class ReplicaSlots {
 public:
  // `failed` is called on a thread of the slots when a replica has failed.
  ReplicaSlots(std::vector<std::unique_ptr<Engine>> engines, ReplicaRestart restart, std::function<void(int)> failed);
  ~ReplicaSlots();
  ReplicaSlots(const ReplicaSlots&) = delete;
  ReplicaSlots& operator=(const ReplicaSlots&) = delete;

  size_t size() const { return slots_.size(); }
  // The engine of a replica, which lives as long as the pointer; null while it is loaded anew.
  std::shared_ptr<Engine> engine(size_t replica) const;
  // An engine that is in memory, for texts. There always is one.
  std::shared_ptr<Engine> any() const;
  // The replicas whose engines have not failed.
  ReplicaMask working() const;
  ReplicaMask all() const { return size() == kMaxReplicas ? ~ReplicaMask{0} : (ReplicaMask{1} << size()) - 1; }

  // Calls submit(engine), and returns the request's id among all replicas. Throws Error(kOverloaded) without an engine.
  RequestId submit(size_t replica, const std::function<RequestId(Engine&)>& submit);
  void cancel(RequestId id);

  // Runs change(the engines that work), which loads or unloads adapters. A new engine gets the adapters of the others.
  void with_adapters(const std::function<void(const std::vector<std::shared_ptr<Engine>>&)>& change);
  std::vector<AdapterInfo> adapters() const;  // of any engine that works
  void stop_accepting();

  // The health of all: failed if every replica has failed, as bad as the worst of the others, and `failure` says which
  // replicas are down.
  Health health() const;
  // Families for which each replica has a sample: "sluice:replica_up" and "sluice:replica_restarts".
  std::vector<MetricFamily> metrics() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::shared_ptr<Engine> engine;  // null while it is loaded anew
    uint64_t base = 0;               // what is added to the engine's ids
    uint64_t last = 0;               // the largest id of this replica, with the base
    std::string failure{};           // why it is down; empty: it works, as far as the watch knows
    int restarts = 0;
    std::chrono::milliseconds pause{};
    Clock::time_point up_since{}, next_attempt{};
  };
  Health health_of(size_t replica) const;
  std::vector<std::shared_ptr<Engine>> working_engines() const;
  void watch();
  void look_at(size_t replica);
  void try_to_load(size_t replica);
  void install(size_t replica, std::shared_ptr<Engine> engine);
  void take_over_adapters(Engine& engine) const;
  bool ending() const;

  const ReplicaRestart restart_;
  const std::function<void(int)> failed_;
  int max_model_len_ = 0;     // the shortest one of all replicas
  mutable std::mutex mutex_;  // held for a moment only
  std::vector<Slot> slots_;
  bool draining_ = false, closing_ = false;
  std::mutex adapters_mutex_;  // held while adapters are loaded, or taken over by a new engine
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace sluice
