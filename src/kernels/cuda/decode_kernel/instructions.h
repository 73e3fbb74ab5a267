// The instructions of the persistent decode kernel (kernel.cuh) and what a launch of it takes. translate.h makes
// instructions of captured ops, dependencies.h connects them, and builder.h launches them.
#pragma once

#include <cuda.h>

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/expert_choice.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

inline constexpr int kMostDecodeKernelRows =
    4;  // most rows of x: a tensor-core matmul has eight columns, and some weight types use two columns per row

// The tensor maps that TMA copies use. Rows of weights are seen as [pieces, n, 128 bytes], and one copy takes some
// pieces of 16 outputs. Scales of 8-bit floats are seen as [n, scales per row]. For keys and values see cache_maps.h.
struct TensorMaps {
  CUtensorMap weights_or_keys, scales_or_values;
};

// A buffer through which blocks pass results on without waiting for all blocks (decode_kernel/exchange.cuh). Every
// element has a tag beside it. Attention reads words of fp32, [rows, stride]. Matmuls read quads of two words each:
// four columns in the kernel's 16-bit type and the sum of their squares.
struct Exchange {
  uint2* words;    // null: nothing is exchanged
  int64_t stride;  // words from one row to the next
  int step;        // the instruction that writes the words: tags count instructions
};

// Where an instruction writes its results. If the matmul that reads them normalizes its input, the norm's weights are
// already applied here. That matmul applies the row's scale itself, from the sums of squares.
struct Put {
  Exchange to;
  bool quads;
  const float* weight;  // norm weights that quads are multiplied by, or null
  float offset;         // added to each norm weight
};

// A matmul of experts. Every warp that needs to know the chosen experts finds them itself from the router's logits, so
// that no block waits for another one's choice. A choice is one of the top_k experts of a row.
enum class ExpertPart {
  kNone,
  kIn,  // gate and up, gated. Results of a row's choice j are columns j * inner and following, multiplied by its
        // weight.
  kOut  // down. Its k columns are those of all choices, so that it adds up their results.
};
struct Experts {
  ExpertPart part;
  int count;                // of all experts
  int panels;               // from the first panel of an expert to that of the next one
  int stages, quads;        // kOut: of one choice. Its inputs are padded to whole stages.
  int bias_step;            // from the first bias of an expert to that of the next one
  Exchange logits;          // words of the router's matmul, [rows, count]
  const float* correction;  // [count] or null
  ExpertChoice choice;
};

// How a gated unit multiplies: activation(gate) * up, or by ops::clamped_glu if limit > 0.
struct Gate {
  ops::Activation activation;
  float alpha, limit;
};

// The instructions of the kernel. Blocks wait at a grid barrier before the instructions that ask for one. Inputs
// from an Exchange are waited for element by element.
struct MatmulInstruction {
  const TensorMaps* maps;   // tensor maps of plain or fp8 rows, in device memory; null for panels
  const std::byte* panels;  // or quantized weights in packed panels, `pitch` bytes each
  int64_t pitch;
  const float* x;
  float* out;
  const float* bias;
  int64_t x_stride, out_stride;
  const float* norm_weight;  // if `norms`: x is normalized first, by rms_norm's formula; the instruction that writes x
                             // applies these weights
  float eps, norm_offset;
  // If not null, also writes gated[:, i], the product of the gate out[:, i] and of out[:, n / 2 + i].
  float* gated;
  int64_t gated_stride;
  Gate gate;
  int rows, n, k, slices;
  int sum;  // 0, or which sum over the ranks of the launch the results are a part of, counted from 1
  bool quantized, accumulate, norms;
  // Whether results are also written to memory. Results that are read only from an Exchange are not. An accumulating
  // matmul always writes `out`.
  bool keeps_out, keeps_gated;
  Exchange in;  // where x comes from
  Put put;      // where `out` goes, or `gated` if there is one
  Experts experts;
};

struct PutInstruction {  // writes x to an Exchange
  const float* x;
  int64_t x_stride;
  int rows, columns;
  Put put;
};

struct NormInstruction {  // RMSNorm of vectors, one block for each
  float* out;
  const float* x;
  const float* weight;
  int64_t out_stride, x_stride;
  int rows, groups, columns;
  float eps, offset;
  bool in_packs;  // x and the weights consist of whole, aligned packs of 16 bytes
};

struct GatherInstruction {  // out[i, :] = fp32(table[ids[i], :])
  float* out;
  const std::byte* table;
  const int32_t* ids;
  int64_t out_stride, table_stride;
  int rows, columns;
  int bytes;  // bytes of a table element: 4 for fp32, 2 for the kernel's 16-bit type
};

struct GluInstruction {
  float* out;
  const float* gate_up;
  int64_t out_stride, gate_up_stride;
  int rows, columns;
  Gate gate;
};

struct RopeInstruction {  // ops::rope_store
  float *q, *k, *v;
  const float* cos_sin;
  std::byte *k_cache, *v_cache;
  const int32_t *positions, *slots;
  int64_t q_stride, k_stride, v_stride, cos_sin_stride;
  int rows, heads, kv_heads, head_dim, value_dim, rotary, block_size;
  bool interleaved;
};

// RMSNorm of each head's vector before it is rotated.
struct HeadNorms {
  const float *q_weight, *k_weight;  // null: no norm
  float eps, offset;                 // offset: added to the weights
};

struct AttentionInstruction {  // attention of one query row per sequence
  AttentionParams params;
  HeadNorms norms;  // the head norms before the rotation; q in memory stays unnormalized
  RopeInstruction rotation;
  Exchange in, put;      // in: words of the matmul that computes q, k and v; put: quads of the result
  int q_at, k_at, v_at;  // the columns of q, k and v in that matmul's result
  bool keeps_out;
  int sequences, cuts;  // most chunks that the keys of a sequence are cut into
  int place;            // index into DecodeKernelLaunch::places: where a block finds its unit of work
  float* values;        // [sequences, kv_heads, cuts, kQueries, dim]: partial results of the chunks
  ChunkSum* sums;       // [sequences, kv_heads, cuts, kQueries]
  const TensorMaps* maps;
  int tile_keys;       // keys copied by one TMA tile: 8 or 16
  bool plain;          // whether scores are scaled and nothing else
  float score_unit;    // scores times this are exponents of two
  uint32_t* arrivals;  // [sequences, kv_heads] counters: zero before the launch and again after it
};

struct alignas(16) Instruction {
  enum class Kind { kMatmul, kNorm, kGather, kGlu, kRope, kAttention, kPut } kind;
  bool grid_barrier;  // all blocks have finished the earlier instructions before this one begins
  int next;           // the next instruction that uses stages of the ring, if this one uses some; -1: none
  union {
    MatmulInstruction matmul;
    NormInstruction norm;
    GatherInstruction gather;
    GluInstruction glu;
    RopeInstruction rotation;
    AttentionInstruction attention;
    PutInstruction put;
  };
};

// Attention instructions that cut the same sequences in the same way share a place. A launch has at most this many.
inline constexpr int kMostPlaces = 2;

// A run of instructions for one launch.
struct DecodeKernelLaunch {
  const Instruction* instructions;
  int count;
  int first_fed;            // the first instruction that uses stages of the ring
  int places[kMostPlaces];  // for each place, an attention instruction that describes it; -1: unused
  int stages;               // stages of the weight ring, a multiple of kProducerWarps and of kMathGroups
  int ahead;                // stages that a producer warp keeps in flight
  int scratch_bytes;        // shared memory for the inputs of matmuls and for attention
  PeerMemory peers;         // for sums over ranks
  int sums;                 // how many there are
  uint32_t* arrivals;  // [0]: grid-barrier counter, zero before and after the launch; [1]: tag of the last instruction
                       // of the launch before
};

// What a matmul expects of its inputs: k is a multiple of `multiple`, and `bytes` is their size in scratch. A stage has
// `stage_slices` K-slices.
struct MatmulInputs {
  int multiple;
  int (*bytes)(int rows, int slices);
  int stage_slices;
};

// The kernel for one type of plain weights and caches and one quantized type (null: no quantized type).
struct DecodeKernel {
  void (*launch)(const Launch&, const DecodeKernelLaunch&);
  int stage_bytes;
  int stage_pieces;  // pieces of 128 bytes of each row in a stage
  bool executes_experts;
  MatmulInputs (*inputs)(bool quantized);
  int (*attention_bytes)(int group);  // shared memory that attention needs, in scratch
};
const DecodeKernel* decode_kernel(DType plain, DType quantized);  // null: no kernel is compiled for these types

inline constexpr int kMathWarps = 8, kWarpgroupWarps = 4;  // warps that compute; warps of a warp group
inline constexpr int kMathGroups = kMathWarps / kWarpgroupWarps;
inline constexpr int kEpilogueWarps = 2, kProducerWarps = 2;  // the other warps of a block
inline constexpr int kDecodeSharedBytes = 225 << 10;          // one more KiB lets the ring begin at a multiple of 1 KiB
inline constexpr int kFewestStages = kMathWarps, kMostStages = 64;
inline constexpr int kMostHeadDim = 128;                     // largest head_dim and value_dim
inline constexpr int kDecodeKeys = 16;                       // keys in a stage
inline constexpr int kUnitPlaceBytes = 1 << 10;              // most shared memory of one UnitPlace
inline constexpr int kMostChoices = 32, kMostExperts = 256;  // of all rows together
struct Choice {
  int expert;
  float weight;
};
// Panels whose sums may be on their way from the math warps to an epilogue warp. An epilogue warp passes over the
// panels of a unit that is not its own. These must be fewer, or its parity of a barrier could be that of the phase
// before.
inline constexpr int kDecodeSums = kMostDecodeKernelRows + 1;
// Shared memory besides the ring and the scratch: those sums, the instructions at hand and those of the producer warps,
// the choices that a warp knows, barriers.
inline constexpr int kBookkeepingBytes = kDecodeSums * kMathWarps * 16 * (kMostDecodeKernelRows + 1) * 4 +
                                         (2 + 2 * kProducerWarps) * static_cast<int>(sizeof(Instruction)) +
                                         16 * (kMostStages + kDecodeSums) + kMostDecodeKernelRows * kMathWarps * 4 +
                                         kMostPlaces * kUnitPlaceBytes +
                                         (kEpilogueWarps + kProducerWarps) * kMostChoices * int{sizeof(Choice)} + 128;

}  // namespace sluice::cuda
