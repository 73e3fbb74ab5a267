// A simulated machine for the whole program: threads, locks, clocks, sockets and memory. One seeded loop decides which
// thread runs next, when time passes and what fails. The same seed gives the same run.
//
// The program under test is unchanged. The files beside this one define the functions of the C library through which it
// reaches threads (threads.cc), clocks (clock.cc), sockets (network.cc), memory (memory.cc) and files (calls.cc). A
// thread is a fiber of the program's only real thread. Another one may run wherever a thread takes or releases a lock,
// waits, or calls the system. Time passes only between events, so a wait of an hour costs nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "simulation/machine/fiber.h"

namespace sluice::simulation {

// How often what happens, in parts per million.
struct Weather {
  int preempt = 0;            // another thread runs at a lock or a system call
  int late = 0;               // a thread that could run is late, by up to `lateness`
  int64_t lateness = 0;       // nanoseconds
  int spurious = 0;           // a wait for a condition ends without a reason
  int short_transfer = 0;     // a read or write of a socket takes a part of what it could
  int no_descriptor = 0;      // accept() fails
  int no_memory = 0;          // an allocation fails
  int no_call = 0;            // a system call fails (calls.h)
  int64_t event_cost = 1000;  // most nanoseconds that pass from one event to the next
};

class Machine {
 public:
  static Machine& get() { return one_ != nullptr ? *one_ : make(); }
  static Machine* made() { return one_; }  // null before the first call of get()

  // Begins a run: from now on clocks are simulated and decisions follow the seed.
  void start(uint64_t seed, const Weather& weather);
  bool started() const { return started_; }
  // Ends a run. All of its threads must have ended.
  void stop();
  // Called after every event, on the stack of any fiber; must not wait.
  void watch(std::function<void()> watcher) { watcher_ = std::move(watcher); }
  uint64_t seed() const { return seed_; }
  uint64_t events() const { return events_; }
  uint64_t trace() const { return trace_; }  // a hash of everything that happened
  int64_t now() const { return now_; }       // nanoseconds since the start
  Weather& weather() { return weather_; }
  Fiber& current() { return *current_; }
  int threads() const { return static_cast<int>(fibers_.size()); }

  uint64_t random();
  bool chance(int per_million) { return per_million > 0 && static_cast<int>(random() % 1'000'000) < per_million; }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  }
  void note(uint64_t what);  // adds to the trace
  void note(const void* bytes, size_t size);

  // Threads
  Fiber* create(Fiber::Body body, void* argument);
  [[noreturn]] void exit_current();
  void* join(Fiber& fiber);
  void detach(Fiber& fiber);

  // Another thread may run now.
  void yield();
  // Waits until somebody wakes the object. False if the deadline passed first.
  bool wait(const void* object, const char* reason, int64_t deadline = kNever);
  void wake_one(const void* object);
  void wake_all(const void* object);
  void sleep_until(int64_t when);

  // Prints what happened, with the seed and all threads, and ends the process.
  [[noreturn]] void fail(const std::string& what);
  static constexpr int kFailed = 3;  // the exit status then

 private:
  Machine();
  static Machine& make();
  void schedule();
  void wake(Fiber& fiber, bool timed_out);
  void fire_timers();
  Fiber& pick();
  friend void run_fiber() noexcept;

  static inline Machine* one_ = nullptr;
  bool started_ = false;
  uint64_t seed_ = 0, random_[2] = {1, 2};
  uint64_t events_ = 0, trace_ = 0;
  int64_t now_ = 0;
  Weather weather_;
  std::function<void()> watcher_;
  int next_id_ = 1;
  std::map<int, std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> runnable_, waiting_;
  std::set<std::pair<int64_t, int>> timers_;
  std::vector<std::unique_ptr<Fiber>> ended_;  // until somebody else runs
  Fiber* current_ = nullptr;
};

// The running thread is in the machine's own code: no preemption, no faults.
class Inside {
 public:
  Inside() : fiber_(Machine::get().current()) { ++fiber_.inside; }
  ~Inside() { --fiber_.inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Fiber& fiber_;
};

}  // namespace sluice::simulation
