// Facts about this build; CMake writes the commit (cmake/SluiceBuildFacts.cmake).
#include "cli/build_facts.h"

#include <fmt/core.h>

#include "base/registry.h"
#include "build_facts.inc"
#include "ops/device.h"
#include "sluice/version.h"

namespace sluice::cli {

std::string build_facts() {
  std::string backends;
  for (const ops::Backend* backend : Registry<ops::Backend>::all()) {
    backends +=
        fmt::format("{}{}{}", backends.empty() ? "" : ", ", backend->name, backend->usable() ? "" : " (not here)");
  }
  return fmt::format("sluice {}\ncommit: {}\ncompiler: {} {}, {}\nbackends: {}\nCUDA: {}", kVersion,
                     SLUICE_BUILD_COMMIT,
#ifdef __clang__
                     "Clang", __clang_version__,
#else
                     "GCC", __VERSION__,
#endif
                     SLUICE_BUILD_TYPE, backends, SLUICE_BUILD_CUDA);
}

}  // namespace sluice::cli
