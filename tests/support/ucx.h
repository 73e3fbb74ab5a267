// UCX in tests.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "parallel/ucx.h"
#include "sluice/error.h"
#include "support/sanitized.h"

namespace sluice::testing {

// null: it cannot be used here, because of `missing`.
inline std::unique_ptr<Ucx> load_ucx(std::string& missing) {
  // UCX hooks functions of the C library, which ThreadSanitizer calls where it cannot be entered.
  if (kSanitized) ::setenv("UCX_MEM_EVENTS", "n", 0);
  try {
    return Ucx::load({});
  } catch (const Error& e) {
    missing = e.what();
    return nullptr;
  }
}

}  // namespace sluice::testing
