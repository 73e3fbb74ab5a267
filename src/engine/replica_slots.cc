// A thread looks at the replicas and replaces those that failed, one at a time. An id of a request is that of its
// engine plus the slot's base, times the number of replicas, plus the replica.
#include "engine/replica_slots.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100}, kInUsePoll{5};

std::string failure_of(const Health& health) {
  return health.failure.empty() ? "its engine has stopped" : health.failure;
}

}  // namespace

ReplicaSlots::ReplicaSlots(std::vector<std::unique_ptr<Engine>> engines, ReplicaRestart restart,
                           std::function<void(int)> failed)
    : restart_(std::move(restart)), failed_(std::move(failed)) {
  for (std::unique_ptr<Engine>& engine : engines) {
    Slot& slot = slots_.emplace_back();
    slot.engine = std::move(engine);
    slot.pause = restart_.pause;
    slot.up_since = Clock::now();
    const int context = slot.engine->model().max_model_len;
    max_model_len_ = slots_.size() == 1 ? context : std::min(max_model_len_, context);
  }
  thread_ = std::thread([this] { watch(); });
}

ReplicaSlots::~ReplicaSlots() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::shared_ptr<Engine> ReplicaSlots::engine(size_t replica) const {
  const std::scoped_lock lock(mutex_);
  return slots_[replica].engine;
}

std::shared_ptr<Engine> ReplicaSlots::any() const {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find_if(slots_, [](const Slot& slot) { return slot.engine != nullptr; });
  CHECK(found != slots_.end(), "none of {} replicas has an engine", slots_.size());
  return found->engine;
}

ReplicaMask ReplicaSlots::working() const {
  ReplicaMask mask = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!health_of(i).failed) mask |= ReplicaMask{1} << i;
  }
  return mask;
}

RequestId ReplicaSlots::submit(size_t replica, const std::function<RequestId(Engine&)>& submit) {
  const std::shared_ptr<Engine> engine = this->engine(replica);
  if (engine == nullptr) throw Error(ErrorCode::kOverloaded, fmt::format("Replica {} is being loaded.", replica));
  const RequestId id = submit(*engine);
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[replica];  // its base is the engine's, which is not replaced while the pointer lives
  slot.last = std::max(slot.last, slot.base + id);
  return (slot.base + id) * slots_.size() + replica;
}

void ReplicaSlots::cancel(RequestId id) {
  std::shared_ptr<Engine> engine;
  uint64_t base = 0;
  {
    const std::scoped_lock lock(mutex_);
    const Slot& slot = slots_[id % slots_.size()];
    engine = slot.engine, base = slot.base;
  }
  const uint64_t of_replica = id / slots_.size();
  if (engine != nullptr && of_replica > base) engine->cancel(of_replica - base);
}

void ReplicaSlots::with_adapters(const std::function<void(const std::vector<std::shared_ptr<Engine>>&)>& change) {
  const std::scoped_lock adapters(adapters_mutex_);
  change(working_engines());
}

std::vector<AdapterInfo> ReplicaSlots::adapters() const {
  const std::vector<std::shared_ptr<Engine>> engines = working_engines();
  return engines.empty() ? std::vector<AdapterInfo>() : engines.front()->adapters();
}

std::vector<std::shared_ptr<Engine>> ReplicaSlots::working_engines() const {
  const ReplicaMask mask = working();
  std::vector<std::shared_ptr<Engine>> engines;
  for (size_t i = 0; i < slots_.size(); ++i) {
    std::shared_ptr<Engine> one = engine(i);
    if (one != nullptr && has(mask, i)) engines.push_back(std::move(one));
  }
  return engines;
}

void ReplicaSlots::stop_accepting() {
  std::vector<std::shared_ptr<Engine>> engines;
  {
    const std::scoped_lock lock(mutex_);
    draining_ = true;
    for (const Slot& slot : slots_) engines.push_back(slot.engine);
  }
  for (const auto& engine : engines) {
    if (engine != nullptr) engine->stop_accepting();
  }
}

Health ReplicaSlots::health_of(size_t replica) const {
  if (const std::shared_ptr<Engine> engine = this->engine(replica)) return engine->health();
  const std::scoped_lock lock(mutex_);
  return {.failed = true, .failure = slots_[replica].failure};
}

Health ReplicaSlots::health() const {
  Health all{.alive = true, .failed = true};
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Health one = health_of(i);
    all.running += one.running;
    all.waiting += one.waiting;
    if (one.failed) {
      all.failure += fmt::format("{}replica {}: {}", all.failure.empty() ? "" : "; ", i, failure_of(one));
      continue;
    }
    all.failed = false;
    all.alive &= one.alive;
    all.preparing |= one.preparing;
    all.seconds_since_step = std::max(all.seconds_since_step, one.seconds_since_step);
    all.errors_in_a_row = std::max(all.errors_in_a_row, one.errors_in_a_row);
  }
  all.alive &= !all.failed;
  return all;
}

std::vector<MetricFamily> ReplicaSlots::metrics() const {
  MetricFamily up{"sluice:replica_up",
                  "1 while the replica works, 0 from its failure until it is loaded anew.",
                  MetricFamily::Type::kGauge,
                  {}};
  MetricFamily restarts{"sluice:replica_restarts",
                        "How often the replica was loaded anew after a failure.",
                        MetricFamily::Type::kCounter,
                        {}};
  const ReplicaMask mask = working();
  const std::scoped_lock lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const std::vector<std::pair<std::string, std::string>> labels = {{"engine", std::to_string(i)}};
    up.samples.push_back({labels, has(mask, i) ? 1.0 : 0.0, {}});
    restarts.samples.push_back({labels, static_cast<double>(slots_[i].restarts), {}});
  }
  return {up, restarts};
}

void ReplicaSlots::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLookEvery, [this] { return closing_; })) {
    lock.unlock();
    for (size_t i = 0; i < slots_.size(); ++i) look_at(i);
    lock.lock();
  }
}

// The first look after a failure notes it. A later one, once the pause is over, loads the replica anew.
void ReplicaSlots::look_at(size_t replica) {
  const Health health = health_of(replica);
  bool noticed = false;
  {
    const std::scoped_lock lock(mutex_);
    Slot& slot = slots_[replica];
    const Clock::time_point now = Clock::now();
    if (!health.failed) {
      if (now - slot.up_since > restart_.longest) slot.pause = restart_.pause;
      return;
    }
    noticed = slot.failure.empty();
    if (!noticed && (restart_.load == nullptr || draining_ || now < slot.next_attempt)) return;
    slot.next_attempt = now + slot.pause;
    slot.pause = std::min(2 * slot.pause, restart_.longest);
    if (noticed) slot.failure = failure_of(health);
  }
  if (!noticed) return try_to_load(replica);
  log::error("replica {} of {} failed: {}", replica, slots_.size(), failure_of(health));
  failed_(static_cast<int>(replica));
}

// Without another replica that works, the failed engine stays: the server is about to end.
void ReplicaSlots::try_to_load(size_t replica) {
  if ((working() & ~(ReplicaMask{1} << replica)) == 0) return;
  std::shared_ptr<Engine> failed;
  {
    const std::scoped_lock lock(mutex_);
    failed = std::exchange(slots_[replica].engine, nullptr);
  }
  while (failed.use_count() > 1) std::this_thread::sleep_for(kInUsePoll);
  failed.reset();  // its memory is needed
  log::info("replica {} of {} is loaded anew", replica, slots_.size());
  try {
    const auto go_on = [this](double) {
      if (ending()) throw Error(ErrorCode::kOverloaded, "the server ends");
    };
    std::shared_ptr<Engine> engine = restart_.load(static_cast<int>(replica), max_model_len_, go_on);
    install(replica, std::move(engine));
    log::info("replica {} of {} works again", replica, slots_.size());
  } catch (const std::exception& e) {
    log::error("replica {} of {} could not be loaded: {}", replica, slots_.size(), e.what());
  }
}

void ReplicaSlots::install(size_t replica, std::shared_ptr<Engine> engine) {
  const std::scoped_lock adapters(adapters_mutex_);
  take_over_adapters(*engine);
  const std::scoped_lock lock(mutex_);
  if (draining_) engine->stop_accepting();
  Slot& slot = slots_[replica];
  slot.engine = std::move(engine);
  slot.base = slot.last;
  slot.failure.clear();
  slot.up_since = Clock::now();
  ++slot.restarts;
}

void ReplicaSlots::take_over_adapters(Engine& engine) const {
  const std::vector<AdapterInfo> wanted = adapters(), own = engine.adapters();
  const auto in = [](const std::vector<AdapterInfo>& list, const AdapterInfo& adapter) {
    return std::ranges::any_of(
        list, [&](const AdapterInfo& a) { return a.name == adapter.name && a.folder == adapter.folder; });
  };
  for (const AdapterInfo& adapter : own) {
    if (!in(wanted, adapter)) engine.unload_adapter(adapter.name);
  }
  for (const AdapterInfo& adapter : wanted) {
    if (!in(own, adapter)) engine.load_adapter(adapter.name, adapter.folder);
  }
}

bool ReplicaSlots::ending() const {
  const std::scoped_lock lock(mutex_);
  return closing_ || draining_;
}

}  // namespace sluice
