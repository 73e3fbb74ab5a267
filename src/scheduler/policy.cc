// Policies by name.
#include "scheduler/policy.h"

#include <fmt/core.h>

#include <string>

#include "sluice/error.h"

namespace sluice {

const PolicyInfo& find_policy(std::string_view name) {
  if (const PolicyInfo* policy = Registry<PolicyInfo>::find(name)) return *policy;
  std::string known;
  for (const PolicyInfo* policy : Registry<PolicyInfo>::all()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", policy->name);
  }
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("--scheduling-policy: unknown value '{}' (expected one of: {})", name, known));
}

}  // namespace sluice
