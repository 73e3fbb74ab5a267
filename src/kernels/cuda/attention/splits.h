// Attention whose bits depend on the row alone (compute capability 9.0).
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Takes caches of keys and values in 16 bits that the other tensor-core kernels take (attention_on_tensor_cores).
// Returns false, having done nothing, for others, such as latent caches; the answer does not depend on the sequences.
bool attention_by_splits(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);

}  // namespace sluice::cuda
