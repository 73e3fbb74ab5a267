// The functions of the .cu files: every op as a launch on one stream. Tensors, weights and plain pointers refer to
// device memory. Of host spans in an op's arguments, these functions use only the lengths, unless a comment says
// otherwise. They do not allocate, copy to the host or wait. backend.cc adapts them to the op table.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "ops/ops.h"

namespace sluice::cuda {

// A queue's cuBLASLt state: the handle, and a plan for every problem it has run (matmul/dense.cc).
class DenseLibrary;
class Queue;
std::shared_ptr<DenseLibrary> make_dense_library();

// Where a kernel is launched, and the resources that it may use until it ends.
struct Launch {
  Queue* queue = nullptr;
  int device = 0;  // ordinal
  cudaStream_t stream = nullptr;
  std::byte* workspace = nullptr;  // 256-byte-aligned device memory
  size_t workspace_bytes = 0;
  std::shared_ptr<DenseLibrary> dense;
  int32_t* arrivals =
      nullptr;  // one zero per kBytesPerArrival bytes of workspace; a launch resets those it uses to zero
  int sm_count = 0;
  int compute_capability = 0;  // 90 means 9.0
  bool pdl = false;            // programmatic dependent launch: a kernel may start while the one before it ends
                               // (device/pdl.cuh)
  bool captured = false;       // part of a CUDA graph: everything launched before the graph has ended when it runs
};

inline constexpr size_t kBytesPerArrival = 256;

// Indices of an op's arguments, in memory that the device can read (Queue::on_device).
const int32_t* on_device(const Launch&, const Indices&);

// Returns the most bytes of shared memory per block (CUDA C++ Programming Guide, compute capabilities). An SM has 1 KiB
// more for all its blocks together, and each block uses 1 KiB besides its own.
inline int shared_of_block(const Launch& l) {
  const int capability = l.compute_capability;
  const bool small = capability == 86 || capability == 89 || capability >= 120;
  return (small ? 99 : capability < 90 ? 163 : 227) << 10;
}

// Throws Error(kInternal) with the error's text. Most CUDA errors are sticky: nothing can run on the device after one,
// so the engine stops (engine/engine.cc).
void check_cuda(cudaError_t error, const char* what);
// Called after a launch. It reports bad launch configurations; faults of the kernel are reported by the next wait.
void check_launch(const char* kernel);

// The arithmetic of matmuls and attention. kTensor uses the tensor cores: inputs are rounded to the type of the weights
// or the cache, sums are fp32, and the number of rows selects the kernel. kExact is batch-invariant: fp32 throughout,
// and a row's bits depend on its own data alone.
enum class Arithmetic { kTensor, kExact };

// The launches of SLUICE_PLAIN_SLOTS take the arguments of the slot, with a Launch in place of the queue.
template <class Op>
struct LaunchOf;
template <class... Args>
struct LaunchOf<void(ops::Queue&, Args...)> {
  using Function = void(const Launch&, Args...);
};
#define SLUICE_DECLARE(name) LaunchOf<ops::SlotFunction<&ops::OpTable::name>>::Function name;
SLUICE_PLAIN_SLOTS(SLUICE_DECLARE)
#undef SLUICE_DECLARE

// elementwise.cu
void embed(const Launch&, const Tensor& out, const Tensor& table, const int32_t* ids);
// embed.cu: for tables in block formats that have panels (panels.h). Returns false and does nothing for other types.
bool embed_blocks(const Launch&, const Tensor& out, const Tensor& table, const int32_t* ids);
void gather_rows(const Launch&, const Tensor& out, const Tensor& x, const int32_t* rows);
void copy_rows(const Launch&, const Tensor& to, const Tensor& from, const int32_t* pairs,
               size_t count);  // `count` pairs
// gated.cu; `out` has the types of rms_norm's, see ops::input_type
void glu(const Launch&, const Tensor& out, const Tensor& gate_up, ops::Activation activation);
void clamped_glu(const Launch&, Tensor out, Tensor gate_up, float alpha, float limit);
// Adds the bias to each row; without `accumulate` sets each row to the bias.
void add_bias(const Launch&, const Tensor& out, const float* bias, bool accumulate);

// experts.cu
void route(const Launch&, const ops::RouteArgs&);
void choose_physical(const Launch&, const ops::PhysicalExpertsArgs&);
void group_by_expert(const Launch&, const ops::GroupByExpertArgs&);
void combine(const Launch&, const ops::CombineArgs&);

// lora.cu
void lora_shrink(const Launch&, const ops::LoraShrinkArgs&, const int32_t* slots, Arithmetic);
void lora_expand(const Launch&, const ops::LoraExpandArgs&, const int32_t* slots, Arithmetic);
void matrix_slots(const Launch&, const ops::MatrixSlotsArgs&, const int32_t* slots);

// norm.cu
void rms_norm(const Launch&, const Tensor& out, const Tensor& x, const float* weight, float eps, float weight_offset);

// rope.cu
// Calls normalize(vectors [tokens, heads, head_dim], norm) for the queries and for the keys, if they have a norm.
template <class F>
void each_head_norm(const ops::RopeStoreArgs& args, F&& normalize) {
  const auto call = [&](Tensor x, const ops::HeadNorm& norm) {
    const int64_t dim = args.k_cache.shape[3];
    x.shape = Shape{x.shape[0], x.shape[1] / dim, dim};
    normalize(x, norm);
  };
  if (args.q_norm.weight != nullptr) call(args.q, args.q_norm);
  if (args.k_norm.weight != nullptr) call(args.k, args.k_norm);
}
bool normalizes_heads(const Tensor& cos_sin, bool interleaved, const ops::CacheTensor& keys);
void rope_store(const Launch&, const ops::RopeStoreArgs&, const int32_t* positions, const int32_t* slots);

// Weights are row-major. Zeros pad each row to whole K-slices of this many elements, so kernels can read any k in packs
// of 16 bytes.
inline constexpr int64_t kSliceElements = 64;
constexpr int64_t padded_k(int64_t k) { return (k + kSliceElements - 1) / kSliceElements * kSliceElements; }

// A matmul with one matrix, with one per expert, or with one per head. Experts have ranges of rows, given on the
// device. Heads have ranges of columns of x and out.
struct MatmulProblem {
  // fp32, ops::output_type() and ops::input_type(); for heads, the columns of the first head
  Tensor out, x;
  DType type = nullptr;
  const std::byte* weight = nullptr;
  int64_t n = 0, k = 0;
  const float* bias = nullptr;
  bool accumulate = false;
  int matrices = 1;
  int64_t weight_rows = 0;                 // weight rows from one matrix to the next
  int64_t bias_step = 0;                   // bias elements from one matrix to the next
  int64_t x_columns = 0, out_columns = 0;  // columns from one matrix to the next
  const int32_t* starts = nullptr;         // [matrices + 1] first row of each matrix; null: each matrix has all rows
  const int32_t* x_rows = nullptr;  // for experts: the row of x for each row of out; null: the same row. x.rows()
                                    // is the number of rows of out in both cases
  ops::InputRounding rounding = ops::InputRounding::kNone;
};

// Returns an upper bound of the number of matrices that have rows.
inline int64_t most_matrices(const MatmulProblem& p) {
  return p.starts != nullptr ? std::min<int64_t>(p.matrices, p.x.rows()) : p.matrices;
}

// matmul/exact.cu: fp32 matmul without tensor cores, for any number of rows.
void matmul_exact(const Launch&, const MatmulProblem&);
// matmul/stream.cu: 16-bit weights on the tensor cores. It reads the weights once for up to kMostStreamedRows rows of
// x.
inline constexpr int64_t kMostStreamedRows = 64;
void matmul_streamed(const Launch&, const MatmulProblem&);
// matmul/tiles.h: 16-bit weights in tiles of up to 256 rows, for experts with many rows. Returns false and does nothing
// if it does not support the problem.
bool matmul_plain_by_tiles(const Launch&, const MatmulProblem&);
inline constexpr int64_t kTiledExpertRows = 8;  // average rows per expert from which tiles are used
// Rounds the rows of x to `type` and writes them to `to` as rows of padded_k(k) elements. With `x_rows`, row i is row
// x_rows[i] of x; there are x.rows() of them.
void round_rows(const Launch&, std::byte* to, DType type, const Tensor& x, const int32_t* x_rows = nullptr);
// matmul/dense.cc: cuBLASLt. Returns false and does nothing if the library is missing or does not support the shape.
bool matmul_dense(const Launch&, const MatmulProblem&);
// matmul_dense for one matrix per head, with 16-bit weights.
bool matmul_dense_heads(const Launch&, const MatmulProblem&);
// matmul_dense with weights and inputs in 8-bit floats, which p.rounding must allow; needs kFp8Rows rows or more.
bool matmul_fp8(const Launch&, const MatmulProblem&);
inline constexpr int64_t kFp8Rows = 5;
// Returns whether one of these supports such a matmul, with inputs of type `input` and results of type `output`.
bool dense_possible(const Launch&, const ops::Weight&, int64_t rows, DType input, DType output);

// matmul/fp8_rows.cu: rounds x, fp32 or bf16, to 8-bit floats [rows, k] in `to`; k is a multiple of 128. The largest
// magnitude that shares a scale becomes 448. The scales are [rows], one per row, or with `groups` [k / 128, rows], one
// per 128 inputs. `x_rows` is that of MatmulProblem, and only allowed with one scale per row.
void round_to_fp8(const Launch&, std::byte* to, float* scales, const Tensor& x, bool groups,
                  const int32_t* x_rows = nullptr);
// Copies the scales of packed weights (panels.h) to `to` in the order [k / 128, n].
void gather_fp8_scales(const Launch&, float* to, const std::byte* weight, int64_t n, int64_t k);
// matmul/panel_kernels.cc: quantized weights. Returns false and does nothing for types that have no panels (panels.h).
// With many rows it unpacks the weights, a part of the outputs at a time, to bf16 for cuBLASLt or to fp32 for kExact.
bool matmul_quantized(const Launch&, const MatmulProblem&, Arithmetic);
inline constexpr size_t kUnpackedBytes = size_t{32} << 20;  // bytes of such a part, which stays in the L2 cache
// Returns the bytes of workspace that matmuls need for `rows` rows of at most `k` inputs.
constexpr size_t matmul_workspace(int64_t rows, int64_t k) {
  return static_cast<size_t>(rows * padded_k(k)) * 2 + (size_t{32} << 20) + kUnpackedBytes;
}

// attention.cu and attention_exact.cu.
//
// Sequences of up to kMostDecodeRows packed rows (rows x query heads per kv head) use the decode kernels, which split
// their keys among SMs. Other sequences use the prefill kernels. The numbers of rows and keys are upper bounds over the
// sequences of each kind. They determine grids and workspace; the lengths on the device may be less.
inline constexpr int kMostDecodeRows = 64;
inline constexpr int kPrefillTileRows = 128;  // packed rows per block of the prefill kernels
struct AttentionIndices {
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* block_table = nullptr;
  int sequences = 0;
  int decode_rows = 0, decode_keys = 0;  // most of any one decode sequence; 0: there is none
  int64_t decode_tokens = 0;             // rows of all decode sequences
  int64_t prefill_tiles = 0;             // tiles of all prefill sequences; 0: there is none
  // Counts a sequence of the batch that has `rows` rows in this step.
  void count(int rows, int keys, int group);
};
// Returns false and does nothing if the tensor-core kernels do not support these dimensions or types on this device.
bool attention_tensor(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);
void attention_exact(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);
// attention/selected.cu: for AttentionArgs::selected, by either of them. `at` has the batch's sequences.
void attention_selected(const Launch&, const ops::AttentionArgs&, const AttentionIndices& at, Arithmetic);
// select_entries.cu
void select_entries(const Launch&, const ops::SelectEntriesArgs&, Arithmetic);
// Returns the bytes of workspace with which decode attention can split its keys best: for one row of each of
// `sequences` sequences of up to `most_keys` keys.
size_t attention_workspace(int sequences, int heads, int64_t value_dim, int64_t most_keys);

// copy.cu: copies up to kSmallCopy bytes between device memory and pinned host memory, in either direction.
inline constexpr size_t kSmallCopy = size_t{64} << 10;
void copy_small(const Launch&, void* to, const void* from, size_t bytes);
// copy_small from pinned memory. It may read the source before the preceding kernels have ended.
void copy_from_host(const Launch&, void* to, const void* from, size_t bytes);

// sample.cu
void feed_sampled(const Launch&, const ops::FeedSampledArgs&, const int32_t* from);

// pooling.cu
void pooling(const Launch&, const ops::PoolingArgs&, const int32_t* query_start);

}  // namespace sluice::cuda
