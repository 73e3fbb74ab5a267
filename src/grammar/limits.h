// What the compilation of a grammar may cost, and the error of one that cannot be used.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace sluice::grammar {

// A grammar, schema or pattern that is malformed, unsupported or beyond the limits. The message names the place, as in
// "schema.properties.x.contains: ...".
class GrammarError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Limits {
  int64_t fuel = 20'000'000;             // elementary steps: states and transitions that are made or visited
  int64_t bytes = 64 << 20;              // memory of what is made
  std::chrono::milliseconds time{1000};  // of the thread's CPU, so that a busy machine refuses no grammar
};

// Spends the limits of one compilation, on the thread that made it.
class Budget {
 public:
  explicit Budget(const Limits& limits = {});

  // Throw GrammarError when a limit is passed. `step` looks at the clock only now and then.
  void step(int64_t steps = 1) {
    fuel_ -= steps;
    if (fuel_ < next_look_) look();
  }
  void allocate(int64_t bytes);
  // Gives back what was allocated for a time.
  void release(int64_t bytes) { bytes_ += bytes; }

 private:
  void look();

  int64_t fuel_, next_look_, bytes_;
  Limits limits_;
  std::chrono::nanoseconds end_;
};

}  // namespace sluice::grammar
