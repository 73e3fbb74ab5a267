// The request whose deadline comes first, then those without one, by arrival. As long as all requests can be served in
// time, no other order serves more of them (earliest deadline first; Liu and Layland 1973, doi:10.1145/321738.321743).
#include <limits>

#include "scheduler/ranked_policy.h"

namespace sluice {
namespace {

int64_t time_of_deadline(const Request& request) {
  if (!request.deadline) return std::numeric_limits<int64_t>::max();
  return request.deadline->time_since_epoch().count();
}

const PolicyInfo deadline{.name = "deadline", .make = [](const PolicyOptions& options) -> std::unique_ptr<Policy> {
                            return std::make_unique<RankedPolicy>(options, time_of_deadline);
                          }};
const Registry<PolicyInfo> registered_deadline{deadline};

}  // namespace
}  // namespace sluice
