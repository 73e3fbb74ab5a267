// Requests of the scheduler's tests.
#pragma once

#include <numeric>

#include "sluice/request.h"

namespace sluice {

// `length` tokens, all different from those of another `first`.
inline Request numbered_request(int length, int max_tokens, TokenId first = 1000) {
  Request r;
  r.prompt.resize(length);
  std::iota(r.prompt.begin(), r.prompt.end(), first);
  r.sampling.max_tokens = max_tokens;
  return r;
}

}  // namespace sluice
