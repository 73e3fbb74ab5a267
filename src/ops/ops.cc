// Checked calls of the op table, and activations by name.
#include "ops/ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/registry.h"
#include "ops/checks.h"
#include "ops/lora_matmul.h"
#include "ops/sample.h"
#include "sluice/error.h"

namespace sluice::ops {
namespace {

void check_same_shape(const Tensor& a, const Tensor& b) {
  check_f32(a, "out");
  check_f32(b, "x");
  CHECK(a.shape == b.shape, "{} against {}", a.shape.str(), b.shape.str());
}

void check_scales(const CacheTensor& cache) {
  CHECK((cache.dtype == &kInt8) == (cache.scales != nullptr), "scales of a cache of {}", cache.dtype->name);
}

void check_cache(const CacheTensor& k_cache, const CacheTensor& v_cache) {
  CHECK(k_cache.shape.rank() == 4 && v_cache.shape.rank() == 4, "k {}, v {}", k_cache.shape.str(), v_cache.shape.str());
  for (int i = 0; i < 3; ++i) CHECK(k_cache.shape[i] == v_cache.shape[i]);
  CHECK(k_cache.dense() && v_cache.dense() && k_cache.dtype == v_cache.dtype);
  check_scales(k_cache), check_scales(v_cache);
}

// Returns the columns of a value, which is in its own cache or is the first columns of the key.
int64_t check_values(const AttentionArgs& args) {
  if (args.v_cache.data == nullptr) {
    CHECK(args.k_cache.shape.rank() == 4 && args.k_cache.dense(), "k {}", args.k_cache.shape.str());
    CHECK(args.value_dim > 0 && args.value_dim <= args.k_cache.shape[3], "value_dim {}", args.value_dim);
    check_scales(args.k_cache);
    return args.value_dim;
  }
  check_cache(args.k_cache, args.v_cache);
  CHECK(args.value_dim == 0, "value_dim {} beside a cache of values", args.value_dim);
  return args.v_cache.shape[3];
}

void check_selected(const AttentionArgs& args) {
  if (args.selected.data == nullptr) return;
  CHECK(args.selected.shape.rank() == 2 && args.selected.shape[0] == args.q.shape[0] && args.selected.shape[1] > 0,
        "selected {}", args.selected.shape.str());
  check_list(args.selected, "selected", args.selected.shape.elements());
  CHECK(args.k_cache.shape[1] == 1 && args.v_cache.data == nullptr, "selected keys beside a cache of values");
  CHECK(args.causal && args.window == 0 && args.chunk == 0, "selected keys and a mask");
  CHECK(args.alibi_slopes == nullptr && args.relative_bias == nullptr, "selected keys and biases by distance");
  CHECK(args.share.whole() && args.log_sums.data == nullptr, "selected keys of a part of the keys");
  CHECK(args.gathered.dtype == &kInt8 && args.gathered.dense(), "scratch of {}", args.gathered.dtype->name);
}

struct NamedActivation {
  std::string_view name;
  Activation activation;
};
constexpr NamedActivation kActivations[] = {
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"gelu_python", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_python_tanh", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"gelu_accurate", Activation::kGeluTanh},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},
    {"quick_gelu", Activation::kQuickGelu},
    {"tanh", Activation::kTanh},
    {"sigmoid", Activation::kSigmoid},
    {"linear", Activation::kIdentity},
};

}  // namespace

std::optional<Activation> parse_activation(std::string_view name) {
  for (const NamedActivation& known : kActivations) {
    if (known.name == name) return known.activation;
  }
  return std::nullopt;
}

float activate(Activation activation, float x) {
  const double v = x;
  switch (activation) {
    case Activation::kSilu:
      return static_cast<float>(v / (1.0 + std::exp(-v)));
    case Activation::kGelu:
      return static_cast<float>(0.5 * v * std::erfc(-v * M_SQRT1_2));
    case Activation::kGeluTanh:  // (1 + tanh(u)) / 2 equals sigmoid(2u), which has no cancellation
      return static_cast<float>(v / (1.0 + std::exp(-M_SQRT2 * M_2_SQRTPI * (v + 0.044715 * v * v * v))));
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kRelu2:
      return x < 0.0f ? 0.0f : x * x;
    case Activation::kQuickGelu:
      return static_cast<float>(v / (1.0 + std::exp(-1.702 * v)));
    case Activation::kTanh:
      return static_cast<float>(std::tanh(v));
    case Activation::kSigmoid:
      return static_cast<float>(1.0 / (1.0 + std::exp(-v)));
    case Activation::kIdentity:
      return x;
  }
  CHECK(false, "activation {}", static_cast<int>(activation));
}

void embed(Ctx& ctx, Tensor out, const Tensor& table, Indices ids) {
  CHECK(table.shape.rank() == 2, "table is {}", table.shape.str());
  check_matrix(out, "out", static_cast<int64_t>(ids.size()), table.shape[1]);
  for (int32_t id : ids) CHECK(id >= 0 && id < table.shape[0], "id {} of a table of {}", id, table.shape[0]);
  ctx.ops.embed(ctx.queue, out, table, ids);
}

namespace {

void check_normed(const Tensor& out, const Tensor& x) {
  if (out.dtype == &kFloat32) return check_same_shape(out, x);
  check_matrix(x, "x", -1, -1);
  check_rows(out, "out", x.shape[0], x.shape[1]);
}

const MatmulKernels& kernels_of(const Ctx& ctx, const Weight& weight) {
  CHECK(weight.dtype != nullptr);
  const auto kernels = ctx.ops.matmul.find(weight.dtype);
  CHECK(kernels != ctx.ops.matmul.end(), "no kernels for weights of type {}", weight.dtype->name);
  return kernels->second;
}

// Checks for fp32 or a type that this device's matmuls may return (output_type).
void check_given(const Ctx& ctx, const Tensor& tensor, const char* name) {
  if (tensor.dtype == &kFloat32) return;
  const auto kernels = ctx.ops.matmul.find(&kBFloat16);
  const bool given = kernels != ctx.ops.matmul.end() && kernels->second.output_type != nullptr;
  CHECK(tensor.dtype == &kBFloat16 && given, "{} is {}, which no matmul returns here", name, tensor.dtype->name);
}

}  // namespace

DType input_type(const Ctx& ctx, const Weight& weight, int64_t rows) {
  const MatmulKernels& kernels = kernels_of(ctx, weight);
  return kernels.input_type != nullptr && rows > 0 ? kernels.input_type(ctx.queue, weight, rows) : &kFloat32;
}

bool normalizes_heads(const Ctx& ctx, const Tensor& cos_sin, bool interleaved, const CacheTensor& keys) {
  return ctx.ops.normalizes_heads != nullptr && ctx.ops.normalizes_heads(cos_sin, interleaved, keys);
}

DType output_type(const Ctx& ctx, const Weight& weight, int64_t rows) {
  const MatmulKernels& kernels = kernels_of(ctx, weight);
  return kernels.output_type != nullptr && rows > 0 ? kernels.output_type(ctx.queue, weight, rows) : &kFloat32;
}

Tensor take_rows(Ctx& ctx, DType type, int64_t rows, int64_t columns) {
  return rows_in(ctx.arena.take(&kFloat32, {rows, columns}), type);
}

Tensor rows_in(const Tensor& memory, DType type) {
  CHECK(memory.shape.rank() == 2 && memory.dense(), "memory is {}", memory.shape.str());
  CHECK(type != &kFloat8E4M3 || memory.shape[1] % 4 == 0, "8-bit floats in rows of {}", memory.shape[1]);
  return Tensor(memory.data, type, memory.shape);
}

void rms_norm(Ctx& ctx, Tensor out, Tensor x, const float* weight, float eps, float weight_offset) {
  check_normed(out, x);
  CHECK(x.shape.rank() == 2 || x.shape.rank() == 3, "x is {}", x.shape.str());
  ctx.ops.rms_norm(ctx.queue, out, x, weight, eps, weight_offset);
}

void layer_norm(Ctx& ctx, Tensor out, Tensor x, const float* weight, const float* bias, float eps) {
  check_normed(out, x);
  CHECK(x.shape.rank() == 2 || x.shape.rank() == 3, "x is {}", x.shape.str());
  ctx.ops.layer_norm(ctx.queue, out, x, weight, bias, eps);
}

void match_rms(Ctx& ctx, Tensor x, Tensor like, float floor) {
  check_matrix(x, "x", -1, -1);
  check_matrix(like, "like", x.shape[0], x.shape[1]);
  CHECK(floor > 0, "floor {}", floor);
  ctx.ops.match_rms(ctx.queue, x, like, floor);
}

void gaussian_top_k(Ctx& ctx, Tensor x, float deviations) {
  check_matrix(x, "x", -1, -1);
  ctx.ops.gaussian_top_k(ctx.queue, x, deviations);
}

void glu(Ctx& ctx, Tensor out, Tensor gate_up, Activation activation) {
  check_rows(out, "out", -1, -1);
  check_extents(gate_up, "gate_up", out.shape[0], 2 * out.shape[1]);
  check_given(ctx, gate_up, "gate_up");
  ctx.ops.glu(ctx.queue, out, gate_up, activation);
}

void clamped_glu(Ctx& ctx, Tensor out, Tensor gate_up, float alpha, float limit) {
  check_matrix(out, "out", -1, -1);
  check_matrix(gate_up, "gate_up", out.shape[0], 2 * out.shape[1]);
  CHECK(limit > 0, "limit {}", limit);
  ctx.ops.clamped_glu(ctx.queue, out, gate_up, alpha, limit);
}

void unary(Ctx& ctx, Tensor x, Activation activation) {
  check_matrix(x, "x", -1, -1);
  ctx.ops.unary(ctx.queue, x, activation);
}

void xielu(Ctx& ctx, Tensor x, const Xielu& parameters) {
  check_matrix(x, "x", -1, -1);
  ctx.ops.xielu(ctx.queue, x, parameters);
}

void map(Ctx& ctx, Tensor x, Map function, float parameter) {
  check_matrix(x, "x", -1, -1);
  CHECK(parameter > 0, "parameter {}", parameter);
  ctx.ops.map(ctx.queue, x, function, parameter);
}

void copy(Ctx& ctx, Tensor out, Tensor x) {
  check_matrix(out, "out", -1, -1);
  check_matrix(x, "x", out.shape[0], out.shape[1]);
  ctx.ops.copy(ctx.queue, out, x);
}

void add(Ctx& ctx, Tensor out, Tensor x, float scale) {
  check_matrix(out, "out", -1, -1);
  check_matrix(x, "x", out.shape[0], out.shape[1]);
  ctx.ops.add(ctx.queue, out, x, scale);
}

namespace {

void check_matmul(const Ctx& ctx, const MatmulArgs& args) {
  CHECK(args.weight != nullptr && args.weight->data != nullptr);
  check_rows(args.x, "x", -1, args.weight->k);
  const int64_t rows = args.x.shape[0];
  check_rows(args.out, "out", rows, args.weight->n);
  CHECK(args.x.dtype == &kFloat32 || args.x.dtype == input_type(ctx, *args.weight, rows), "x is {}",
        args.x.dtype->name);
  if (args.out.dtype != &kFloat32) {
    CHECK(args.out.dtype == output_type(ctx, *args.weight, rows) && args.bias == nullptr && !args.accumulate,
          "out is {}", args.out.dtype->name);
  }
}

}  // namespace

void matmul(Ctx& ctx, const MatmulArgs& args) {
  check_matmul(ctx, args);
  if (args.x.shape[0] == 0) return;  // a step without logits
  kernels_of(ctx, *args.weight).matmul(ctx.queue, args);
}

namespace {

void norm_heads(Ctx& ctx, Tensor x, const HeadNorm& norm, int64_t head_dim) {
  if (x.data == nullptr || norm.weight == nullptr) return;
  x.shape = Shape{x.shape[0], x.shape[1] / head_dim, head_dim};
  rms_norm(ctx, x, x, norm.weight, norm.eps);
}

}  // namespace

void rope_store(Ctx& ctx, const RopeStoreArgs& args) {
  check_cache(args.k_cache, args.v_cache);
  const auto tokens = static_cast<int64_t>(args.positions.size());
  const int64_t kv_heads = args.k_cache.shape[1], head_dim = args.k_cache.shape[3];
  check_extents(args.q, "q", tokens, -1);
  check_given(ctx, args.q, "q");
  CHECK(args.q.shape[1] % head_dim == 0, "q {}, head_dim {}", args.q.shape.str(), head_dim);
  if (args.k.data != nullptr) {
    check_extents(args.k, "k", tokens, kv_heads * head_dim);
    check_extents(args.v, "v", tokens, kv_heads * args.v_cache.shape[3]);
    CHECK(args.k.dtype == args.q.dtype && args.v.dtype == args.q.dtype, "q is {}, k {}, v {}", args.q.dtype->name,
          args.k.dtype->name, args.v.dtype->name);
    CHECK(args.slots.size() == args.positions.size());
    const int64_t slots = args.k_cache.shape[0] * args.k_cache.shape[2];
    for (int32_t slot : args.slots) CHECK(slot >= -1 && slot < slots, "slot {} of {}", slot, slots);
  }
  if (args.cos_sin.data != nullptr) {
    check_matrix(args.cos_sin, "cos_sin", -1, -1);
    const int64_t positions = args.cos_sin.shape[0], rotary_dim = args.cos_sin.shape[1];
    CHECK(rotary_dim % 2 == 0 && rotary_dim <= head_dim, "rotary_dim {}, head_dim {}", rotary_dim, head_dim);
    for (int32_t p : args.positions) CHECK(p >= 0 && p < positions, "position {} of {}", p, positions);
  }
  const bool norms = args.q_norm.weight != nullptr || args.k_norm.weight != nullptr;
  if (!norms || normalizes_heads(ctx, args.cos_sin, args.interleaved, args.k_cache)) {
    return ctx.ops.rope_store(ctx.queue, args);
  }
  norm_heads(ctx, args.q, args.q_norm, head_dim);
  norm_heads(ctx, args.k, args.k_norm, head_dim);
  RopeStoreArgs normed = args;
  normed.q_norm = normed.k_norm = {};
  ctx.ops.rope_store(ctx.queue, normed);
}

void latent_store(Ctx& ctx, const LatentStoreArgs& args) {
  const auto tokens = static_cast<int64_t>(args.positions.size());
  CHECK(args.k_cache.shape.rank() == 4 && args.k_cache.dense() && args.k_cache.shape[1] == 1, "k {}",
        args.k_cache.shape.str());
  check_scales(args.k_cache);
  check_matrix(args.latent, "latent", tokens, -1);
  check_matrix(args.k_rope, "k_rope", tokens, args.cos_sin.shape[1]);
  const int64_t rotary = args.k_rope.shape[1], head_dim = args.latent.shape[1] + rotary;
  CHECK(args.k_cache.shape[3] == head_dim && rotary % 2 == 0, "head_dim {}, rotary {}", args.k_cache.shape[3], rotary);
  check_matrix(args.q_rope, "q_rope", tokens, -1);
  CHECK(args.q_rope.shape[1] % rotary == 0);
  check_matrix(args.q, "q", tokens, args.q_rope.shape[1] / rotary * head_dim);
  CHECK(args.slots.size() == args.positions.size());
  const int64_t slots = args.k_cache.shape[0] * args.k_cache.shape[2];
  for (int32_t slot : args.slots) CHECK(slot >= -1 && slot < slots, "slot {} of {}", slot, slots);
  check_matrix(args.cos_sin, "cos_sin", -1, rotary);
  for (int32_t p : args.positions) CHECK(p >= 0 && p < args.cos_sin.shape[0], "position {}", p);
  ctx.ops.latent_store(ctx.queue, args);
}

void attention(Ctx& ctx, const AttentionArgs& args) {
  const int64_t value_dim = check_values(args);
  const int64_t blocks = args.k_cache.shape[0], kv_heads = args.k_cache.shape[1], block_size = args.k_cache.shape[2];
  CHECK(args.heads > 0 && args.heads % kv_heads == 0, "{} heads over {} kv heads", args.heads, kv_heads);
  CHECK(block_size % 8 == 0, "blocks of {} keys", block_size);
  CHECK(args.query_start.size() == args.kv_len.size() + 1 && args.query_start[0] == 0);
  const auto sequences = static_cast<int64_t>(args.kv_len.size());
  check_extents(args.q, "q", args.query_start.back(), args.heads * args.k_cache.shape[3]);
  check_given(ctx, args.q, "q");
  check_rows(args.out, "out", args.query_start.back(), args.heads * value_dim);
  CHECK(args.out.dtype != &kFloat8E4M3, "results of attention as 8-bit floats");
  CHECK(static_cast<int64_t>(args.block_table.size()) >= sequences * args.block_table_stride);
  CHECK(args.causal || args.alibi_slopes == nullptr, "slopes without causal attention");
  CHECK(args.chunk == 0 || (args.chunk > 0 && args.causal && args.window == 0), "chunk {}", args.chunk);
  CHECK(args.first == 0 || (args.first > 0 && args.causal), "first position {}", args.first);
  CHECK(args.relative_bias == nullptr || args.relative_reach >= 0, "reach {}", args.relative_reach);
  const KeyShare& share = args.share;
  CHECK(share.run > 0 && block_size % share.run == 0 && share.part >= 0 && share.part < share.parts,
        "part {} of {} in runs of {}", share.part, share.parts, share.run);
  CHECK(share.whole() || args.log_sums.data != nullptr, "results of a part of the keys without their sums");
  CHECK(share.whole() || (args.alibi_slopes == nullptr && args.relative_bias == nullptr),
        "biases by distance over a part of the keys");
  if (args.log_sums.data != nullptr) {
    check_matrix(args.log_sums, "log_sums", args.query_start.back(), args.heads);
    CHECK(args.log_sums.dense(), "log_sums has gaps");
    CHECK(args.sinks == nullptr && args.out.dtype == &kFloat32, "sums of exponentials with sinks or rounded results");
  }
  check_selected(args);
  for (int64_t s = 0; s < sequences; ++s) {
    const int rows = args.query_start[s + 1] - args.query_start[s];
    CHECK(rows >= 0 && args.kv_len[s] >= rows, "sequence {}: {} rows, kv_len {}", s, rows, args.kv_len[s]);
    const int64_t used = rows == 0 ? 0 : (share.count(args.kv_len[s]) + block_size - 1) / block_size;
    CHECK(used <= args.block_table_stride, "sequence {} needs {} blocks of {}", s, used, args.block_table_stride);
    // Blocks that slid out of the window may be freed. Only blocks that a row attends to must exist.
    const int64_t position = args.kv_len[s] - rows;
    CHECK(rows == 0 || position >= args.first, "sequence {}: position {} before {}", s, position, args.first);
    int64_t first = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
    if (args.chunk > 0) first = position / args.chunk * args.chunk;
    first = share.count(first) / block_size;
    const int32_t* table = args.block_table.data() + s * args.block_table_stride;
    for (int64_t b = first; b < used; ++b) {
      CHECK(table[b] >= 0 && table[b] < blocks, "sequence {} block {} is {} of {}", s, b, table[b], blocks);
    }
  }
  ctx.ops.attention(ctx.queue, args);
}

void merge_parts(Ctx& ctx, const MergePartsArgs& args) {
  CHECK(args.parts > 0 && args.heads > 0, "{} parts of {} heads", args.parts, args.heads);
  check_matrix(args.out, "out", -1, -1);
  CHECK(args.out.shape[1] % args.heads == 0, "{} columns of {} heads", args.out.shape[1], args.heads);
  check_matrix(args.x, "x", args.out.shape[0], args.parts * args.out.shape[1]);
  check_matrix(args.log_sums, "log_sums", args.out.shape[0], int64_t{args.parts} * args.heads);
  ctx.ops.merge_parts(ctx.queue, args);
}

void gather_rows(Ctx& ctx, Tensor out, Tensor x, Indices rows) {
  check_matrix(x, "x", -1, -1);
  check_matrix(out, "out", static_cast<int64_t>(rows.size()), x.shape[1]);
  for (int32_t row : rows) CHECK(row >= 0 && row < x.shape[0], "row {} of {}", row, x.shape[0]);
  ctx.ops.gather_rows(ctx.queue, out, x, rows);
}

namespace {

void check_lora(const Indices& slots, bool computed, const LoraWeight& w, const Tensor& inner, const Tensor& rows,
                const char* name, int64_t columns) {
  check_rows(rows, name, static_cast<int64_t>(slots.size()), columns);
  check_matrix(inner, "inner", LoraWeight::inner_rows(rows.rows()), w.inner());
  for (const DType type : {w.type, rows.dtype}) {
    CHECK(type == &kFloat32 || type == &kBFloat16, "type {}", type->name);
  }
  CHECK(w.parts >= 1 && w.parts <= LoraWeight::kMostParts && w.part_ends[w.parts - 1] == w.n, "{} parts of {}", w.parts,
        w.n);
  if (computed) return;
  for (const int32_t slot : slots) CHECK(slot >= -1 && slot < w.slots, "adapter {} of {}", slot, w.slots);
}

}  // namespace

void lora_shrink(Ctx& ctx, const LoraShrinkArgs& args) {
  check_lora(args.slots, args.computed, *args.weight, args.inner, args.x, "x", args.weight->k);
  ctx.ops.lora_shrink(ctx.queue, args);
}

void lora_expand(Ctx& ctx, const LoraExpandArgs& args) {
  check_lora(args.slots, args.computed, *args.weight, args.inner, args.out, "out", args.weight->n);
  ctx.ops.lora_expand(ctx.queue, args);
}

void matmul(Ctx& ctx, const MatmulArgs& args, const LoraShrinkArgs& change) {
  check_matmul(ctx, args);
  const LoraWeight& w = *change.weight;
  check_lora(change.slots, change.computed, w, change.inner, change.x, "x", w.k);
  CHECK(w.n == args.weight->n && w.k == args.weight->k && change.x.data == args.x.data,
        "adapters of [{}, {}] change a matmul with [{}, {}]", w.n, w.k, args.weight->n, args.weight->k);
  for (const LoraMatmul* kernel : Registry<LoraMatmul>::all()) {
    const bool suits = kernel->type == args.weight->dtype && kernel->shrink == ctx.ops.lora_shrink;
    if (suits && kernel->run(ctx.queue, args, change)) return;
  }
  // Shrink comes before the matmul, so that a device can begin the matmul meanwhile.
  lora_shrink(ctx, change);
  matmul(ctx, args);
  lora_expand(ctx, {.out = args.out,
                    .inner = change.inner,
                    .slots = change.slots,
                    .weight = change.weight,
                    .computed = change.computed});
}

void copy_rows(Ctx& ctx, Tensor to, Tensor from, Indices pairs) {
  CHECK(to.dtype == from.dtype && to.dtype->block_size == 1, "{} to {}", from.dtype->name, to.dtype->name);
  CHECK(to.row_elements() == from.row_elements(), "rows {} to {}", from.shape.str(), to.shape.str());
  CHECK(pairs.size() % 2 == 0, "{} indices", pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Tensor& x = i % 2 == 0 ? from : to;
    CHECK(pairs[i] >= 0 && pairs[i] < x.rows(), "row {} of {}", pairs[i], x.rows());
  }
  if (!pairs.empty()) ctx.ops.copy_rows(ctx.queue, to, from, pairs);
}

void sample(Ctx& ctx, const SampleArgs& args) {
  check_matrix(args.logits, "logits", -1, -1);
  const auto samples = static_cast<int64_t>(args.rows.bytes() / sizeof(SampleRow));
  CHECK(static_cast<int64_t>(args.sampled.bytes() / sizeof(SampledRow)) >= samples, "{} samples", samples);
  CHECK(args.for_host.data == nullptr || static_cast<int64_t>(args.for_host.bytes() / sizeof(SampledRow)) >= samples,
        "{} samples", samples);
  CHECK(args.logits.shape[1] <= 1 << 20, "a vocabulary of {}", args.logits.shape[1]);
  const int64_t words = mask_words(args.logits.shape[1]);
  CHECK(args.masks.data == nullptr || static_cast<int64_t>(args.masks.bytes()) % (words * 4) == 0, "masks of {} words",
        words);
  CHECK(args.top.data == nullptr || static_cast<int64_t>(args.top.bytes() / sizeof(TopLogit)) >= samples * kMostTop,
        "{} samples", samples);
  if (samples > 0) ctx.ops.sample(ctx.queue, args);
}

void feed_sampled(Ctx& ctx, const FeedSampledArgs& args) {
  const auto samples = static_cast<int64_t>(args.sampled.bytes() / sizeof(SampledRow));
  CHECK(args.tokens.dtype == &kInt32 && args.tokens.shape.elements() == static_cast<int64_t>(args.from.size()),
        "{} of {} tokens", args.from.size(), args.tokens.shape.str());
  for (int32_t sample : args.from) CHECK(sample >= -1 && sample < samples, "sample {} of {}", sample, samples);
  ctx.ops.feed_sampled(ctx.queue, args);
}

void pooling(Ctx& ctx, const PoolingArgs& args) {
  check_matrix(args.x, "x", args.query_start.back(), -1);
  check_matrix(args.out, "out", static_cast<int64_t>(args.query_start.size()) - 1, args.x.shape[1]);
  for (size_t s = 0; s + 1 < args.query_start.size(); ++s) {
    CHECK(args.query_start[s] >= 0 && args.query_start[s] < args.query_start[s + 1], "sequence {} has no rows", s);
  }
  ctx.ops.pooling(ctx.queue, args);
}

}  // namespace sluice::ops
