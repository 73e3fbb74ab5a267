// The best of several choices: made to the end, then ranked by their mean log-probability.
#pragma once

#include "sluice/engine.h"

namespace sluice {

// A sink for a request with `made` choices. It hands the `wanted` best ones on when all have ended: one event per
// choice, indices 0 .. wanted - 1 by rank, with the log-probabilities if `keeps_logprobs`. The request must ask for
// log-probabilities.
EventSink best_of(EventSink sink, int wanted, int made, bool keeps_logprobs);

}  // namespace sluice
