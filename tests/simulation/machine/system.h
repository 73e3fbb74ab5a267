// What the machine's files share: the real kernel, and times.
#pragma once

#include <sys/syscall.h>
#include <time.h>

#include <cerrno>
#include <cstdint>

namespace sluice::simulation {

// A call of the real kernel. Returns -1 and sets errno on failure.
inline long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  long result = 0;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (result < 0 && result > -4096) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

// The clock that tells the date is this far ahead of the one that only counts (2026-01-01).
constexpr int64_t kDateSeconds = 1'767'225'600;
// The counting clock does not begin at 0, as zero times mean "none" in some interfaces.
constexpr int64_t kFirstSecond = 1000;

// The machine's time of a time on either of its clocks.
inline int64_t nanoseconds(const timespec& time) {
  int64_t seconds = time.tv_sec - kFirstSecond;
  if (time.tv_sec >= kDateSeconds) seconds -= kDateSeconds;
  constexpr int64_t kMost = INT64_MAX / 1'000'000'000 - 1;
  if (seconds > kMost) return INT64_MAX;
  return seconds * 1'000'000'000 + time.tv_nsec;
}

}  // namespace sluice::simulation
