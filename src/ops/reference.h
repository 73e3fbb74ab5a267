// Parts of the scalar reference that have files of their own.
#pragma once

#include "ops/ops.h"

namespace sluice::ops::reference {

void rope_store(ThreadPool&, const RopeStoreArgs& args);
void attention(ThreadPool&, const AttentionArgs& args);

}  // namespace sluice::ops::reference
