#include "grammar/limits.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>

namespace sluice::grammar {
namespace {

constexpr int64_t kStepsPerLook = 4096;

std::chrono::nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

Budget::Budget(const Limits& limits)
    : fuel_(limits.fuel),
      next_look_(std::max<int64_t>(0, limits.fuel - kStepsPerLook)),
      bytes_(limits.bytes),
      limits_(limits),
      end_(thread_time() + limits.time) {}

void Budget::allocate(int64_t bytes) {
  bytes_ -= bytes;
  if (bytes_ < 0) {
    throw GrammarError(fmt::format("too large: its compilation needs more than {} MiB of memory", limits_.bytes >> 20));
  }
}

void Budget::look() {
  if (fuel_ < 0) throw GrammarError(fmt::format("too complex: its compilation takes more than {} steps", limits_.fuel));
  if (thread_time() > end_) {
    throw GrammarError(fmt::format("too complex: its compilation takes more than {} ms", limits_.time.count()));
  }
  next_look_ = std::max<int64_t>(0, fuel_ - kStepsPerLook);
}

}  // namespace sluice::grammar
