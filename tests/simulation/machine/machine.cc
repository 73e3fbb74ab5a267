// The loop: which thread runs next, and when time passes.
#include "simulation/machine/machine.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace sluice::simulation {
namespace {

constexpr char kLate = 0;  // what late threads wait for

uint64_t mix(uint64_t x) {  // SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

// Never destroyed, as threads may outlive static objects. Not a static local variable: their guards need the machine.
Machine& Machine::make() {
  alignas(Machine) static std::byte memory[sizeof(Machine)];
  one_ = new (memory) Machine;
  return *one_;
}

Machine::Machine() {
  current_ = fibers_.emplace(0, std::make_unique<Fiber>(0)).first->second.get();
  current_->faulty = false;
  runnable_.push_back(current_);
}

void Machine::start(uint64_t seed, const Weather& weather) {
  started_ = true;
  events_ = trace_ = 0;
  now_ = 0;
  seed_ = seed;
  random_[0] = mix(seed);
  random_[1] = mix(random_[0]);
  weather_ = weather;
}

void Machine::stop() {
  started_ = false;
  watcher_ = {};
  weather_ = {};
}

// xoroshiro128+ (Blackman and Vigna)
uint64_t Machine::random() {
  const uint64_t a = random_[0], out = a + random_[1];
  const uint64_t b = random_[1] ^ a;
  random_[0] = (a << 24 | a >> 40) ^ b ^ b << 16;
  random_[1] = b << 37 | b >> 27;
  return out >> 1;
}

void Machine::note(uint64_t what) { trace_ = mix(trace_ ^ what); }

void Machine::note(const void* bytes, size_t size) {
  uint64_t hash = size;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3;
  note(hash);
}

// Threads

Fiber* Machine::create(Fiber::Body body, void* argument) {
  Fiber* fiber = nullptr;
  {
    const Inside inside;
    ended_.clear();
    const int id = next_id_++;
    auto owned = std::make_unique<Fiber>(id, fmt::format("thread {}", id), body, argument);
    owned->faulty = current_->faulty;
    owned->address = current_->address;
    fiber = fibers_.emplace(id, std::move(owned)).first->second.get();
    runnable_.push_back(fiber);
  }
  yield();
  return fiber;
}

void run_fiber() noexcept {
  Machine& machine = Machine::get();
  Fiber& self = machine.current();
  self.result = self.body(self.argument);
  machine.exit_current();
}

void Machine::exit_current() {
  Fiber& self = *current_;
  self.run_exits();
  ++self.inside;
  self.done = true;
  std::erase(runnable_, &self);
  wake_all(&self);
  if (self.detached) {
    ended_.push_back(std::move(fibers_.at(self.id)));
    fibers_.erase(self.id);
  }
  schedule();
  __builtin_unreachable();
}

void* Machine::join(Fiber& fiber) {
  while (!fiber.done) wait(&fiber, "the end of a thread");
  void* result = fiber.result;
  const Inside inside;
  fibers_.erase(fiber.id);
  return result;
}

void Machine::detach(Fiber& fiber) {
  const Inside inside;
  fiber.detached = true;
  if (fiber.done) fibers_.erase(fiber.id);
}

// Waiting

void Machine::yield() {
  if (!started_ || current_->inside > 0 || !chance(weather_.preempt)) return;
  const Inside inside;
  schedule();
}

bool Machine::wait(const void* object, const char* reason, int64_t deadline) {
  const Inside inside;
  Fiber& self = *current_;
  self.waits_for = object;
  self.reason = reason;
  self.timed_out = false;
  self.deadline = deadline;
  std::erase(runnable_, &self);
  waiting_.push_back(&self);
  if (deadline != kNever) timers_.emplace(deadline, self.id);
  schedule();
  return !self.timed_out;
}

void Machine::sleep_until(int64_t when) {
  int token = 0;
  wait(&token, "sleep", when);
}

void Machine::wake(Fiber& fiber, bool timed_out) {
  if (fiber.deadline != kNever) timers_.erase({fiber.deadline, fiber.id});
  fiber.deadline = kNever;
  fiber.waits_for = nullptr;
  fiber.timed_out = timed_out;
  std::erase(waiting_, &fiber);
  runnable_.push_back(&fiber);
}

void Machine::wake_all(const void* object) {
  const Inside inside;
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i]->waits_for == object) {
      wake(*waiting_[i], false);
    } else {
      ++i;
    }
  }
}

void Machine::wake_one(const void* object) {
  const Inside inside;
  Fiber* chosen = nullptr;
  uint64_t seen = 0;
  for (Fiber* fiber : waiting_) {
    if (fiber->waits_for == object && random() % ++seen == 0) chosen = fiber;
  }
  if (chosen != nullptr) wake(*chosen, false);
}

void Machine::fire_timers() {
  while (!timers_.empty() && timers_.begin()->first <= now_) {
    Fiber& fiber = *fibers_.at(timers_.begin()->second);
    wake(fiber, fiber.waits_for == &kLate ? fiber.timed_out : true);
  }
}

Fiber& Machine::pick() {
  for (;;) {
    fire_timers();
    if (!runnable_.empty()) {
      Fiber& fiber = *runnable_[random() % runnable_.size()];
      if (!chance(weather_.late)) return fiber;
      // It goes on as if nothing had happened, later.
      std::erase(runnable_, &fiber);
      waiting_.push_back(&fiber);
      fiber.waits_for = &kLate;
      fiber.reason = "its turn";
      fiber.deadline = now_ + between(1, weather_.lateness);
      timers_.emplace(fiber.deadline, fiber.id);
      continue;
    }
    if (timers_.empty()) fail("every thread waits for another one");
    now_ = std::max(now_, timers_.begin()->first);
  }
}

// One event: the running thread stops, and another one, or the same, goes on.
void Machine::schedule() {
  Fiber& self = *current_;
  if (started_) {
    ++events_;
    now_ += between(1, weather_.event_cost);
    if (watcher_) watcher_();
  }
  Fiber& next = pick();
  note(static_cast<uint64_t>(now_) << 16 ^ static_cast<uint64_t>(next.id));
  if (&next == &self) return;
  current_ = &next;
  next.resume_from(self);
}

void Machine::fail(const std::string& what) {
  ++current_->inside;
  fmt::print(stderr, "simulation: seed {}, event {}, {:.6f} s, thread {}: {}\n", seed_, events_,
             static_cast<double>(now_) * 1e-9, current_->id, what);
  for (const auto& [id, fiber] : fibers_) {
    fmt::print(stderr, "  thread {} {}\n", id,
               fiber->done                   ? "has ended"
               : fiber->waits_for == nullptr ? "can run"
                                             : fmt::format("waits for {}", fiber->reason));
  }
  std::fflush(stderr);
  ::_exit(kFailed);
}

}  // namespace sluice::simulation
