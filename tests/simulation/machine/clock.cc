// The C library's clocks: real ones until a run starts, then the machine's.
#include <sys/time.h>
#include <time.h>

#include "simulation/machine/machine.h"
#include "simulation/machine/system.h"

using sluice::simulation::Machine;

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using namespace sluice::simulation;
  const Machine& machine = Machine::get();
  const bool counts = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE ||
                      clock == CLOCK_BOOTTIME;
  const bool dates = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!machine.started() || (!counts && !dates)) {
    return static_cast<int>(system_call(SYS_clock_gettime, clock, reinterpret_cast<long>(time)));
  }
  time->tv_sec = machine.now() / 1'000'000'000 + kFirstSecond + (dates ? kDateSeconds : 0);
  time->tv_nsec = machine.now() % 1'000'000'000;
  return 0;
}

int gettimeofday(timeval* __restrict time, void* __restrict) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  time->tv_sec = precise.tv_sec;
  time->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  if (out != nullptr) *out = precise.tv_sec;
  return precise.tv_sec;
}

}  // extern "C"
