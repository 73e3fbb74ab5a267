// What the .cu files provide: every op as a launch on one stream. Tensors and weights are views of device memory, and
// so is what these functions take as plain pointers; the spans of host memory in an op's arguments are looked at for
// their lengths alone, or where a comment says so. Nothing here allocates, copies or waits. backend.cc fits these
// functions to the op table.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "ops/ops.h"

namespace sluice::cuda {

// What a queue keeps of cuBLASLt: its handle and the plans of the problems it has met (matmul/dense.cc).
class DenseLibrary;
std::shared_ptr<DenseLibrary> make_dense_library();

// Where a launch goes and what it may use until it is done.
struct Launch {
  int device = 0;  // ordinal
  cudaStream_t stream = nullptr;
  std::byte* workspace = nullptr;  // 256-byte-aligned device memory
  size_t workspace_bytes = 0;
  std::shared_ptr<DenseLibrary> dense;
  int32_t* arrivals = nullptr;  // a zero for every kBytesPerArrival of the workspace; launches leave zeros behind
  int sm_count = 0;
  int compute_capability = 0;  // 90: 9.0
  bool pdl = false;            // kernels may begin while their predecessors end (device/pdl.cuh)
  bool captured = false;       // as a part of a recording: all that was launched before it has ended when it runs
};

inline constexpr size_t kBytesPerArrival = 256;

// Bytes of shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities). All blocks of a
// multiprocessor have 1 KiB more together, and each takes 1 KiB beside its own.
inline int shared_of_block(const Launch& l) {
  const int capability = l.compute_capability;
  const bool small = capability == 86 || capability == 89 || capability >= 120;
  return (small ? 99 : capability < 90 ? 163 : 227) << 10;
}

// Throws Error(kInternal) with the error's text. Most errors of CUDA stay: nothing can run on the device after one, and
// the engine ends (engine/engine.cc).
void check_cuda(cudaError_t error, const char* what);
// After a launch: bad configurations are reported here, faults of the kernel at the next wait.
void check_launch(const char* kernel);

// How products and attention calculate. kTensor: inputs rounded to the type of the weights or of the cache, fp32 sums,
// kernels chosen by the number of rows. kExact: fp32 throughout, and a row's bits depend on its own data alone.
enum class Arithmetic { kTensor, kExact };

// SLOT(name) for every op whose launch takes the arguments of its slot (ops::OpTable), the launch in place of the
// queue. A new op of that kind is a name here and a .cu file.
#define SLUICE_CUDA_PLAIN_SLOTS(SLOT)                                                                           \
  SLOT(layer_norm)                                                                                              \
  SLOT(match_rms)                                                                                               \
  SLOT(gaussian_top_k)                                                                                          \
  SLOT(clamped_glu)                                                                                             \
  SLOT(unary) SLOT(xielu) SLOT(map) SLOT(copy) SLOT(add) SLOT(multiply) SLOT(softplus) SLOT(sample) SLOT(route) \
      SLOT(group_by_expert) SLOT(combine)

template <class Op>
struct LaunchOf;
template <class... Args>
struct LaunchOf<void(ops::Queue&, Args...)> {
  using Function = void(const Launch&, Args...);
};
#define SLUICE_DECLARE(name) LaunchOf<ops::SlotFunction<&ops::OpTable::name>>::Function name;
SLUICE_CUDA_PLAIN_SLOTS(SLUICE_DECLARE)
#undef SLUICE_DECLARE

// elementwise.cu
void embed(const Launch&, const Tensor& out, const Tensor& table, const int32_t* ids);
// embed.cu: of tables in block formats that have panels (panels.h); false for others, and nothing is done then.
bool embed_blocks(const Launch&, const Tensor& out, const Tensor& table, const int32_t* ids);
void gather_rows(const Launch&, const Tensor& out, const Tensor& x, const int32_t* rows);
void copy_rows(const Launch&, const Tensor& x, const int32_t* pairs, size_t count);  // count pairs
// gated.cu; results as in rms_norm, see ops::input_type
void glu(const Launch&, const Tensor& out, const Tensor& gate_up, ops::Activation activation);
void add_bias(const Launch&, const Tensor& out, const float* bias, bool accumulate);  // to rows, or to zeros

// norm.cu
void rms_norm(const Launch&, const Tensor& out, const Tensor& x, const float* weight, float eps, float weight_offset);

// rope.cu
// Calls normalize(vectors [tokens, heads, head_dim], norm) for the queries and the keys that have one.
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
void latent_store(const Launch&, const ops::LatentStoreArgs&, const int32_t* positions, const int32_t* slots);

// Weights are row-major with rows padded by zeros to whole lines, so that any k is read in packs of 16 bytes.
inline constexpr int64_t kSliceElements = 64;
constexpr int64_t padded_k(int64_t k) { return (k + kSliceElements - 1) / kSliceElements * kSliceElements; }

// A product with one matrix, with one per expert (rows in ranges that lie on the device) or with one per head (columns
// of x and out in turn).
struct MatmulProblem {
  // fp32, or what ops::input_type() and ops::output_type() say; of heads: columns of the first head
  Tensor out, x;
  DType type = nullptr;
  const std::byte* weight = nullptr;
  int64_t n = 0, k = 0;
  const float* bias = nullptr;
  bool accumulate = false;
  int matrices = 1;
  int64_t weight_rows = 0;                 // from a matrix to the next one
  int64_t bias_step = 0;                   // of the bias
  int64_t x_columns = 0, out_columns = 0;  // from a matrix's columns to the next one's
  const int32_t* starts = nullptr;         // [matrices + 1] rows of each matrix, or null: all rows, every one
  const int32_t* x_rows = nullptr;         // of experts: x has them in these rows; null: in their order. x.rows() is
                                           // their number all the same
  ops::InputRounding rounding = ops::InputRounding::kNone;
};

// Matrices that have rows, at most.
inline int64_t most_matrices(const MatmulProblem& p) {
  return p.starts != nullptr ? std::min<int64_t>(p.matrices, p.x.rows()) : p.matrices;
}

// matmul_exact.cu: fp32 products on the plain units, any number of rows.
void matmul_exact(const Launch&, const MatmulProblem&);
// matmul_stream.cu: weights of 16 bits through the tensor cores, read once for up to kMostStreamedRows rows of x.
inline constexpr int64_t kMostStreamedRows = 64;
void matmul_streamed(const Launch&, const MatmulProblem&);
// matmul_tiles.cuh: the same weights in tiles of up to 256 rows, for experts of many rows. False where it cannot;
// nothing is done then.
bool matmul_plain_by_tiles(const Launch&, const MatmulProblem&);
inline constexpr int64_t kTiledExpertRows = 8;  // of an expert, on average, from which tiles are taken
// x, or as many of its rows as it has by their numbers, rounded to `type` into `to`, rows of padded_k(k) elements.
void round_rows(const Launch&, std::byte* to, DType type, const Tensor& x, const int32_t* x_rows = nullptr);
// matmul_dense.cc: cuBLASLt. False when that library is not there or has no way for the shape; nothing is done then.
bool matmul_dense(const Launch&, const MatmulProblem&);
// The same of matrices of heads, with weights of 16 bits.
bool matmul_dense_heads(const Launch&, const MatmulProblem&);
// The same with weights and inputs of 8-bit floats, which p.rounding has to allow; from kFp8Rows rows on.
bool matmul_fp8(const Launch&, const MatmulProblem&);
inline constexpr int64_t kFp8Rows = 5;
// Does one of these take such a product with inputs of type `input` and results of type `output`?
bool dense_possible(const Launch&, const ops::Weight&, int64_t rows, DType input, DType output);

// fp8_rows.cu: x, fp32 or bf16, as 8-bit floats [rows, k] into `to`, k a multiple of 128. The largest magnitude that
// shares a scale becomes 448. Scales [rows], a row's own, or [k / 128, rows], of every 128 inputs. `x_rows`: of the
// former, as in Product.
void round_to_fp8(const Launch&, std::byte* to, float* scales, const Tensor& x, bool groups,
                  const int32_t* x_rows = nullptr);
// The scales of packed weights (panels.h) in the order [k / 128, n].
void gather_fp8_scales(const Launch&, float* to, const std::byte* weight, int64_t n, int64_t k);
// panel_kernels.cc: quantized weights. False for types that have no panels (panels.h); nothing is done then. Products
// of many rows unpack the weights to bf16 for cuBLASLt, or to fp32 for kExact, a part of the outputs at a time.
bool matmul_quantized(const Launch&, const MatmulProblem&, Arithmetic);
inline constexpr size_t kUnpackedBytes = size_t{32} << 20;  // of such a part: it stays in the L2 cache
// Bytes of workspace the products need for `rows` rows of at most `k` inputs.
constexpr size_t matmul_workspace(int64_t rows, int64_t k) {
  return static_cast<size_t>(rows * padded_k(k)) * 2 + (size_t{32} << 20) + kUnpackedBytes;
}

// attention.cu and attention_exact.cu.
//
// Sequences of up to kMostDecodeRows packed rows (rows x query heads of a kv head) are decoded: their keys are cut
// among multiprocessors. The numbers of rows and keys are bounds over the sequences of each kind; they set grids and
// workspace, and what the device's lengths say may be less.
inline constexpr int kMostDecodeRows = 64;
inline constexpr int kPrefillTileRows = 128;  // packed rows of a block, of sequences that are not decoded
struct AttentionIndices {
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* block_table = nullptr;
  int sequences = 0;
  int decode_rows = 0, decode_keys = 0;  // of any one sequence; 0: none is decoded
  int64_t decode_tokens = 0;             // rows of all decoded ones
  int64_t prefill_tiles = 0;             // of all other ones; 0: there is none
  // A sequence of the batch, of `rows` rows in this step.
  void count(int rows, int keys, int group);
};
// False when the tensor cores cannot take these dimensions or types, on this device; nothing is done then.
bool attention_tensor(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);
void attention_exact(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);
// Workspace with which decoding a row of each of `sequences` sequences of up to `most_keys` keys cuts them as is best.
size_t attention_workspace(int sequences, int heads, int64_t value_dim, int64_t most_keys);

// copy.cu: up to kSmallCopy bytes between device memory and pinned memory of the host, either way.
inline constexpr size_t kSmallCopy = size_t{64} << 10;
void copy_small(const Launch&, void* to, const void* from, size_t bytes);
// The same from pinned memory, which is read before the kernels in front have ended.
void copy_from_host(const Launch&, void* to, const void* from, size_t bytes);

// sample.cu
void feed_sampled(const Launch&, const ops::FeedSampledArgs&, const int32_t* from);

// pooling.cu
void pooling(const Launch&, const ops::PoolingArgs&, const int32_t* query_start);

// experts.cu

// recurrence.cu
struct SequenceIndices {
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* slots = nullptr;
  int sequences = 0;
};
void causal_conv(const Launch&, const ops::CausalConvArgs&, const SequenceIndices&);
void selective_scan(const Launch&, const ops::SelectiveScanArgs&, const SequenceIndices&);
void head_scan(const Launch&, const ops::HeadScanArgs&, const SequenceIndices&);
void delta_rule(const Launch&, const ops::DeltaRuleArgs&, const SequenceIndices&);
void gated_lru(const Launch&, const ops::GatedLruArgs&, const SequenceIndices&);

}  // namespace sluice::cuda
