// A thread of the simulated machine: a stack, its thread-local variables, and what it waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice::simulation {

constexpr int64_t kNever = INT64_MAX;

class Fiber {
 public:
  using Body = void* (*)(void*);

  Fiber(int id, std::string name, Body body, void* argument);
  explicit Fiber(int id);  // the program's first thread, which has a stack already
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves `from`, which must be running, and goes on with this one.
  void resume_from(Fiber& from);
  // Destroys the thread-local variables of the running fiber.
  void run_exits();

  const int id;
  const std::string name;
  const Body body = nullptr;
  void* const argument = nullptr;
  void* result = nullptr;
  bool done = false, detached = false;

  const void* waits_for = nullptr;  // null: it can run
  const char* reason = "";          // why it waits, for reports
  int64_t deadline = kNever;        // nanoseconds of the machine's clock
  bool timed_out = false;

  bool faulty = true;                                      // memory and system calls may fail for it
  int inside = 0;                                          // above 0: it runs the machine's own code
  uint32_t address = 0;                                    // IPv4 address of its sockets
  std::vector<void*> keys{};                               // values of pthread_setspecific
  std::vector<std::pair<void (*)(void*), void*>> exits{};  // destructors of its thread-local variables

 private:
  struct Stack;
  std::unique_ptr<Stack> stack_;
  void* top_ = nullptr;  // stack pointer while it does not run
  std::vector<std::byte> locals_;
  int errno_ = 0;
};

// Called on a new fiber's stack; does not return. The machine defines it.
[[noreturn]] void run_fiber() noexcept;

}  // namespace sluice::simulation
