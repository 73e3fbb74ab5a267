// The division of a sequence's keys and values between ranks (--decode-context-parallel-size). Blocks of the scheduler
// have the tokens of all these ranks, and each rank stores its part of them in a block of its own with the same number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/load.h"

namespace sluice {

// Throws Error(kInvalidRequest | kUnsupportedModel) if the sizes do not fit together, or if another option cannot be
// used with them.
void check_key_parts(const EngineOptions& options);
// The same for what only the plan knows: the model's task and its layers.
void check_key_parts(const EngineOptions& options, const LoadPlan& plan);

// The part of a rank, which is one of `ranks` that compute each layer together.
ops::KeyShare key_share(const EngineOptions& options, const Ranks& ranks);
// The connection to the ranks that have the other parts. Null: there are none.
std::shared_ptr<Communicator> join_key_ranks(const EngineOptions& options, const LoadPlan& plan);

// Replaces the scheduler's slots by the rank's own: -1 if another rank stores the row.
void to_own_slots(const ops::KeyShare& share, std::span<int32_t> slots);

}  // namespace sluice
