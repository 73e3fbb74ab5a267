// Facts about this build, for `sluice --version` and bug reports.
#pragma once

#include <string>

namespace sluice::cli {

// Lines: version, commit, compiler, backends (those that this machine can use are marked), CUDA.
std::string build_facts();

}  // namespace sluice::cli
