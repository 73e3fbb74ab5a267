// What restricts the tokens of one sequence. Scheduler and sampler see a grammar's state through this seam only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "sluice/request.h"

namespace sluice {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // An independent copy of the present state.
  virtual std::unique_ptr<Constraint> copy() const = 0;
  // Sets bit id % 32 of word id / 32 for each token that may come next; clears the others. End tokens are among them
  // where the text may end. Thread-safe beside calls on other constraints.
  virtual void fill_mask(std::span<uint32_t> words) const = 0;
  // Moves on by a token. False: the token was not allowed, and the state is as before.
  virtual bool accept(TokenId token) = 0;
  virtual bool ended() const = 0;  // the text is complete, and nothing but its end may follow
  // Whether it says where the text may end. Else min_tokens and ignore_eos do, as without a constraint.
  virtual bool decides_end() const { return true; }
};

// Owns a constraint, or none. A copy of it has a copy of the constraint.
class ConstraintState {
 public:
  ConstraintState() = default;
  explicit ConstraintState(std::unique_ptr<Constraint> constraint) : constraint_(std::move(constraint)) {}
  ConstraintState(const ConstraintState& other) : constraint_(other ? other->copy() : nullptr) {}
  ConstraintState(ConstraintState&&) noexcept = default;
  ConstraintState& operator=(ConstraintState other) noexcept {
    constraint_ = std::move(other.constraint_);
    return *this;
  }

  explicit operator bool() const { return constraint_ != nullptr; }
  Constraint* get() const { return constraint_.get(); }
  Constraint* operator->() const { return constraint_.get(); }

 private:
  std::unique_ptr<Constraint> constraint_;
};

}  // namespace sluice
