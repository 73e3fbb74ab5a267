// Attention of a layer whose keys and values several ranks need: more ranks than key heads, or latent attention. Each
// of these ranks has the queries of its own heads. With --decode-context-parallel-size they also divide the tokens of a
// sequence, so that each caches its own part only (ops::KeyShare).
#pragma once

#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

// ops::attention with the rank's own heads, over the keys of all ranks of Ctx::key_ranks if `args.share` is not whole.
// The ranks then gather their queries, each of them attends to its own keys, and the results go back and are merged.
// Queries and results are fp32 in that case.
void attend(ops::Ctx& c, const ops::AttentionArgs& args);

// Arena floats per token that attend() takes, for the rank's own heads.
int64_t attend_floats(const LoadContext& context, int64_t heads, int64_t head_dim, int64_t value_dim);

}  // namespace sluice
