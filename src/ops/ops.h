// The contract between models and hardware: one table of operations (ops) per device.
//
// Layers call the free functions of this header. They check shapes and types, then call the kernel in the table's slot.
// Backends register themselves (base/registry.h); code above this layer never includes kernels. A backend fills every
// slot of its table.
// A backend may lack matmuls for some weight types (Ops::matmul); loading a model throws for those, a step never does.
//
// Conventions: activations are fp32 unless a shape comment says otherwise. The `tokens` rows of a step are a flat batch
// of sequences (batch/batch.h). On a batch-invariant backend (Capabilities::batch_invariant) every op computes the same
// bits for a row whatever other rows are in the batch: sums run in an order that depends only on the row's own data.
// Prefix reuse, chunked prefill and batching therefore do not change results there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/device.h"
#include "tensor/indices.h"
#include "tensor/tensor.h"

namespace sluice {
class Communicator;  // parallel/communicator.h
}

namespace sluice::ops {

struct SampleArgs;  // ops/sample.h
struct FeedSampledArgs;
struct PhysicalExpertsArgs;  // ops/physical_experts.h
struct CompressionOps;       // ops/compression.h
struct SelectEntriesArgs;    // ops/entries.h

// The extra rounding a matmul may apply to its inputs, beyond what its kernels always do. Kernels for few rows may skip
// it.
enum class InputRounding {
  kNone,
  kFp8PerRow,    // rounds to 8-bit floats (E4M3) with one scale per row; for weights with one scale per output
  kFp8PerGroup,  // rounds to 8-bit floats (E4M3) with one scale per 128 inputs of a row
};

// A view of a weight matrix [n, k], packed in the layout that its device multiplies fastest. The view does not own its
// memory, which is MatmulKernels::packed_bytes(n, k) long.
struct Weight {
  DType dtype = nullptr;  // the type the matrix is stored in
  int64_t n = 0;          // outputs
  int64_t k = 0;          // inputs
  std::byte* data = nullptr;
  InputRounding inputs = InputRounding::kNone;
};

// Outputs per packed panel. Layouts are sequences of whole panels: if `begin` is a multiple of this number, output
// `begin` starts at byte packed_bytes(begin, k). Stacked matrices (experts, heads) are therefore windows of one weight.
inline constexpr int64_t kWeightPanel = 16;

// out[t, :] = (accumulate ? out[t, :] : 0) + x[t, :] * weight^T + bias
struct MatmulArgs {
  Tensor out;  // [tokens, n] fp32, or output_type() if there is neither bias nor accumulation
  Tensor x;    // [tokens, k] fp32 or input_type()
  const Weight* weight = nullptr;
  const float* bias = nullptr;  // [n] or null
  bool accumulate = false;      // adds into out: the residual stream
};

// Low-rank changes to a weight matrix [n, k] by several adapters (LoRA, Hu et al. 2021, arXiv:2106.09685). Adapter s
// adds scales[s] * B_s A_s. The outputs are in parts (the projections that are fused into the matrix), and part p uses
// the rows p * rank .. (p + 1) * rank - 1 of A. Unused rows and columns are zero. A view, which owns nothing. If the
// matrices are bf16, tensor cores may round x and the inner values to 16 bits.
struct LoraWeight {
  static constexpr int kMostParts = 8;
  int64_t n = 0, k = 0;
  int slots = 0;  // adapters that there is room for
  int rank = 0;   // largest rank of an adapter
  int parts = 0;
  int64_t part_ends[kMostParts] = {};  // outputs before the end of each part, ascending; the last one is n
  DType type = &kFloat32;              // of a and b: fp32 or bf16
  const std::byte* a = nullptr;        // [slots, parts * rank, k]
  const std::byte* b = nullptr;        // [slots, n, rank]
  const float* scales = nullptr;       // [slots, parts]
  int64_t inner() const { return int64_t{parts} * rank; }

  // Of few rows, a device may keep up to kMostSums partial sums of each inner value.
  static constexpr int64_t kMostSums = 16, kSummedRows = 256;
  static constexpr int64_t inner_rows(int64_t tokens) {
    return std::max(tokens, std::min(tokens, kSummedRows) * kMostSums);
  }
};

// Makes scale * A x[t, :] for the adapter in slot slots[t]. Rows whose slot is -1 are not written. How `inner` holds
// the values is a matter of the device: only its lora_expand reads them.
struct LoraShrinkArgs {
  Tensor inner;   // [LoraWeight::inner_rows(tokens), weight->inner()] fp32
  Tensor x;       // [tokens, k] fp32, or bf16 where input_type() of a matmul said so
  Indices slots;  // [tokens]
  const LoraWeight* weight = nullptr;
  bool computed = false;  // an op of this step wrote the slots, perhaps on another device: the host cannot read them
};

// out[t, :] += B times the inner values of row t, which lora_shrink made. Rows whose slot is -1 stay as they are.
struct LoraExpandArgs {
  Tensor out;     // [tokens, n] fp32, or bf16 where output_type() of a matmul said so
  Tensor inner;   // what lora_shrink wrote
  Indices slots;  // [tokens]
  const LoraWeight* weight = nullptr;
  bool computed = false;  // as in LoraShrinkArgs
};

// Slots for layers that have a matrix per expert or per head. There an adapter takes as many slots of a LoraWeight as
// there are matrices. Item i is of row r and matrix m: out[i] = slots[r] * matrices + m, or -1 if slots[r] is -1.
struct MatrixSlotsArgs {
  Tensor out;            // [items] int32
  Indices slots;         // [rows] see LoraShrinkArgs
  int64_t matrices = 0;  // in an adapter
  bool shared = false;   // the matrices are equal, and an adapter takes one slot: out[i] = slots[r]
  // For experts, items are places (GroupByExpertArgs), and matrix m owns the places starts[m] .. starts[m + 1] - 1.
  // Places of no matrix get -1. If these are empty, item i is of row i / matrices and head i % matrices.
  Tensor rows{}, starts{};
};

// How each row selects its experts (Shazeer et al. 2017, arXiv:1701.06538). A row selects the top_k experts with the
// highest scores; among equal scores the lower index wins. The weights are these scores, then normalized and scaled.
struct Routing {
  enum class Score {
    kSoftmax,  // softmax over all experts
    kSigmoid,
    kSqrtSoftplus,  // sqrt(ln(1 + e^logit)) (DeepSeek-V4)
    kSparseMixer,   // the two largest logits; the score is a logit's share of a softmax over the logits close to it
                    // (Phi-3.5 MoE, arXiv:2409.12136)
  };
  int top_k = 0;
  Score score = Score::kSoftmax;
  // Only experts in the `top_groups` best groups can be selected (DeepSeek-V2, arXiv:2405.04434). A group's score is
  // the sum of its `group_best` highest expert scores.
  int groups = 1;
  int top_groups = 1;
  int group_best = 2;
  bool normalize = false;     // divides the weights by max(their sum, smallest_sum)
  float smallest_sum = 0.0f;  // lower bound of the divisor
  float scale = 1.0f;         // factor applied to the weights
  float jitter = 0.0f;        // kSparseMixer: half of the relative distance within which a logit counts as close
};

struct RouteArgs {
  Tensor experts;                     // out: [rows, top_k] int32, ascending in a row
  Tensor weights;                     // out: [rows, top_k] fp32
  Tensor logits;                      // [rows, experts] fp32
  const float* correction = nullptr;  // [experts] or null: added to the scores for selection only (arXiv:2412.19437)
  // [rows, top_k] fp32 or empty: the numbers of the experts of each row. They take the place of the
  // selection.
  Tensor given{};
  Routing routing{};
};

// Sorts the entries by expert, then by row, ascending. An entry is one selected expert of one row: the j-th expert of
// row r is entry r * top_k + j. A place is an index in the sorted order.
struct GroupByExpertArgs {
  Tensor experts;  // [rows, top_k] int32
  Tensor entries;  // out: [rows * top_k] int32: the entry at each place
  Tensor rows;     // out: [rows * top_k] int32: the row at each place
  Tensor places;   // out: [rows * top_k] int32: the place of each entry
  Tensor starts;   // out: [experts + 1] int32: expert e owns the places starts[e] .. starts[e + 1] - 1
};

// The distance, in outputs, between stacked matrices of shape [n, k] that are windows of one weight.
constexpr int64_t stacked_outputs(int64_t n) { return (n + kWeightPanel - 1) / kWeightPanel * kWeightPanel; }

// out[i, :] = x[rows[i], :] * weight_e^T + bias_e for the expert e that owns place i.
struct ExpertMatmulArgs {
  Tensor out;                      // [places, n] fp32, or bf16 where x is bf16
  Tensor x;                        // [any, k] fp32, or what gated_experts() wrote
  Tensor rows{};                   // [places] int32; empty: rows[i] = i
  Tensor gathered{};               // scratch [places, k] fp32 for devices that gather `rows` first
  Tensor starts;                   // [experts + 1] int32
  const Weight* weight = nullptr;  // [experts * stacked_outputs(n), k]
  const float* bias = nullptr;     // [experts, n] or null
};

// A matmul with one matrix per head: out[t, h, :] = x[t, h, :] * weight_h^T. Head h reads the k columns of x that start
// at h * x_stride. It writes the n columns of out that start at h * out_stride.
struct HeadMatmulArgs {
  Tensor out;  // [tokens, (heads - 1) * out_stride + n or more] fp32
  Tensor x;    // [tokens, (heads - 1) * x_stride + k or more] fp32
  int heads = 0;
  int64_t n = 0;
  int64_t out_stride = 0;
  int64_t x_stride = 0;
  const Weight* weight = nullptr;  // [heads * stacked_outputs(n), k]
};

// out[r, :] = (accumulate ? out[r, :] : 0) + sum over j of weights[r, j] * x[places[r * top_k + j], :], j ascending.
struct CombineArgs {
  Tensor out;      // [rows, n] fp32
  Tensor x;        // [rows * top_k, n] fp32, or bf16 from expert_matmul()
  Tensor weights;  // [rows, top_k] fp32
  Tensor places;   // [rows * top_k] int32; if empty, x is in the order of the entries
  bool accumulate = false;
};

// Keys or values in the paged cache: [blocks, kv_heads, block_size, dim] fp32, bf16 or fp16, or one of the 8-bit types
// in Capabilities::narrow_caches. An int8 vector has a scale, and its elements are code * scale. The scale is the
// vector's largest magnitude / 127; it is NaN if any element is not finite.
struct CacheTensor : Tensor {
  float* scales = nullptr;  // for int8: [blocks, kv_heads, block_size]

  CacheTensor() = default;
  CacheTensor(const Tensor& tensor, float* scales = nullptr) : Tensor(tensor), scales(scales) {}
};

// Which positions of a sequence have their keys and values in a cache. Positions are dealt in runs of `run` to `parts`
// caches in turn, and this cache has those of number `part`. They lie in it in order, so a row that sees the positions
// before some other one sees the first keys of each cache. `run` divides the block size.
struct KeyShare {
  int run = 1;
  int parts = 1;  // 1: all positions
  int part = 0;
  bool whole() const { return parts == 1; }
  bool has(int64_t position) const { return position / run % parts == part; }
  // The number of keys of the positions 0 .. positions - 1. It is the place of position `positions` if has() it.
  int64_t count(int64_t positions) const {
    const int64_t round = int64_t{run} * parts;
    return positions / round * run + std::clamp<int64_t>(positions % round - int64_t{run} * part, 0, run);
  }
};

// RMSNorm of each head's vector on its own (see rms_norm); weight [head_dim], or null for no norm.
struct HeadNorm {
  const float* weight = nullptr;
  float eps = 0.0f;
};

// A norm of the rows that another op writes: rms_norm, or layer_norm if `centred`.
struct RowNorm {
  Tensor out;                     // the rows' shape, and a type as for rms_norm; may be the rows
  const float* weight = nullptr;  // [columns] or null
  const float* bias = nullptr;    // [columns] or null; for layer_norm
  float eps = 0.0f;
  bool centred = false;
};

// Rotates q and k by position (RoPE, Su et al. 2021, arXiv:2104.09864) and appends k and v to the paged cache.
// If k is empty, the op only rotates q; it ignores v, and uses the caches only for head_dim.
struct RopeStoreArgs {
  Tensor q;        // [tokens, heads * head_dim] fp32 or output_type(), rotated in place
  Tensor k;        // [tokens, kv_heads * head_dim] of the same type
  Tensor v;        // [tokens, kv_heads * value_dim] of the same type
  Tensor cos_sin;  // [positions, rotary_dim] fp32: rotary_dim/2 cosines, then as many sines; empty: no rotation
  bool interleaved = false;     // pairs (2i, 2i+1) (GPT-J) instead of (i, i + rotary_dim/2) (GPT-NeoX, Llama)
  CacheTensor k_cache;          // [blocks, kv_heads, block_size, head_dim]
  CacheTensor v_cache;          // [blocks, kv_heads, block_size, value_dim]; value_dim 0: no values are stored
  Indices positions;            // [tokens] rows of cos_sin
  Indices slots;                // [tokens] block * block_size + offset; -1: another rank stores the row
  HeadNorm q_norm{}, k_norm{};  // applied before the rotation; needs fp32 rows unless normalizes_heads()
};

// RopeStoreArgs for latent attention (DeepSeek-V2, arXiv:2405.04434). The cache holds one vector [latent, rotary] per
// token, and each head's query has the same layout. Only the rotary columns are rotated.
struct LatentStoreArgs {
  Tensor q;        // [tokens, heads * (latent + rotary)] fp32: the op writes the rotary columns of every head
  Tensor q_rope;   // [tokens, heads * rotary] fp32: the rotary columns before the rotation
  Tensor latent;   // [tokens, latent] fp32
  Tensor k_rope;   // [tokens, rotary] fp32
  Tensor cos_sin;  // [positions, rotary] fp32, as in RopeStoreArgs
  bool interleaved = false;
  CacheTensor k_cache;  // [blocks, 1, block_size, latent + rotary]
  Indices positions;    // [tokens] rows of cos_sin
  Indices slots;        // [tokens] as in RopeStoreArgs
};

// Attention of a flat batch over the paged cache: softmax(scale * q k^T) v with online softmax (Milakov and
// Gimelshein 2018, arXiv:1805.02867; paging: Kwon et al. 2023, arXiv:2309.06180). k and v of this step are already in
// the cache. Sequence s owns rows query_start[s] .. query_start[s + 1] - 1; its last row is at position kv_len[s] - 1.
// With `causal`, a row attends to the positions up to its own; otherwise to all kv_len[s] positions of its sequence.
struct AttentionArgs {
  Tensor out;             // [tokens, heads * value_dim] fp32, or rows from take_rows() in a 16-bit input_type()
  Tensor q;               // [tokens, heads * head_dim] fp32 or output_type(), rotated
  CacheTensor k_cache;    // [blocks, kv_heads, block_size (a multiple of 8), head_dim]
  CacheTensor v_cache;    // [blocks, kv_heads, block_size, value_dim]; if empty, values are the keys' first columns
  int64_t value_dim = 0;  // columns of a value
  Indices query_start;    // [sequences + 1]
  Indices kv_len;         // [sequences] tokens in the cache after this step
  Indices block_table;    // [sequences, block_table_stride]
  int block_table_stride = 0;
  int heads = 0;  // query heads; head h reads kv head h / (heads / kv_heads)
  float scale = 1.0f;
  bool causal = true;
  int window = 0;                       // > 0: a row attends only to positions less than `window` away from its own
  int chunk = 0;                        // > 0: causal, within the row's own chunk [i * chunk, (i + 1) * chunk)
  int first = 0;                        // no row sees positions before this; > 0: causal, no row is before it either
  float soft_cap = 0.0f;                // > 0: scores become cap * tanh(score / cap)
  const float* sinks = nullptr;         // [heads] extra logit in the softmax's denominator, or null
  const float* alibi_slopes = nullptr;  // [heads] or null: adds slope * (key position - query position); causal only
  // [heads, 2 * relative_reach + 1] or null: adds the entry for the distance (key position - query position) to the
  // score. Entries run from distance -relative_reach to relative_reach; distances beyond are clamped to that range.
  const float* relative_bias = nullptr;
  int relative_reach = 0;
  // The positions that the caches have; lengths and masks count all positions. The block table has the blocks of the
  // caches' keys. Unless it is whole, log_sums is needed, and there are no biases by distance.
  KeyShare share{};
  // [tokens, top_k] dense int32 or empty: the only positions that each row sees, as select_entries() lists them. Needs
  // causal attention of one kv head without v_cache, and none of window, chunk, biases by distance, share and log_sums.
  Tensor selected{};
  Tensor gathered{};  // scratch for `selected`, dense int8: for the keys of at least one row (ops/gathered_keys.h)
  // [tokens, heads] dense fp32 or empty: out, the logarithm of the sum of exponentials. sinks must be null then. A row
  // that sees no key of the caches has results of zero and -infinity.
  Tensor log_sums{};
};

// Makes the results of attention over all keys from those over each of several parts (AttentionArgs::share):
// out[t, h, :] = sum over p of w[p] * x[t, p, h, :], p ascending. w is the softmax of log_sums[t, :, h], with the sink
// in its denominator.
struct MergePartsArgs {
  Tensor out;       // [tokens, heads * value_dim] fp32
  Tensor x;         // [tokens, parts * heads * value_dim] fp32
  Tensor log_sums;  // [tokens, parts * heads] fp32, of which at least one per head is finite
  int parts = 0;
  int heads = 0;
  const float* sinks = nullptr;  // [heads] or null
};

// Reduces each sequence to one vector: out[s, :] from the rows query_start[s] .. query_start[s + 1] - 1 of x.
enum class Pooling { kFirst, kLast, kMean, kWeightedMean, kMax, kMeanSqrtLength };
struct PoolingArgs {
  Tensor out;           // [sequences, n] fp32
  Tensor x;             // [rows, n] fp32
  Indices query_start;  // [sequences + 1], no sequence is empty
  // kMean divides the sum of the rows, ascending, by their number; kMeanSqrtLength divides it by the square root of
  // that number. In kWeightedMean row i has weight i + 1 (SGPT: Muennighoff 2022, arXiv:2202.08904).
  Pooling pooling = Pooling::kMean;
};

// The sequences of a flat batch, for ops that carry a state from row to row. Sequence s owns rows query_start[s] ..
// query_start[s + 1] - 1, and row slots[s] of a state tensor, which no other sequence of the batch owns.
// If this step has all the sequence's rows so far (kv_len[s] is their number), its state starts as zeros, whatever the
// slot holds. After the op the slot holds the fp32 state after the sequence's last row. Splitting a sequence into steps
// therefore gives the same result as one step.
struct Sequences {
  Indices query_start;  // [sequences + 1]
  Indices kv_len;       // [sequences] tokens so far, including this step's
  Indices slots;        // [sequences]
};

// Adds up the rows of each sequence over the steps that compute them, for the mean of a whole text: the slot of a
// sequence gets its rows of x added, ascending, in double precision.
struct SumRowsArgs {
  Tensor sums;  // [slots, n] fp64
  Tensor x;     // [rows, n] fp32
  Sequences sequences;
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kQuickGelu, kTanh, kSigmoid, kIdentity };
// Takes Hugging Face's names (hidden_act); nullopt for unknown ones.
std::optional<Activation> parse_activation(std::string_view name);
float activate(Activation activation, float x);  // scalar reference

// Functions of an element x and one positive parameter p: kScale is x * p, kClamp is min(max(x, -p), p), kSoftCap is
// p * tanh(x / p).
enum class Map { kScale, kClamp, kSoftCap };

// xIELU (Huang and Schlag 2024, arXiv:2411.13010): alpha_p x^2 + beta x above zero, else
// alpha_n (expm1(min(x, eps)) - x) + beta x.
struct Xielu {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};

inline constexpr int kMaxConvWidth = 16;

// Depthwise causal convolution over time: out[t, :] = activation(bias + sum over j of weight[j, :] * x[t - width + 1 +
// j, :]), j ascending. The state is the last width - 1 inputs, oldest first.
struct CausalConvArgs {
  Tensor out;                     // [tokens, channels] fp32; must not be x
  Tensor x;                       // [tokens, channels] fp32
  Tensor state;                   // [slots, (width - 1) * channels] fp32
  int width = 0;                  // 1 .. kMaxConvWidth
  const float* weight = nullptr;  // [width, channels]
  const float* bias = nullptr;    // [channels] or null
  Activation activation = Activation::kIdentity;
  Sequences sequences;
};

// Selective scan (Mamba: Gu and Dao 2023, arXiv:2312.00752). For every channel c and every i < n:
//   h[i] = exp(dt[t, c] * a[i, c]) * h[i] + dt[t, c] * b[t, i] * x[t, c]
//   out[t, c] = sum over i of c[t, i] * h[i] + d[c] * x[t, c]
struct SelectiveScanArgs {
  Tensor out;                // [tokens, channels] fp32; may be x
  Tensor x;                  // [tokens, channels] fp32
  Tensor dt;                 // [tokens, channels] fp32 step sizes
  Tensor b, c;               // [tokens, n] fp32
  const float* a = nullptr;  // [n, channels]
  const float* d = nullptr;  // [channels] or null
  Tensor state;              // [slots, n * channels] fp32: h as [n, channels]
  Sequences sequences;
};

// The scan with one decay per head (state space duality, Mamba 2: Dao and Gu 2024, arXiv:2405.21060). Without dt and d
// it is linear attention with a decay (Lightning Attention: Qin et al. 2024, arXiv:2401.04658). For a head h of
// group g = h / (heads / groups), every i < n and every p < dim:
//   s[i, p] = exp(dt[t, h] * a[h]) * s[i, p] + dt[t, h] * b[t, g, i] * x[t, h, p]
//   out[t, h, p] = sum over i of c[t, g, i] * s[i, p] + d[h] * x[t, h, p]
struct HeadScanArgs {
  Tensor out;                // [tokens, heads * dim] fp32; may be x
  Tensor x;                  // [tokens, heads * dim] fp32
  Tensor dt;                 // [tokens, heads] fp32; if empty, 1 everywhere
  Tensor b, c;               // [tokens, groups * n] fp32
  const float* a = nullptr;  // [heads]
  const float* d = nullptr;  // [heads] or null
  int heads = 0;
  int groups = 0;  // divides heads
  Tensor state;    // [slots, heads * n * dim] fp32: s as [heads, n, dim]
  Sequences sequences;
};

// The gated delta rule (Yang et al. 2024, arXiv:2412.06464). With one decay per key channel it is Kimi Linear's
// (arXiv:2510.26692). For a head h with key head g = h / (heads / key_heads), and every i < key_dim:
//   s[i, :] = exp(dt[t, h] * a[h]) * s[i, :]          or exp(dt[t, h, i] * a[h])
//   r = beta[t, h] * (v[t, h, :] - sum over i of k[t, g, i] * s[i, :])
//   s[i, :] = s[i, :] + k[t, g, i] * r
//   out[t, h, :] = sum over i of q[t, g, i] * s[i, :]
struct DeltaRuleArgs {
  Tensor out;                // [tokens, heads * value_dim] fp32; may be v
  Tensor q, k;               // [tokens, key_heads * key_dim] fp32
  Tensor v;                  // [tokens, heads * value_dim] fp32
  Tensor dt;                 // [tokens, heads] or [tokens, heads * key_dim] fp32
  Tensor beta;               // [tokens, heads] fp32
  const float* a = nullptr;  // [heads]
  int heads = 0;
  int key_heads = 0;  // divides heads
  Tensor state;       // [slots, heads * key_dim * value_dim] fp32: s as [heads, key_dim, value_dim]
  Sequences sequences;
};

// The real-gated linear recurrent unit (Griffin: De et al. 2024, arXiv:2402.19427). For every channel:
//   log_a = rate * sigmoid(recurrent_gate[t] + recurrent_bias)
//   h = exp(log_a) * h + sqrt(1 - exp(2 * log_a)) * sigmoid(input_gate[t] + input_bias) * x[t]
// The sequence's first row is an exception: its input is not scaled by the square root.
struct GatedLruArgs {
  Tensor out;                             // [tokens, channels] fp32: h; may be x
  Tensor x;                               // [tokens, channels] fp32
  Tensor input_gate, recurrent_gate;      // [tokens, channels] fp32
  const float* input_bias = nullptr;      // [channels]
  const float* recurrent_bias = nullptr;  // [channels]
  const float* rate = nullptr;            // [channels], negative
  Tensor state;                           // [slots, channels] fp32
  Sequences sequences;
};

struct MatmulKernels {
  size_t (*packed_bytes)(int64_t n, int64_t k) = nullptr;
  // Writes rows [row, row + from.rows()) of the [n, k] matrix `into`; `from` is [rows, k] of any plain float type.
  // Calls may write the rows in any order and from several tensors (q, k and v of one fused weight), each row once.
  // Rows that are never written stay zero, because the memory is zeroed.
  void (*pack)(Queue& queue, const Weight& into, int64_t row, const Tensor& from) = nullptr;
  // Zeroes rows from `row` on, whole panels, so that others can be packed there. Null: pack() replaces rows.
  void (*clear)(Queue& queue, const Weight& into, int64_t row, int64_t rows) = nullptr;
  void (*matmul)(Queue& queue, const MatmulArgs& args) = nullptr;
  // The rounding of x in these kernels. 0: x is fp32, or rounded to the type of the weights. Otherwise each block of
  // this many inputs of a row is rounded to the nearest multiples (-127 .. 127) of its largest magnitude / 127;
  // multiplications and sums are fp32.
  int int8_block = 0;
  // See ops::input_type and ops::output_type; null means fp32.
  DType (*input_type)(const Queue& queue, const Weight& weight, int64_t rows) = nullptr;
  DType (*output_type)(const Queue& queue, const Weight& weight, int64_t rows) = nullptr;
};

// Outputs [begin, begin + n) of a weight; `begin` is a multiple of kWeightPanel.
inline Weight window(const MatmulKernels& kernels, const Weight& weight, int64_t begin, int64_t n) {
  return {.dtype = weight.dtype, .n = n, .k = weight.k, .data = weight.data + kernels.packed_bytes(begin, weight.k)};
}

// The op table: one function per op, with the same signatures on all backends. A backend fills every slot.
struct OpTable {
  void (*layer_norm)(Queue&, Tensor out, Tensor x, const float* weight, const float* bias, float eps) = nullptr;
  void (*match_rms)(Queue&, Tensor x, Tensor like, float floor) = nullptr;
  void (*gaussian_top_k)(Queue&, Tensor x, float deviations) = nullptr;
  void (*unary)(Queue&, Tensor x, Activation activation) = nullptr;
  void (*xielu)(Queue&, Tensor x, const Xielu& parameters) = nullptr;
  void (*map)(Queue&, Tensor x, Map function, float parameter) = nullptr;
  void (*copy)(Queue&, Tensor out, Tensor x) = nullptr;
  void (*add)(Queue&, Tensor out, Tensor x, float scale) = nullptr;
  void (*multiply)(Queue&, Tensor out, Tensor x, Activation activation) = nullptr;
  void (*softplus)(Queue&, Tensor x, const float* bias, float low, float high) = nullptr;
  void (*latent_store)(Queue&, const LatentStoreArgs&) = nullptr;
  void (*causal_conv)(Queue&, const CausalConvArgs&) = nullptr;
  void (*selective_scan)(Queue&, const SelectiveScanArgs&) = nullptr;
  void (*head_scan)(Queue&, const HeadScanArgs&) = nullptr;
  void (*delta_rule)(Queue&, const DeltaRuleArgs&) = nullptr;
  void (*gated_lru)(Queue&, const GatedLruArgs&) = nullptr;
  void (*sample)(Queue&, const SampleArgs&) = nullptr;
  void (*sum_rows)(Queue&, const SumRowsArgs&) = nullptr;
  void (*merge_parts)(Queue&, const MergePartsArgs&) = nullptr;

  void (*embed)(Queue&, Tensor out, const Tensor& table, Indices ids) = nullptr;
  void (*rms_norm)(Queue&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset) = nullptr;
  void (*glu)(Queue&, Tensor out, Tensor gate_up, Activation activation) = nullptr;
  void (*clamped_glu)(Queue&, Tensor out, Tensor gate_up, float alpha, float limit) = nullptr;
  void (*rope_store)(Queue&, const RopeStoreArgs&) = nullptr;
  void (*attention)(Queue&, const AttentionArgs&) = nullptr;
  void (*select_entries)(Queue&, const SelectEntriesArgs&) = nullptr;
  void (*gather_rows)(Queue&, Tensor out, Tensor x, Indices rows) = nullptr;
  void (*combine)(Queue&, const CombineArgs&) = nullptr;
  void (*lora_shrink)(Queue&, const LoraShrinkArgs&) = nullptr;
  void (*lora_expand)(Queue&, const LoraExpandArgs&) = nullptr;

  void (*copy_rows)(Queue&, Tensor to, Tensor from, Indices pairs) = nullptr;
  void (*feed_sampled)(Queue&, const FeedSampledArgs&) = nullptr;
  void (*pooling)(Queue&, const PoolingArgs&) = nullptr;
  void (*route)(Queue&, const RouteArgs&) = nullptr;
  void (*choose_physical)(Queue&, const PhysicalExpertsArgs&) = nullptr;
  void (*group_by_expert)(Queue&, const GroupByExpertArgs&) = nullptr;
  void (*expert_matmul)(Queue&, const MatmulKernels&, const ExpertMatmulArgs&) = nullptr;
  void (*head_matmul)(Queue&, const MatmulKernels&, const HeadMatmulArgs&) = nullptr;
  void (*matrix_slots)(Queue&, const MatrixSlotsArgs&) = nullptr;
  void (*all_reduce)(Queue&, Communicator&, Tensor out, Tensor x, bool accumulate) = nullptr;
  void (*all_gather)(Queue&, Communicator&, Tensor out, Tensor x) = nullptr;
  void (*all_to_all)(Queue&, Communicator&, Tensor out, Tensor x) = nullptr;
  void (*broadcast)(Queue&, Communicator&, Tensor x) = nullptr;
  void (*send)(Queue&, Communicator&, int rank, Tensor x) = nullptr;
  void (*receive)(Queue&, Communicator&, int rank, Tensor x) = nullptr;
};

// One slot of OpTable, for code that visits all of them: timing, tests, inspection.
template <class Member>
struct Slot {
  const char* name;
  Member member;
};

// The names of all slots, in the order of OpTable. The list that has a name says where its kernels are; each expands
// SLOT(name).
// clang-format off
// A kernel for each instruction set of the CPU (kernels/cpu), and a launch with the same arguments (kernels/cuda). The
// backends declare these kernels and fill their tables from the list.
#define SLUICE_PLAIN_SLOTS(SLOT) \
  SLOT(layer_norm) SLOT(match_rms) SLOT(gaussian_top_k) SLOT(unary) SLOT(xielu) SLOT(map) \
  SLOT(copy) SLOT(add) SLOT(multiply) SLOT(softplus) SLOT(latent_store) SLOT(causal_conv) SLOT(selective_scan) \
  SLOT(head_scan) SLOT(delta_rule) SLOT(gated_lru) SLOT(sample) SLOT(sum_rows) SLOT(merge_parts)
// The same on the CPU. The launches have other arguments, or the persistent decode kernel may take the op over.
#define SLUICE_ADAPTED_SLOTS(SLOT) \
  SLOT(embed) SLOT(rms_norm) SLOT(glu) SLOT(clamped_glu) SLOT(rope_store) SLOT(attention) \
  SLOT(select_entries) SLOT(gather_rows) SLOT(combine) SLOT(lora_shrink) SLOT(lora_expand)
// One kernel for all instruction sets: that of the reference or of kernels/cpu/dispatch.
#define SLUICE_SHARED_SLOTS(SLOT) \
  SLOT(copy_rows) SLOT(feed_sampled) SLOT(pooling) SLOT(route) SLOT(choose_physical) SLOT(group_by_expert) \
  SLOT(expert_matmul) SLOT(head_matmul) SLOT(matrix_slots) SLOT(all_reduce) SLOT(all_gather) SLOT(all_to_all) \
  SLOT(broadcast) SLOT(send) SLOT(receive)
// clang-format on
#define SLUICE_OP_SLOTS(SLOT) SLUICE_PLAIN_SLOTS(SLOT) SLUICE_ADAPTED_SLOTS(SLOT) SLUICE_SHARED_SLOTS(SLOT)

#define SLUICE_SLOT(name) \
  , Slot<decltype(&OpTable::name)> { #name, &OpTable::name }
inline constexpr auto kSlots =
    std::apply([](int, auto... slots) { return std::tuple{slots...}; }, std::tuple{0 SLUICE_OP_SLOTS(SLUICE_SLOT)});
#undef SLUICE_SLOT
// Fails if the list lacks a slot.
static_assert(sizeof(OpTable) == std::tuple_size_v<decltype(kSlots)> * sizeof(void (*)()));

// The function type of a slot: `SlotFunction<&OpTable::copy> copy;` declares a kernel of that signature.
template <class Member>
struct SlotTraits;
template <class F>
struct SlotTraits<F * OpTable::*> {
  using Function = F;
};
template <auto Member>
using SlotFunction = typename SlotTraits<decltype(Member)>::Function;

// The ops of a device: the table, the matmul kernels by the type of the stored weights, and which fused operations the
// kernels support. If a device does not fuse an operation, the checked calls below compose it from other ops, so layers
// need not ask.
struct Ops : OpTable {
  std::map<DType, MatmulKernels> matmul;
  bool gathers_rows = false;  // the kernel in slot expert_matmul accepts ExpertMatmulArgs::rows
  // Returns whether the kernel in slot rope_store applies head norms for this rotation and cache. Null: never.
  bool (*normalizes_heads)(const Tensor& cos_sin, bool interleaved, const CacheTensor& keys) = nullptr;
  // Begins to send x to the other ranks while later ops run. An all_reduce of the same x follows; sums that were begun
  // are called in the same order. Null: a sum begins when it is called.
  void (*begin_sum)(Queue&, Communicator&, const Tensor& x) = nullptr;
  // all_reduce and the norm of its result in one kernel. Returns false, and does nothing, if there is no kernel for
  // these sizes; all ranks decide alike. Null: never.
  bool (*all_reduce_norm)(Queue&, Communicator&, const Tensor& out, const Tensor& x, bool accumulate,
                          const RowNorm& norm) = nullptr;
  // The ops of compressed attention (ops/compression.h).
  const CompressionOps* compression = nullptr;
};

// The adapters of the rows that are computed at the moment.
struct AdapterRows {
  Indices slots;   // [rows] see LoraShrinkArgs
  Tensor scratch;  // fp32, for LoraShrinkArgs::inner of any layer
};

// What a layer needs to run: the ops, the queue they run on, and memory for activations. Does not own them.
struct Ctx {
  const Ops& ops;  // the ops of the queue's device, or a wrapper around them (ops/timed.h)
  Queue& queue;
  Arena& arena;
  const AdapterRows* adapters = nullptr;  // null: no row has an adapter
  Communicator* communicator = nullptr;   // the ranks that compute each layer together; null: there is one
  Communicator* key_ranks = nullptr;      // those of them that divide the keys of a sequence (KeyShare); null: none do
  Communicator* pipeline = nullptr;       // all ranks, if they compute different layers; else null

  Ctx(Queue& queue, Arena& arena) : ops(queue.device().ops()), queue(queue), arena(arena) {}
  Ctx(const Ops& ops, Queue& queue, Arena& arena) : ops(ops), queue(queue), arena(arena) {}
};

// Returns the type that a matmul of `rows` rows rounds its inputs to. The op that produces the inputs may write that
// type, into rows from take_rows(), instead of fp32; the matmul then need not convert them. Returns fp32 if the device
// gains nothing.
DType input_type(const Ctx&, const Weight& weight, int64_t rows);
// Returns the type that a matmul of `rows` rows may write where only ops that round their own results read it: gate and
// up of a gated unit; queries, keys and values. The loss of precision is then small. Returns fp32 if the device gains
// nothing.
DType output_type(const Ctx&, const Weight& weight, int64_t rows);
// Returns whether rope_store applies head norms itself; it then accepts rows of output_type(). Otherwise it calls
// rms_norm first, which needs fp32.
bool normalizes_heads(const Ctx&, const Tensor& cos_sin, bool interleaved, const CacheTensor& keys);

// take_rows returns dense rows of `type` in arena memory that would hold as many rows of fp32. rows_in returns them in
// the memory of an fp32 tensor whose contents are no longer needed. The scales of 8-bit float rows (E4M3) follow the
// rows, one per row: an element is its code times the scale. row_scales returns them.
Tensor take_rows(Ctx&, DType type, int64_t rows, int64_t columns);
Tensor rows_in(const Tensor& memory, DType type);
inline float* row_scales(const Tensor& rows) {
  return reinterpret_cast<float*>(rows.data + rows.shape[0] * rows.shape[1]);
}

// Checked calls. Each one CHECKs the shapes given above: a mismatch is a bug in the layer, not an error in the input.
void embed(Ctx&, Tensor out, const Tensor& table, Indices ids);  // out[i, :] = fp32(table[ids[i], :])
// out = x / rms(x) * (weight + weight_offset) for each vector of the last dimension. x and out may be the same tensor.
// They may be strided [rows, cols] or [rows, groups, cols] (the heads of a row). weight may be null (no scale). out is
// fp32, or rows from take_rows() of input_type().
void rms_norm(Ctx&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset = 0.0f);
void layer_norm(Ctx&, Tensor out, Tensor x, const float* weight, const float* bias, float eps);  // either may be null
// Scales each row of x to the root mean square of the same row of `like`:
// x *= sqrt(mean(like^2) / max(mean(x^2), floor)).
void match_rms(Ctx&, Tensor x, Tensor like, float floor);
// Sparsifies each row by a threshold: x = max(x - (mean + deviations * std), 0), where std has divisor n (Gemma 3n).
// For normally distributed rows this keeps about a fixed share of the values, the largest ones.
void gaussian_top_k(Ctx&, Tensor x, float deviations);
void glu(Ctx&, Tensor out, Tensor gate_up,
         Activation activation);  // out = act(gate) * up; gate_up is [tokens, 2n], gate columns first, in fp32 or
                                  // output_type(). The types of out are those of rms_norm
// out = g * sigmoid(alpha * g) * (u + 1) with g = min(gate, limit) and u = min(max(up, -limit), limit) (gpt-oss)
void clamped_glu(Ctx&, Tensor out, Tensor gate_up, float alpha, float limit);
void unary(Ctx&, Tensor x, Activation activation);                                         // in place
void xielu(Ctx&, Tensor x, const Xielu& parameters);                                       // in place
void map(Ctx&, Tensor x, Map function, float parameter);                                   // in place
void copy(Ctx&, Tensor out, Tensor x);                                                     // out = x
void add(Ctx&, Tensor out, Tensor x, float scale = 1.0f);                                  // out += scale * x
void multiply(Ctx&, Tensor out, Tensor x, Activation activation = Activation::kIdentity);  // out *= activation(x)
// x = min(max(ln(1 + e^(x + bias)), low), high) in place; bias [columns] may be null.
void softplus(Ctx&, Tensor x, const float* bias, float low, float high);
void matmul(Ctx&, const MatmulArgs& args);
void rope_store(Ctx&, const RopeStoreArgs& args);
void latent_store(Ctx&, const LatentStoreArgs& args);
void attention(Ctx&, const AttentionArgs& args);
void merge_parts(Ctx&, const MergePartsArgs& args);
void causal_conv(Ctx&, const CausalConvArgs& args);
void selective_scan(Ctx&, const SelectiveScanArgs& args);
void head_scan(Ctx&, const HeadScanArgs& args);
void delta_rule(Ctx&, const DeltaRuleArgs& args);
void gated_lru(Ctx&, const GatedLruArgs& args);
void sum_rows(Ctx&, const SumRowsArgs& args);
void gather_rows(Ctx&, Tensor out, Tensor x, Indices rows);
void gather_rows(Ctx&, Tensor out, Tensor x, const Tensor& rows);  // `rows` is an int32 tensor that an op wrote
// to[pairs[1], ...] = from[pairs[0], ...], then to[pairs[3], ...] = from[pairs[2], ...], and so on. `to` and `from`
// have the same plain type and rows of the same size. They are the same tensor, or do not overlap; no two pairs name
// the same row of `to` then.
void copy_rows(Ctx&, Tensor to, Tensor from, Indices pairs);
void sample(Ctx&, const SampleArgs& args);
void feed_sampled(Ctx&, const FeedSampledArgs& args);
void pooling(Ctx&, const PoolingArgs& args);
void route(Ctx&, const RouteArgs& args);
void group_by_expert(Ctx&, const GroupByExpertArgs& args);
void expert_matmul(Ctx&, const ExpertMatmulArgs& args);
void head_matmul(Ctx&, const HeadMatmulArgs& args);
void combine(Ctx&, const CombineArgs& args);

void lora_shrink(Ctx&, const LoraShrinkArgs& args);
void lora_expand(Ctx&, const LoraExpandArgs& args);
void matrix_slots(Ctx&, const MatrixSlotsArgs& args);

// Ops between ranks. Every rank calls them in the same order, with tensors of the same shapes. They throw
// Error(kInternal) if a rank is lost. Backends without Capabilities::collectives refuse them.
// out = (accumulate ? out : 0) + the sum of x over the ranks, added in the order of the ranks; out may be x. A `norm`
// then reads out.
void all_reduce(Ctx&, Tensor out, Tensor x, bool accumulate, const RowNorm* norm = nullptr);
// The same for a large x that compute(first row, rows) makes. It may be called for several runs of rows, in order. Rows
// that are made travel while the next ones are computed.
void all_reduce(Ctx&, Tensor out, Tensor x, bool accumulate,
                const std::function<void(int64_t first, int64_t rows)>& compute, const RowNorm* norm = nullptr);
// out = the columns x of rank 0, 1, ... side by side. A rank has share_of(columns of out) columns (parallel/share.h).
void all_gather(Ctx&, Tensor out, Tensor x);
// out = the columns that rank 0, 1, ... has for this rank, side by side. x has the columns for rank 0, 1, ... side by
// side, as many for each.
void all_to_all(Ctx&, Tensor out, Tensor x);
// Replaces a dense tensor x of whole 32-bit words by that of rank 0 of all ranks.
void broadcast(Ctx&, Tensor x);
// Copies a dense tensor x of whole 32-bit words to or from another rank of Ctx::pipeline, which makes the opposite call
// with as many bytes.
void send(Ctx&, int rank, Tensor x);
void receive(Ctx&, int rank, Tensor x);

}  // namespace sluice::ops
