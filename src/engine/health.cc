// Judges by the loop, the ranks, the mapped files, the last requests and the last step.
#include "engine/health.h"

#include <chrono>

#include "parallel/communicator.h"

namespace sluice {
namespace {

// A step can take long (a prefill chunk of a large model). A minute without a finished step while there is work counts
// as a hang.
constexpr std::chrono::duration<double> kHangAfter = std::chrono::seconds(60);

}  // namespace

Health judged(Health health, const LoadedModel& loaded, bool dead) {
  if (loaded.plan.communicator != nullptr) health.failure = loaded.plan.communicator->lost().value_or("");
  health.failed = dead || !health.failure.empty() || !loaded.files_intact();
  health.alive =
      !health.failed && health.errors_in_a_row < kFailingAfter && health.seconds_since_step < kHangAfter.count();
  return health;
}

}  // namespace sluice
