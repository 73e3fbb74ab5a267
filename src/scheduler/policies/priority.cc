// By the request's priority, lower first, then by arrival.
#include "scheduler/ranked_policy.h"

namespace sluice {
namespace {

const PolicyInfo by_priority{.name = "priority", .make = [](const PolicyOptions& options) -> std::unique_ptr<Policy> {
                               return std::make_unique<RankedPolicy>(
                                   options, [](const Request& request) -> int64_t { return request.priority; });
                             }};
const Registry<PolicyInfo> registered_priority{by_priority};

}  // namespace
}  // namespace sluice
