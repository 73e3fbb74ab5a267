// Seeds of requests.
#include "batch/sample_task.h"

#include "base/philox.h"

namespace sluice {

uint64_t derive_seed(uint64_t engine_seed, uint64_t arrival) {
  // The last word keeps these values apart from the noise of samples (ops/sample.h).
  const auto bits = philox4x32({static_cast<uint32_t>(arrival), static_cast<uint32_t>(arrival >> 32), 1, 1},
                               {static_cast<uint32_t>(engine_seed), static_cast<uint32_t>(engine_seed >> 32)});
  return uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace sluice
