// The parts of cuda_bench. Each prints one line per case.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace sluice::cuda {

// matmuls.cc
void bench_plain_matmuls();
void bench_matmuls_of_many_rows();
// `others`: also some shapes of GGUF formats.
void bench_quantized_matmuls(const std::vector<DType>& types, bool others);
// 1 to 1024 rows: shows where tiles are faster than the kernels of few rows and than unpacking for cuBLASLt.
void bench_tiles(const std::vector<DType>& types);
void bench_all_experts();
// Experts of one type: 128 of `type`, or 32 of MXFP4.
void bench_experts_of(DType type);
void bench_fp4_experts();
// Matrices of heads: from queries to the space of the latent vectors, and from there to values.
void bench_head_matmuls();

// attention.cc
void bench_attentions();
// Decode over caches of these types.
void bench_narrow_decode(const std::vector<DType>& types);
void bench_narrow_prefill(const std::vector<DType>& types);
// Decode of many sequences with eight heads for a kv head.
void bench_wide_decode();
// Attention to a part of the keys, as with --decode-context-parallel-size.
void bench_key_parts();
// Latent caches of 512 + 64 columns, decoded and prefilled with the head counts of some models.
void bench_latent();

// selection.cc: the selection of tokens by an indexer, and attention to them.
void bench_selections();

// rows.cc
void bench_copy();
void bench_rows(int64_t rows);
// Queries, keys and values from their matmul to the cache, in rows of `type`.
void bench_rotation(DType type, int64_t rows);

// sampling.cc: 1 to 512 rows with logits of three standard deviations.
void bench_sampling();

// steps.cc: some layers of a model; whole models next to some of their layers; 32 sequences.
void bench_steps();
void bench_whole_steps();
void bench_step_of_32();

// transfers.cc: blocks of the KV cache to pinned memory and back.
void bench_transfers();

// ranks.cc: sums over two ranks. The second one is a process of this program that calls run_other_rank().
void bench_ranks();
void run_other_rank();

}  // namespace sluice::cuda
