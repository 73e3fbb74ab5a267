// What restricts the tokens of one sequence: a grammar's state (engine/), seen by scheduler and sampler as this seam.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/request.h"

namespace sluice {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // An independent copy of the present state, for a choice that forks and for tokens that may be rolled back.
  virtual std::unique_ptr<Constraint> copy() const = 0;
  // Sets bit id % 32 of word id / 32 for each token that may come next; clears the others. Returns false, and leaves
  // the words alone, where every token may come. Thread-safe beside calls on other constraints.
  virtual bool fill_mask(std::span<uint32_t> words) const = 0;
  // Moves on by a token. False: the token was not allowed, and the state is as before.
  virtual bool accept(TokenId token) = 0;
  // Tokens that must come next whatever is sampled, at most `most`. They are appended to `tokens`.
  virtual void forced(std::vector<TokenId>& tokens, int most) const = 0;
};

}  // namespace sluice
