// A table of slots under one mutex, and a thread that loads and unloads; see model_host.h.
#include "server/model_host.h"

#include <fmt/core.h>

#include <algorithm>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"

namespace sluice::server {

// What engines that were given out refer to. It outlives the host if they do.
struct ModelHost::Shared {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Slot> slots;  // those that are there stay where they are when others are added

  // A pointer for a holder that is counted. When its last copy is gone, the holder is counted no more. Called without
  // the lock.
  static std::shared_ptr<Engine> hold(const std::shared_ptr<Shared>& shared, Id model, std::shared_ptr<Engine> owner,
                                      bool is_use) {
    Engine* const object = owner.get();
    return {object, [shared, model, is_use, owner = std::move(owner)](Engine*) mutable {
              shared->release(model, std::move(owner), is_use);
            }};
  }

  void release(Id model, std::shared_ptr<Engine> owner, bool is_use) {
    {
      const std::lock_guard lock(mutex);
      Slot& slot = slots[model];
      --slot.users;
      if (is_use) slot.last_used = Clock::now();
      if (slot.engine == owner) owner.reset();  // the slot has it still
    }
    changed.notify_all();
    if (owner == nullptr) return;
    // The host is gone. The caller may be the engine's own thread, which cannot destroy the engine.
    std::thread([last = std::move(owner)]() mutable { last.reset(); }).detach();
  }
};

namespace {

// The first line of a message, which may have a table below it.
std::string first_line(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  if (line.ends_with(':')) line.remove_suffix(1);
  return std::string(line);
}

ApiError cannot_load(const std::string& name, const Error& error) {
  const std::string why = error.code == ErrorCode::kInternal ? "see the server's log" : first_line(error.what());
  ApiError out{.status = 500,
               .message = fmt::format("The model `{}` could not be loaded: {}.", name, why),
               .code = "model_load_failed",
               .type = "server_error"};
  if (error.code == ErrorCode::kOutOfMemory) {  // others may be unloaded meanwhile
    out.status = 503;
    out.type = "service_unavailable_error";
    out.retry_after_s = 5;
  }
  return out;
}

ApiError not_in_time(const std::string& name, bool own_deadline) {
  if (!own_deadline) return overloaded(fmt::format("The model `{}` is still loading. Please try again later.", name));
  return {.status = 504,
          .message = fmt::format("The model `{}` was not loaded before the request's deadline.", name),
          .code = "deadline_exceeded",
          .type = "server_error"};
}

ApiError shutting_down() { return overloaded("The server is shutting down."); }

// Runs a part of the host's work that must not end its threads.
template <class F>
void quietly(const F& work) noexcept {
  try {
    work();
  } catch (const std::exception& e) {
    try {
      log::error("a request that waited for its model was lost: {}", e.what());
    } catch (...) {  // there may be no memory for the line either
    }
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

ModelHost::ModelHost(std::vector<ModelSource> sources, ModelHostOptions options)
    : options_(options), shared_(std::make_shared<Shared>()) {
  for (ModelSource& source : sources) add(std::move(source));
  threads_.start([this] { work(); });
  threads_.start([this] { watch(); });
}

ModelHost::~ModelHost() {
  threads_.join();
  std::vector<std::shared_ptr<Engine>> last;
  const std::lock_guard lock(shared_->mutex);
  for (Slot& slot : shared_->slots) last.push_back(std::move(slot.engine));
}

ModelHost::Id ModelHost::add(ModelSource source) {
  auto info = std::make_shared<const ModelInfo>(source.info);
  const Lock lock(shared_->mutex);
  Slot& slot = shared_->slots.emplace_back();
  slot.id = shared_->slots.size() - 1;
  slot.info = std::move(info);
  slot.source = std::move(source);
  return slot.id;
}

void ModelHost::load_at_start() {
  const auto wanted = [this](Slot& slot) {
    const Lock lock(shared_->mutex);
    slot.evicts = !slot.source.at_start;
    return slot.source.at_start;
  };
  const size_t most = options_.max_loaded == 0 ? size() : options_.max_loaded;
  for (Id model = 0; model < size() && loaded() < most; ++model) {
    Slot& slot = shared_->slots[model];  // nothing is added meanwhile
    if (!wanted(slot)) continue;
    std::promise<std::shared_ptr<Engine>> promise;
    enqueue(model, Clock::time_point::max(), false,
            [&](std::shared_ptr<Engine> engine, const ApiError&) { promise.set_value(std::move(engine)); });
    const std::shared_ptr<Engine> engine = promise.get_future().get();
    const Lock lock(shared_->mutex);
    slot.evicts = true;
    if (engine == nullptr) {
      throw Error(slot.failure ? slot.failure->code : ErrorCode::kOverloaded,
                  fmt::format("model '{}': {}", slot.source.name, slot.failure ? slot.failure->what() : "not loaded"));
    }
  }
}

ModelHost::Ticket ModelHost::acquire(Id model, std::optional<Clock::time_point> deadline, Done done) {
  const Clock::time_point most = Clock::now() + options_.max_wait;
  const bool own_deadline = deadline && *deadline < most;
  return enqueue(model, own_deadline ? *deadline : most, own_deadline, std::move(done));
}

ModelHost::Ticket ModelHost::enqueue(Id model, Clock::time_point until, bool own_deadline, Done done) {
  Lock lock(shared_->mutex);
  Slot& slot = shared_->slots.at(model);
  if (slot.state == State::kLoaded) {
    done(hold(slot, /*is_use=*/true, lock), {});
    return 0;
  }
  if (stopping_) throw shutting_down();
  if (slot.evicts && slot.waiters.size() >= options_.max_waiting) {
    throw overloaded(
        fmt::format("Too many requests wait for the model `{}` to load. Please try again later.", slot.source.name));
  }
  if (slot.waiters.empty()) slot.wanted_since = Clock::now();
  const Ticket ticket = ++last_ticket_;
  slot.waiters.push_back({.ticket = ticket, .done = std::move(done), .until = until, .own_deadline = own_deadline});
  shared_->changed.notify_all();
  return ticket;
}

void ModelHost::cancel(Ticket ticket) {
  std::optional<Waiter> removed;  // destroyed without the lock
  const Lock lock(shared_->mutex);
  for (Slot& slot : shared_->slots) {
    const auto found = std::ranges::find(slot.waiters, ticket, &Waiter::ticket);
    if (found == slot.waiters.end()) continue;
    removed = std::move(*found);
    slot.waiters.erase(found);
    return;
  }
}

std::shared_ptr<Engine> ModelHost::try_acquire(Id model) {
  Lock lock(shared_->mutex);
  Slot& slot = shared_->slots.at(model);
  return slot.state == State::kLoaded ? hold(slot, /*is_use=*/true, lock) : nullptr;
}

std::shared_ptr<Engine> ModelHost::look(Id model) const {
  Lock lock(shared_->mutex);
  Slot& slot = shared_->slots.at(model);
  return slot.engine != nullptr ? hold(slot, /*is_use=*/false, lock) : nullptr;
}

// Counts a holder and releases the lock.
std::shared_ptr<Engine> ModelHost::hold(Slot& slot, bool is_use, Lock& lock) const {
  ++slot.users;
  if (is_use) slot.last_used = Clock::now();
  std::shared_ptr<Engine> engine = slot.engine;
  lock.unlock();
  return Shared::hold(shared_, slot.id, std::move(engine), is_use);
}

bool ModelHost::unload(Id model) {
  const Lock lock(shared_->mutex);
  Slot& slot = shared_->slots.at(model);
  if (slot.state != State::kLoaded) return false;
  slot.state = State::kUnloading;
  shared_->changed.notify_all();
  return true;
}

void ModelHost::keep(Id model, std::optional<std::chrono::milliseconds> idle) {
  const Lock lock(shared_->mutex);
  Slot& slot = shared_->slots.at(model);
  if (slot.state == State::kLoaded) slot.idle = idle;
  shared_->changed.notify_all();
}

void ModelHost::stop() {
  Lock lock(shared_->mutex);
  stopping_ = true;
  shared_->changed.notify_all();
  for (Id model = 0; model < shared_->slots.size(); ++model) {  // models may be added meanwhile
    std::vector<Waiter> waiters = std::exchange(shared_->slots[model].waiters, {});
    lock.unlock();
    for (Waiter& waiter : waiters) quietly([&] { waiter.done(nullptr, shutting_down()); });
    waiters.clear();
    lock.lock();
  }
}

size_t ModelHost::size() const {
  const Lock lock(shared_->mutex);
  return shared_->slots.size();
}

std::string ModelHost::name(Id model) const {
  const Lock lock(shared_->mutex);
  return shared_->slots.at(model).source.name;
}

std::shared_ptr<const ModelInfo> ModelHost::info(Id model) const {
  const Lock lock(shared_->mutex);
  return shared_->slots.at(model).info;
}

std::optional<ModelHost::Clock::time_point> ModelHost::expires(Id model) const {
  const Lock lock(shared_->mutex);
  const Slot& slot = shared_->slots.at(model);
  if (slot.state != State::kLoaded || !slot.idle) return std::nullopt;
  return (slot.users > 0 ? Clock::now() : slot.last_used) + *slot.idle;
}

size_t ModelHost::loaded() const {
  const Lock lock(shared_->mutex);
  return static_cast<size_t>(std::ranges::count(shared_->slots, State::kLoaded, &Slot::state));
}

std::vector<MetricFamily> ModelHost::metrics() const {
  using Type = MetricFamily::Type;
  const Lock lock(shared_->mutex);
  std::vector<MetricFamily> out;
  const auto add = [&](const char* family, const char* help, Type type, const auto& value) {
    MetricFamily& added = out.emplace_back(MetricFamily{.name = family, .help = help, .type = type, .samples = {}});
    for (const Slot& slot : shared_->slots) {
      added.samples.push_back(
          {.labels = {{"model_name", slot.source.name}}, .value = static_cast<double>(value(slot)), .histogram = {}});
    }
  };
  add("sluice:model_loaded", "1 while the model is in memory.", Type::kGauge,
      [](const Slot& slot) { return slot.engine != nullptr ? 1 : 0; });
  add("sluice:model_loads", "How often the model was loaded.", Type::kCounter,
      [](const Slot& slot) { return slot.loads; });
  add("sluice:model_load_failures", "Loads that failed.", Type::kCounter,
      [](const Slot& slot) { return slot.failures; });
  add("sluice:model_load_seconds", "Time of the last load.", Type::kGauge,
      [](const Slot& slot) { return slot.load_seconds; });
  add("sluice:requests_waiting_for_model", "Requests that wait until the model is loaded.", Type::kGauge,
      [](const Slot& slot) { return slot.waiters.size(); });
  return out;
}

// The rest runs on the host's own threads.

size_t ModelHost::limit() const {
  const size_t all = shared_->slots.size();
  if (options_.max_loaded == 0) return all;
  return options_.grows ? options_.max_loaded : std::min(options_.max_loaded, all);
}

size_t ModelHost::others_of(const Slot& slot) const {
  return static_cast<size_t>(std::ranges::count_if(
      shared_->slots, [&](const Slot& other) { return &other != &slot && other.engine != nullptr; }));
}

void ModelHost::work() {
  Lock lock(shared_->mutex);
  while (!stopping_) {
    if (step(lock)) continue;
    Clock::time_point next = Clock::time_point::max();
    for (const Slot& slot : shared_->slots) {
      if (slot.state == State::kLoaded && slot.users == 0 && slot.idle)
        next = std::min(next, slot.last_used + *slot.idle);
    }
    if (next == Clock::time_point::max()) {
      shared_->changed.wait(lock);
    } else {
      shared_->changed.wait_until(lock, next);
    }
  }
}

bool ModelHost::step(Lock& lock) {
  if (Slot* idle = next_to_unload()) {
    unload(*idle, lock);
    return true;
  }
  Slot* const wanted = next_to_load();
  if (wanted == nullptr) return false;
  const size_t others = others_of(*wanted);
  if (others < limit() && others <= wanted->most_others) {
    load(*wanted, others, lock);
    return true;
  }
  // One that is being given up makes room when its requests have ended.
  const bool coming = std::ranges::count(shared_->slots, State::kUnloading, &Slot::state) > 0;
  Slot* const given_up = coming ? nullptr : victim();
  if (given_up == nullptr) return false;
  log::info("unloading {} to make room for {}", given_up->source.name, wanted->source.name);
  given_up->state = State::kUnloading;
  return true;
}

// A model without requests that is given up, or whose time is over.
ModelHost::Slot* ModelHost::next_to_unload() {
  const Clock::time_point now = Clock::now();
  for (Slot& slot : shared_->slots) {
    if (slot.users > 0 || slot.engine == nullptr) continue;
    if (slot.state == State::kUnloading || (slot.idle && slot.last_used + *slot.idle <= now)) return &slot;
  }
  return nullptr;
}

// The model that requests have waited for longest.
ModelHost::Slot* ModelHost::next_to_load() {
  Slot* next = nullptr;
  for (Slot& slot : shared_->slots) {
    if (slot.state != State::kUnloaded || slot.waiters.empty()) continue;
    if (next == nullptr || slot.wanted_since < next->wanted_since) next = &slot;
  }
  return next;
}

// The model that was used least recently, if possible one without requests.
ModelHost::Slot* ModelHost::victim() {
  Slot* best = nullptr;
  for (Slot& slot : shared_->slots) {
    if (slot.state != State::kLoaded) continue;
    const auto order = [](const Slot& s) { return std::pair(s.users > 0, s.last_used); };
    if (best == nullptr || order(slot) < order(*best)) best = &slot;
  }
  return best;
}

void ModelHost::unload(Slot& slot, Lock& lock) {
  slot.state = State::kUnloading;
  std::shared_ptr<Engine> engine = std::move(slot.engine);
  lock.unlock();
  engine.reset();
  log::info("unloaded {}", slot.source.name);
  lock.lock();
  slot.engine = nullptr;
  slot.state = State::kUnloaded;
}

ModelHost::Loaded ModelHost::try_load(const ModelSource& source, double cache_share) const {
  const auto progress = [this](double) {
    if (stopping_) throw Error(ErrorCode::kOverloaded, "the server is shutting down");
  };
  Loaded out;
  try {
    out.engine = source.load(cache_share, progress);
    out.info = std::make_shared<const ModelInfo>(out.engine->model());
  } catch (const Error& e) {
    out.failure = e;
  } catch (const std::bad_alloc&) {
    out.failure = Error(ErrorCode::kOutOfMemory, "memory is short");
  } catch (const std::exception& e) {
    out.failure = Error(ErrorCode::kInternal, e.what());
  }
  return out;
}

void ModelHost::load(Slot& slot, size_t others, Lock& lock) {
  slot.state = State::kLoading;
  const double share = 1.0 / static_cast<double>(limit() - others);
  lock.unlock();
  log::info("loading {}", slot.source.name);
  const Clock::time_point start = Clock::now();
  Loaded loaded;
  // A load may bind its thread to some CPUs, so each has its own.
  try {
    std::thread([&] { loaded = try_load(slot.source, share); }).join();
  } catch (const std::system_error& e) {
    loaded.failure = Error(ErrorCode::kOutOfMemory, e.what());
  }
  lock.lock();
  slot.load_seconds = seconds_since(start);
  if (loaded.failure) return fail_load(slot, *loaded.failure, others, lock);
  slot.engine = std::move(loaded.engine);
  slot.info = std::move(loaded.info);
  finish_load(slot, lock);
}

void ModelHost::finish_load(Slot& slot, Lock& lock) {
  slot.state = State::kLoaded;
  slot.last_used = Clock::now();
  slot.idle = slot.source.idle.count() > 0 ? std::optional(slot.source.idle) : std::nullopt;
  slot.most_others = std::numeric_limits<size_t>::max();
  ++slot.loads;
  std::vector<Waiter> waiters = std::exchange(slot.waiters, {});
  slot.users += static_cast<int>(waiters.size());
  std::shared_ptr<Engine> engine = slot.engine;  // stays the slot's: the waiters hold the model
  lock.unlock();
  log::info("loaded {} in {:.1f} s", slot.source.name, slot.load_seconds);
  for (Waiter& waiter : waiters) {
    quietly([&] {
      std::shared_ptr<Engine> held;
      try {
        held = Shared::hold(shared_, slot.id, engine, /*is_use=*/true);
      } catch (const std::bad_alloc&) {
        return waiter.done(nullptr, out_of_memory());
      }
      waiter.done(std::move(held), {});
    });
  }
  waiters.clear();
  lock.lock();
}

void ModelHost::fail_load(Slot& slot, const Error& error, size_t others, Lock& lock) {
  slot.state = State::kUnloaded;
  if (error.code == ErrorCode::kOutOfMemory && others > 0 && slot.evicts && !stopping_) {
    log::info("{} does not fit beside {} others", slot.source.name, others);
    slot.most_others = others - 1;
    return;
  }
  slot.most_others = std::numeric_limits<size_t>::max();
  slot.failure = error;
  ++slot.failures;
  std::vector<Waiter> waiters = std::exchange(slot.waiters, {});
  lock.unlock();
  log::error("loading {} failed: {}", slot.source.name, error.what());
  for (Waiter& waiter : waiters) quietly([&] { waiter.done(nullptr, cannot_load(slot.source.name, error)); });
  waiters.clear();
  lock.lock();
}

void ModelHost::watch() {
  Lock lock(shared_->mutex);
  while (!stopping_) {
    Slot* first = nullptr;  // that with the waiter whose time ends next
    size_t at = 0;
    for (Slot& slot : shared_->slots) {
      for (size_t i = 0; i < slot.waiters.size(); ++i) {
        if (first != nullptr && slot.waiters[i].until >= first->waiters[at].until) continue;
        first = &slot;
        at = i;
      }
    }
    if (first == nullptr || first->waiters[at].until == Clock::time_point::max()) {
      shared_->changed.wait(lock);
    } else if (first->waiters[at].until > Clock::now()) {
      shared_->changed.wait_until(lock, Clock::time_point(first->waiters[at].until));
    } else {
      Waiter late = std::move(first->waiters[at]);
      first->waiters.erase(first->waiters.begin() + static_cast<std::ptrdiff_t>(at));
      lock.unlock();
      quietly([&] { late.done(nullptr, not_in_time(first->source.name, late.own_deadline)); });
      late.done = nullptr;
      lock.lock();
    }
  }
}

}  // namespace sluice::server
