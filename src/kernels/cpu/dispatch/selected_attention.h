// Attention to the keys that select_entries chose, for every instruction set. Compiled once, because copying keys is
// bound by memory and the arithmetic is in the kernel for all keys.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

// `attention` is called with rows whose keys have been copied together, without AttentionArgs::selected.
void attend_to_selected(ops::Queue& queue, const ops::AttentionArgs& args,
                        void (*attention)(ops::Queue&, const ops::AttentionArgs&));

}  // namespace sluice::kernels
