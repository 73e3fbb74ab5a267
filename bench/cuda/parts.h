// The parts of cuda_bench, which print a line a case.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace sluice::cuda {

// products.cc
void bench_plain_matmuls();
// `others`: some shapes of formats of GGUF files, too.
void bench_quantized_matmuls(const std::vector<DType>& types, bool others);
// 1 to 1024 rows: where tiles take less time than the kernels of few rows and than unpacking for cuBLASLt.
void bench_tiles(const std::vector<DType>& types);
void bench_all_experts();
// Of these: 128 in one type, or 32 in MXFP4.
void bench_experts_of(DType type);
void bench_fp4_experts();
// Matrices of heads: queries to the space of the latent vectors, and values out of it.
void bench_head_matmuls();

// attention.cc
void bench_attentions();
// Caches of these types.
void bench_narrow_decode(const std::vector<DType>& types);
void bench_narrow_prefill(const std::vector<DType>& types);
// Latent caches of 512 + 64 columns, decoded and prefilled by the heads of some models.
void bench_latent();

// rows.cc
void bench_copy();
void bench_rows(int64_t rows);
// Queries, keys and values from their product to attention's cache, in rows of `type`.
void bench_rotation(DType type, int64_t rows);

// steps.cc: some layers of a model, whole models beside some of their layers, and 32 sequences.
void bench_steps();
void bench_whole_steps();
void bench_step_of_32();

}  // namespace sluice::cuda
