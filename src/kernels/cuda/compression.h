// The launches of ops::CompressionOps; see launch.h.
#pragma once

#include "kernels/cuda/launch.h"
#include "ops/compression.h"

namespace sluice::cuda {

// compression.cu
void compress(const Launch&, const ops::CompressArgs&);
void rotate(const Launch&, const ops::RotateArgs&);
void stream_weights(const Launch&, const ops::StreamWeightsArgs&);

// rope.cu
void store_keys(const Launch&, const ops::StoreKeysArgs&);

// attention/entries.cu
void entry_attention(const Launch&, const ops::EntryAttentionArgs&, Arithmetic);

}  // namespace sluice::cuda
