// The shortest request first, by the tokens of its prompt and those it may generate, then by arrival. Lowers the mean
// time of answers where short and long requests mix.
#include "scheduler/ranked_policy.h"

namespace sluice {
namespace {

// Requests without max_tokens may fill the context, so they rank behind all that say how long they are.
int64_t most_tokens(const Request& request) {
  constexpr int64_t kUnknown = int64_t{1} << 32;
  const auto& completion = request.sampling.max_tokens;
  return static_cast<int64_t>(request.prompt.size()) + (completion ? int64_t{*completion} : kUnknown);
}

const PolicyInfo shortest{.name = "shortest", .make = [](const PolicyOptions& options) -> std::unique_ptr<Policy> {
                            return std::make_unique<RankedPolicy>(options, most_tokens);
                          }};
const Registry<PolicyInfo> registered_shortest{shortest};

}  // namespace
}  // namespace sluice
