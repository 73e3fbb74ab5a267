// The one seam between models and hardware: a table of operations per device (style G11). Layers call the free
// functions of this header, which check shapes and types once and jump through the slot; kernels register themselves
// (Provide) and are never included from above. An empty slot means "this device cannot": asked at load, not in a step.
//
// Conventions: activations are fp32 unless a shape comment says otherwise. `tokens` rows of a step are a flat batch
// of sequences (nn/batch.h). Every op gives a row the same bits whatever other rows are in the batch: sums run in an
// order that depends only on the row's own data. That is what makes prefix reuse, chunking and batching exact.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "tensor/tensor.h"

namespace sluice {
class ThreadPool;
}

namespace sluice::ops {

// A view of a weight matrix [n, k] in the layout its device multiplies best: MatmulKernels::packed_bytes(n, k) of
// memory that somebody else owns.
struct Weight {
  DType dtype = nullptr;  // the type the matrix is stored in
  int64_t n = 0;          // outputs
  int64_t k = 0;          // inputs
  std::byte* data = nullptr;
};

// Layouts are sequences of whole panels: outputs from a multiple of this on begin at packed_bytes(that many, k), so
// that stacked matrices (experts, heads) are windows of one weight.
inline constexpr int64_t kWeightPanel = 16;

// out[t, :] = (accumulate ? out[t, :] : 0) + x[t, :] * weight^T + bias
struct MatmulArgs {
  Tensor out;  // [tokens, n] fp32
  Tensor x;    // [tokens, k] fp32
  const Weight* weight = nullptr;
  const float* bias = nullptr;  // [n] or null
  bool accumulate = false;      // adds into out: the residual stream
};

// Rotates q and k by position (RoPE, Su et al. 2021, arXiv:2104.09864) and appends k and v to the paged cache.
// Without k (an empty tensor) only q is rotated and v and the caches are not looked at but for head_dim.
struct RopeStoreArgs {
  Tensor q;        // [tokens, heads * head_dim] fp32, rotated in place
  Tensor k;        // [tokens, kv_heads * head_dim] fp32
  Tensor v;        // [tokens, kv_heads * value_dim] fp32
  Tensor cos_sin;  // [positions, rotary_dim] fp32: cos of rotary_dim/2 frequencies, then sin; empty: no rotation
  bool interleaved = false;            // pairs (2i, 2i+1) (GPT-J) instead of (i, i + rotary_dim/2) (GPT-NeoX, Llama)
  Tensor k_cache;                      // [blocks, kv_heads, block_size, head_dim] fp32, bf16 or fp16
  Tensor v_cache;                      // [blocks, kv_heads, block_size, value_dim]
  std::span<const int32_t> positions;  // [tokens] rows of cos_sin
  std::span<const int32_t> slots;      // [tokens] block * block_size + offset
};

// Causal attention of a flat batch over the paged cache: softmax(scale * q k^T) v with online softmax (Milakov and
// Gimelshein 2018, arXiv:1805.02867; paging: Kwon et al. 2023, arXiv:2309.06180). k and v of this step are already in
// the cache. Sequence s owns rows query_start[s] .. query_start[s+1]; its last row is at position kv_len[s] - 1.
struct AttentionArgs {
  Tensor out;                            // [tokens, heads * value_dim] fp32
  Tensor q;                              // [tokens, heads * head_dim] fp32, rotated
  Tensor k_cache;                        // [blocks, kv_heads, block_size, head_dim]
  Tensor v_cache;                        // [blocks, kv_heads, block_size, value_dim]
  std::span<const int32_t> query_start;  // [sequences + 1]
  std::span<const int32_t> kv_len;       // [sequences] tokens in the cache after this step
  std::span<const int32_t> block_table;  // [sequences, block_table_stride]
  int block_table_stride = 0;
  int heads = 0;  // query heads; head h reads kv head h / (heads / kv_heads)
  float scale = 1.0f;
  int window = 0;                       // > 0: a row sees only the last `window` positions, its own included
  float soft_cap = 0.0f;                // > 0: scores become cap * tanh(score / cap)
  const float* sinks = nullptr;         // [heads] extra logit in the softmax's denominator, or null
  const float* alibi_slopes = nullptr;  // [heads] or null: adds slope * (key position - query position)
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kQuickGelu, kTanh, kSigmoid, kIdentity };
// Hugging Face's names (hidden_act); throws Error(kUnsupportedModel) for an unknown one.
Activation parse_activation(std::string_view name);
float activate(Activation activation, float x);  // scalar reference

// Functions of an element and one positive parameter p: x * p, min(max(x, -p), p), p * tanh(x / p).
enum class Map { kScale, kClamp, kSoftCap };

// xIELU (Huang and Schlag 2024, arXiv:2411.13010): alpha_p x^2 + beta x above zero, else
// alpha_n (expm1(min(x, eps)) - x) + beta x.
struct Xielu {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};

struct MatmulKernels {
  size_t (*packed_bytes)(int64_t n, int64_t k) = nullptr;
  // Writes rows [row, row + from.rows()) of the [n, k] matrix `into`; `from` is [rows, k] of any plain float type.
  // Rows may come in any order and from several source tensors (q, k and v of one fused weight), each row once; those
  // that never come are zero, as the memory was.
  void (*pack)(ThreadPool& pool, const Weight& into, int64_t row, const Tensor& from) = nullptr;
  void (*matmul)(ThreadPool& pool, const MatmulArgs& args) = nullptr;
};

struct Ops {
  void (*embed)(ThreadPool&, Tensor out, const Tensor& table, std::span<const int32_t> ids) = nullptr;
  void (*rms_norm)(ThreadPool&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset) = nullptr;
  void (*layer_norm)(ThreadPool&, Tensor out, Tensor x, const float* weight, const float* bias, float eps) = nullptr;
  void (*glu)(ThreadPool&, Tensor out, Tensor gate_up, Activation activation) = nullptr;
  void (*unary)(ThreadPool&, Tensor x, Activation activation) = nullptr;
  void (*xielu)(ThreadPool&, Tensor x, const Xielu& parameters) = nullptr;
  void (*map)(ThreadPool&, Tensor x, Map function, float parameter) = nullptr;
  void (*add)(ThreadPool&, Tensor out, Tensor x, float scale) = nullptr;
  void (*rope_store)(ThreadPool&, const RopeStoreArgs&) = nullptr;
  void (*attention)(ThreadPool&, const AttentionArgs&) = nullptr;
  void (*gather_rows)(ThreadPool&, Tensor out, Tensor x, std::span<const int32_t> rows) = nullptr;
  void (*scatter_add)(ThreadPool&, Tensor out, Tensor x, std::span<const int32_t> rows,
                      std::span<const float> scales) = nullptr;
  std::map<DType, MatmulKernels> matmul;  // by stored type
};

// A backend: named table plus a probe. "reference" (scalar, this folder) always exists; the CPU kernels register
// "cpu-avx2", "cpu-avx512", "cpu-avx512-bf16". The best usable one is the one of highest rank.
struct Backend {
  std::string_view name;
  int rank = 0;
  bool (*usable)() = nullptr;  // does this machine have the instructions?
  const Ops& (*table)() = nullptr;
};
// Usable backend of that name, or the best one for an empty name. Throws Error(kUnsupportedModel) listing the names.
const Backend& select_backend(std::string_view name = {});

// What a layer needs to run: where, on which threads, into which memory.
struct Ctx {
  const Ops& ops;
  ThreadPool& pool;
  Arena& arena;
};

// Checked calls. Shapes as above; each CHECKs them (a mismatch is a bug of the layer, not of the input).
void embed(Ctx&, Tensor out, const Tensor& table, std::span<const int32_t> ids);  // out[i, :] = fp32(table[ids[i], :])
// out = x / rms(x) * (weight + weight_offset) per vector of the last dimension; x and out may be the same, and may be
// strided [rows, cols] or [rows, groups, cols] (the heads of a row); weight may be null (no scale).
void rms_norm(Ctx&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset = 0.0f);
void layer_norm(Ctx&, Tensor out, Tensor x, const float* weight, const float* bias, float eps);  // either may be null
void glu(Ctx&, Tensor out, Tensor gate_up,
         Activation activation);  // out = act(gate) * up; gate_up is [tokens, 2n]: gate columns, then up
void unary(Ctx&, Tensor x, Activation activation);         // in place
void xielu(Ctx&, Tensor x, const Xielu& parameters);       // in place
void map(Ctx&, Tensor x, Map function, float parameter);   // in place
void add(Ctx&, Tensor out, Tensor x, float scale = 1.0f);  // out += scale * x
void matmul(Ctx&, const MatmulArgs& args);
void rope_store(Ctx&, const RopeStoreArgs& args);
void attention(Ctx&, const AttentionArgs& args);
void gather_rows(Ctx&, Tensor out, Tensor x, std::span<const int32_t> rows);
// out[rows[i], :] += scales[i] * x[i, :]; no row twice.
void scatter_add(Ctx&, Tensor out, Tensor x, std::span<const int32_t> rows, std::span<const float> scales);

}  // namespace sluice::ops
