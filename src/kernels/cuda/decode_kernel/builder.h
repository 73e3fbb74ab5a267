// Decode steps of few sequences as programs: runs of ops of a recording that one kernel executes (decode_kernel.cuh),
// where launches of their own would each begin by waiting for memory. The kernel stays on every multiprocessor; warps
// of each block copy weights into shared memory ahead of the ops that need them, from op to op, so that memory is
// read while the blocks wait for each other, attend or normalize.
#pragma once

#include <cuda.h>

#include <functional>
#include <optional>
#include <vector>

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

inline constexpr int kMostDecodeKernelRows =
    4;  // rows of x: a product of the tensor cores has eight columns, two for some of them

// How copies of boxes find what they copy. Rows of weights are seen in pieces of 128 bytes, [pieces, n, 128 bytes], of
// which 16 outputs of some pieces are copied at a time; beside them 8-bit floats have [n, scales of a row]. Of
// attention these are the keys, and beside them the values (cache_maps.h).
struct TensorMaps {
  CUtensorMap rows, beside;
};

// Results that blocks pass on without waiting for each other (device/exchange.cuh), each with a tag beside it: for
// attention words of fp32, [rows, stride]; for products quads, two of these places each: four columns in the program's
// type and the sum of their squares.
struct Exchange {
  uint2* words;    // null: none
  int64_t stride;  // of a row
  int step;        // the instruction that puts them there: tags count instructions
};

// Where an instruction puts its results. What a product takes that normalizes has the weights of the norm applied; the
// scale of the row, for which the squares are, is that product's.
struct Put {
  Exchange to;
  bool quads;
  const float* weight;  // of quads, or null
  float offset;         // added to the weights
};

// What the kernel executes. Blocks wait for each other before those instructions that say so; what they take from an
// Exchange they wait for piece by piece.
struct MatmulInstruction {
  const TensorMaps* maps;   // of rows, on the device
  const std::byte* panels;  // or quantized weights in panels, `pitch` bytes each
  int64_t pitch;
  const float* x;
  float* out;
  const float* bias;
  int64_t x_stride, out_stride;
  const float* norm_weight;  // of `norms`: x is normalized first, by rms_norm's formula. For who puts x
  float eps, norm_offset;
  // Beside out: activation(out[:, i]) * out[:, n / 2 + i], or null
  float* gated;
  int64_t gated_stride;
  ops::Activation activation;
  int rows, n, k, lines;
  bool quantized, accumulate, norms;
  // Which of its results are written: those that nobody reads but from an Exchange are not. What is accumulated to
  // is always at out.
  bool keeps_out, keeps_gated;
  Exchange in;  // x
  Put put;      // out, or gated
};

struct PutInstruction {  // x to an Exchange
  const float* x;
  int64_t x_stride;
  int rows, columns;
  Put put;
};

struct NormInstruction {  // RMSNorm of vectors, a warp for each
  float* out;
  const float* x;
  const float* weight;
  int64_t out_stride, x_stride;
  int rows, groups, columns;
  float eps, offset;
  bool in_fours;  // x and the weights are rows of whole packs of 16 bytes
};

struct GatherInstruction {  // out[i, :] = fp32(table[ids[i], :])
  float* out;
  const std::byte* table;
  const int32_t* ids;
  int64_t out_stride, table_stride;
  int rows, columns;
  int bytes;  // of an element: 4: fp32, 2: the type of the program
};

struct GluInstruction {
  float* out;
  const float* gate_up;
  int64_t out_stride, gate_up_stride;
  int rows, columns;
  ops::Activation activation;
};

struct RopeInstruction {  // rope_store
  float *q, *k, *v;
  const float* cos_sin;
  std::byte *k_cache, *v_cache;
  const int32_t *positions, *slots;
  int64_t q_stride, k_stride, v_stride, cos_sin_stride;
  int rows, heads, kv_heads, head_dim, value_dim, rotary, block_size;
  bool interleaved;
};

// RMSNorm of each head's vector in front of its rotation.
struct HeadNorms {
  const float *q_weight, *k_weight;  // null: none
  float eps, offset;                 // added to the weights
};

struct AttentionInstruction {  // a row of each sequence
  AttentionParams params;
  HeadNorms norms;  // what comes before it. The queries are left as they are
  RopeInstruction rotation;
  Exchange in, put;      // words of the product that gives q, k and v; quads of out
  int q_at, k_at, v_at;  // their columns in that
  bool keeps_out;
  int sequences, cuts;  // keys of a sequence are cut into so many chunks at most
  int place;            // where a block's unit is: of those that the launch finds (DecodeKernelLaunch)
  float* values;        // [sequences, kv_heads, cuts, kQueries, dim]: results of chunks
  ChunkSum* sums;       // [sequences, kv_heads, cuts, kQueries]
  const TensorMaps* maps;
  int tile_keys;       // that a box copies: 8 or 16
  bool plain;          // scores are scaled and nothing else
  float score_unit;    // scores times this are in powers of two
  uint32_t* arrivals;  // [sequences, kv_heads] zeros, and zeros again at the end
};

struct alignas(16) Instruction {
  enum class Kind { kMatmul, kNorm, kGather, kGlu, kRope, kAttention, kPut } kind;
  bool grid_barrier;  // all blocks are done with what is before
  int next;           // the instruction that is the next one with stages of the ring, after one that has some; -1: none
  union {
    MatmulInstruction matmul;
    NormInstruction norm;
    GatherInstruction rows;
    GluInstruction glu;
    RopeInstruction rotation;
    AttentionInstruction attention;
    PutInstruction put;
  };
};

// Attentions that cut the same sequences in the same way share their places. So many are different in a launch at most.
inline constexpr int kMostPlaces = 2;

// A run of instructions for one launch.
struct DecodeKernelLaunch {
  const Instruction* builder;
  int count;
  int first_fed;            // the first instruction with stages of the ring
  int places[kMostPlaces];  // attentions that tell them; -1: none
  int stages;               // of the ring of weights, a multiple of kProducerWarps and of kMathGroups
  int ahead;                // of a feeder's stages, on their way at a time
  int scratch_bytes;        // for inputs of products, and for attention
  uint32_t* arrivals;       // a zero, and a zero again at the end; the tag of the last instruction before
};

// What a product takes: a multiple of which k is, and the bytes of the inputs in scratch.
struct MatmulInputs {
  int multiple;
  int (*bytes)(int rows, int lines);
};

// The kernels for a type of plain weights and caches, and a quantized type (null: there is none).
struct DecodeKernel {
  void (*launch)(const Launch&, const DecodeKernelLaunch&);
  int stage_bytes;
  int stage_pieces;  // of 128 bytes of each row, in a stage
  MatmulInputs (*inputs)(bool quantized);
  int (*attention_bytes)(int group);  // of attention in scratch
};
const DecodeKernel* decode_kernel(DType plain, DType quantized);  // null: there are none

inline constexpr int kMathWarps = 8, kWarpgroupWarps = 4;  // that calculate; of a group
inline constexpr int kMathGroups = kMathWarps / kWarpgroupWarps;
inline constexpr int kEpilogueWarps = 2, kProducerWarps = 2;  // the warps beside them
inline constexpr int kDecodeSharedBytes = 225 << 10;          // and 1 KiB for the ring to begin at a multiple of that
inline constexpr int kFewestStages = kMathWarps, kMostStages = 64;
inline constexpr int kMostHeadDim = 128;         // of heads
inline constexpr int kDecodeKeys = 16;           // of a stage
inline constexpr int kUnitPlaceBytes = 1 << 10;  // of a unit of attention
// Panels whose sums may be on their way from the warps to the one that adds them up.
inline constexpr int kDecodeSums = 4;
// Beside the ring and the scratch: these sums, instructions at hand and for the feeder, barriers.
inline constexpr int kHelperWarps = kDecodeSums * kMathWarps * 16 * (kMostDecodeKernelRows + 1) * 4 +
                                    (2 + 2 * kProducerWarps) * static_cast<int>(sizeof(Instruction)) +
                                    16 * (kMostStages + kDecodeSums) + kMostDecodeKernelRows * kMathWarps * 4 +
                                    kMostPlaces * kUnitPlaceBytes + 128;

class DecodeKernelBuilder {
 public:
  // Where the device can, and the environment does not say SLUICE_CUDA_DECODE_KERNEL=0.
  static bool usable(const Launch& l);
  // For one recording on the stream of `l`.
  explicit DecodeKernelBuilder(const Launch& l);
  ~DecodeKernelBuilder();
  DecodeKernelBuilder(const DecodeKernelBuilder&) = delete;
  DecodeKernelBuilder& operator=(const DecodeKernelBuilder&) = delete;

  // Each takes the op, or returns false. `alone` is the op as a launch of its own.
  using FallbackLaunch = std::function<void()>;
  bool embed(const Tensor& out, const Tensor& table, const int32_t* ids, FallbackLaunch fallback);
  bool rms_norm(const Tensor& out, const Tensor& x, const float* weight, float eps, float offset,
                FallbackLaunch fallback);
  bool matmul(const MatmulProblem& p, FallbackLaunch fallback);
  bool glu(const Tensor& out, const Tensor& gate_up, ops::Activation activation, FallbackLaunch fallback);
  bool rope_store(const ops::RopeStoreArgs& a, const int32_t* positions, const int32_t* slots, FallbackLaunch fallback);
  bool attention(const ops::AttentionArgs& a, const AttentionIndices& at, FallbackLaunch fallback);

  // Launches what was taken since the last time: as one kernel if that is worth it. Before every other launch.
  void flush();
  // When the recording is done, before it is launched.
  void finish();

 private:
  // What places of attention are found by.
  struct Place {
    const int32_t *query_start, *kv_len, *block_table, *positions, *slots;
    const float* cos_sin;
    int block_table_stride, block_size, kv_heads, rotary, cuts, window, chunk;
    bool operator==(const Place&) const = default;
  };

  bool take_type(DType plain, DType quantized);
  bool take_scratch(int bytes);
  bool rotated_before(const AttentionParams& params, int sequences) const;
  HeadNorms take_head_norms(const RopeInstruction& r);
  int place_of(const AttentionParams& params, const RopeInstruction& rotation, int cuts);
  void add(const Instruction& instruction, FallbackLaunch fallback);
  std::byte* device();
  const TensorMaps* keep(const TensorMaps& maps);
  uint2* exchange(size_t words);
  void launch_run();

  const Launch& launch_;
  std::byte* device_ = nullptr;                       // arrivals, instructions, maps
  std::vector<std::pair<uint2*, size_t>> exchanges_;  // on the device, words; the last one is large enough for the run
  std::vector<Instruction> all_;                      // those of the launches until now, then the run
  std::vector<TensorMaps> maps_;
  size_t run_ = 0;                        // where that begins
  std::vector<FallbackLaunch> fallback_;  // its ops
  DType plain_ = nullptr, quantized_ = nullptr;
  std::vector<Place> places_;
  int scratch_ = 0, matmuls_ = 0;
};

}  // namespace sluice::cuda
