// Captured graphs (Queue::capture): captures the ops of a small decoder, with every weight type, and launches them.
// Compares with the same ops called one by one and with the reference.
#include <functional>
#include <optional>

#include "ops/testing.h"
#include "quant/fp4.h"

namespace sluice::ops::graph_test {
namespace {

struct Sizes {
  int rows = 1, hidden = 72, heads = 3, kv_heads = 1, head_dim = 24, inner = 40, vocab = 100, layers = 2;
  int most_keys = 320;                             // most keys of a sequence, a multiple of 16
  DType weights = &kBFloat16, plain = &kBFloat16;  // types of the matrices; of the embedding, the head and the cache
  bool bias = false, head_norms = false;
  int experts = 0, top_k = 0;  // 0: one MLP
  bool normalized = true;      // weights of experts
  bool shared = false;         // an expert for all rows as well
  bool like_gpt_oss = false;  // biases of the router and of experts, clamped gates, sinks, windows of every other layer

  std::string str() const {
    return fmt::format(
        "{} rows, up to {} keys, hidden {}, heads {}/{} of {}, inner {}, vocab {}, {} ({}), bias {}, head norms {}, "
        "{} of {} experts, normalized {}, shared {}, like gpt-oss {}",
        rows, most_keys, hidden, heads, kv_heads, head_dim, inner, vocab, weights->name, plain->name, bias, head_norms,
        top_k, experts, normalized, shared, like_gpt_oss);
  }
};

// A matrix as it is stored, and packed for one device.
struct Matrix {
  Matrix(DType type, int64_t n, int64_t k, std::mt19937& random) : rows(type, {n, k}) {
    rows.fill(random, 1.0f / std::sqrt(static_cast<float>(k)));
  }
  void pack(Ctx& ctx) {
    const MatmulKernels& kernels = ctx.ops.matmul.at(rows->dtype);
    weight = {.dtype = rows->dtype, .n = rows->rows(), .k = rows->shape[1]};
    storage = Buffer(kernels.packed_bytes(weight.n, weight.k), test_memory());
    weight.data = storage.data();
    kernels.pack(ctx.queue, weight, 0, rows);
  }
  Owned rows;
  Weight weight;
  Buffer storage;
};

// The outputs of the matrices of all experts, or of one MLP.
int64_t stacked(int experts, int64_t n) { return experts > 0 ? experts * stacked_outputs(n) : n; }

struct Layer {
  Layer(const Sizes& s, int blocks, std::mt19937& random)
      : qkv(s.weights, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, random),
        out(s.weights, s.hidden, s.heads * s.head_dim, random),
        gate_up(s.weights, stacked(s.experts, 2 * s.inner), s.hidden, random),
        down(s.weights, stacked(s.experts, s.hidden), s.inner, random),
        router(s.plain, std::max(s.experts, 1), s.hidden, random),
        shared_in(s.weights, 2 * s.inner, s.hidden, random),
        shared_out(s.weights, s.hidden, s.inner, random),
        logits(&kFloat32, {s.rows, std::max(s.experts, 1)}),
        norms(&kFloat32, {2, s.hidden}),
        head_norm(&kFloat32, {1, s.head_dim}),
        bias(&kFloat32, {1, (s.heads + 2 * s.kv_heads) * s.head_dim}),
        router_bias(&kFloat32, {1, std::max(s.experts, 1)}),
        in_bias(&kFloat32, {std::max(s.experts, 1), 2 * s.inner}),
        out_bias(&kFloat32, {std::max(s.experts, 1), s.hidden}),
        sinks(&kFloat32, {1, s.heads}),
        k_cache(s.plain, {blocks, s.kv_heads, 16, s.head_dim}),
        v_cache(s.plain, {blocks, s.kv_heads, 16, s.head_dim}) {
    for (Owned* tensor : {&norms, &head_norm, &bias, &router_bias, &in_bias, &out_bias, &sinks, &k_cache, &v_cache}) {
      tensor->fill(random);
    }
  }
  Matrix qkv, out, gate_up, down, router, shared_in, shared_out;
  Owned logits, norms, head_norm, bias, router_bias, in_bias, out_bias, sinks, k_cache, v_cache;
};

// One row of each of `rows` sequences through the decoder.
class Decoder {
 public:
  Decoder(const Sizes& s, std::mt19937& random)
      : s_(s),
        embedding_(s.plain, {s.vocab, s.hidden}),
        cos_sin_(&kFloat32, {s.most_keys, s.head_dim}),
        norm_(&kFloat32, {1, s.hidden}),
        head_(s.plain, s.vocab, s.hidden, random),
        x_(&kFloat32, {s.rows, s.hidden}),
        normed_(x_),
        last_(x_),
        qkv_(&kFloat32, {s.rows, (s.heads + 2 * s.kv_heads) * s.head_dim}),
        mixed_(&kFloat32, {s.rows, s.heads * s.head_dim}),
        gate_up_(&kFloat32, {s.rows * std::max(s.top_k, 1), 2 * s.inner}),
        gated_(&kFloat32, {s.rows * std::max(s.top_k, 1), s.inner}),
        chosen_(&kInt32, {s.rows, std::max(s.top_k, 1)}),
        weights_(&kFloat32, {s.rows, std::max(s.top_k, 1)}),
        entries_(&kInt32, {s.rows * std::max(s.top_k, 1)}),
        rows_(entries_),
        places_(entries_),
        expert_starts_(&kInt32, {s.experts + 1}),
        summands_(&kFloat32, {s.rows * std::max(s.top_k, 1), s.hidden}),
        gathered_(summands_),
        shared_gate_up_(&kFloat32, {s.rows, 2 * s.inner}),
        shared_gated_(&kFloat32, {s.rows, s.inner}),
        logits_(&kFloat32, {s.rows, s.vocab}) {
    const int stride = s.most_keys / 16;
    for (int i = 0; i < s.layers; ++i) layers_.emplace_back(s, s.rows * stride, random);
    for (Owned* tensor : {&embedding_, &cos_sin_, &norm_}) tensor->fill(random, 0.7f);
    starts_.push_back(0);
    for (int r = 0; r < s.rows; ++r) {
      const int keys = 1 + static_cast<int>(random() % s.most_keys);
      ids_.push_back(static_cast<int32_t>(random() % s.vocab));
      kv_len_.push_back(keys);
      positions_.push_back(keys - 1);
      starts_.push_back(r + 1);
      all_.push_back(s.rows - 1 - r);
      for (int b = 0; b < stride; ++b) table_.push_back((b * s.rows + r));
      slots_.push_back(table_[r * stride + (keys - 1) / 16] * 16 + (keys - 1) % 16);
    }
  }

  void pack(Ctx& ctx) {
    for (Layer& l : layers_) {
      for (Matrix* m : {&l.qkv, &l.out, &l.gate_up, &l.down, &l.router, &l.shared_in, &l.shared_out}) m->pack(ctx);
    }
    head_.pack(ctx);
  }

  void forward(Ctx& c) const {
    embed(c, x_, embedding_, indices(ids_));
    for (const Layer& l : layers_) {
      attend(c, l);
      s_.experts > 0 ? run_experts(c, l) : feed_forward(c, l);
    }
    gather_rows(c, last_, x_, indices(all_));
    rms_norm(c, last_, last_, norm_->f32(), 1e-5f);
    matmul(c, {.out = logits_, .x = last_, .weight = &head_.weight});
  }

  const Owned& logits() const { return logits_; }

  // The least distance of a chosen expert's logit from one that was not chosen. Rounding must not decide between them.
  float margin() const {
    float least = INFINITY;
    for (const Layer& l : layers_) {
      for (int r = 0; r < s_.rows && s_.experts > 0; ++r) {
        std::vector<float> row(l.logits->f32() + r * s_.experts, l.logits->f32() + (r + 1) * s_.experts);
        std::ranges::sort(row, std::greater<>());
        least = std::min(least, row[static_cast<size_t>(s_.top_k) - 1] - row[static_cast<size_t>(s_.top_k)]);
      }
    }
    return least;
  }

 private:
  using Ints = std::vector<int32_t, TestAllocator<int32_t>>;
  static Indices indices(const Ints& ints) { return Indices(std::span<const int32_t>(ints), ints.data()); }

  void attend(Ctx& c, const Layer& l) const {
    const int64_t q_width = s_.heads * s_.head_dim, kv_width = s_.kv_heads * s_.head_dim;
    rms_norm(c, normed_, x_, l.norms.row(0), 1e-5f);
    matmul(c, {.out = qkv_, .x = normed_, .weight = &l.qkv.weight, .bias = s_.bias ? l.bias->f32() : nullptr});
    const Tensor q = qkv_->slice_columns(0, q_width), k = qkv_->slice_columns(q_width, kv_width);
    if (s_.head_norms) {
      for (Tensor heads : {q, k}) {
        const Tensor by_heads(heads.data, &kFloat32, {s_.rows, heads.shape[1] / s_.head_dim, s_.head_dim});
        Tensor view = by_heads;
        view.row_stride = heads.row_stride;
        rms_norm(c, view, view, l.head_norm->f32(), 1e-6f, 1.0f);
      }
    }
    rope_store(c, {.q = q,
                   .k = k,
                   .v = qkv_->slice_columns(q_width + kv_width, kv_width),
                   .cos_sin = cos_sin_,
                   .k_cache = *l.k_cache,
                   .v_cache = *l.v_cache,
                   .positions = indices(positions_),
                   .slots = indices(slots_)});
    attention(c, {.out = mixed_,
                  .q = q,
                  .k_cache = *l.k_cache,
                  .v_cache = *l.v_cache,
                  .query_start = indices(starts_),
                  .kv_len = indices(kv_len_),
                  .block_table = indices(table_),
                  .block_table_stride = s_.most_keys / 16,
                  .heads = s_.heads,
                  .scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim)),
                  .window = s_.like_gpt_oss && &l == layers_.data() ? 20 : 0,
                  .sinks = s_.like_gpt_oss ? l.sinks->f32() : nullptr});
    matmul(c, {.out = x_, .x = mixed_, .weight = &l.out.weight, .accumulate = true});
  }

  void feed_forward(Ctx& c, const Layer& l) const {
    rms_norm(c, normed_, x_, l.norms.row(1), 1e-5f);
    matmul(c, {.out = gate_up_, .x = normed_, .weight = &l.gate_up.weight});
    glu(c, gated_, gate_up_, Activation::kSilu);
    matmul(c, {.out = x_, .x = gated_, .weight = &l.down.weight, .accumulate = true});
  }

  void run_experts(Ctx& c, const Layer& l) const {
    rms_norm(c, normed_, x_, l.norms.row(1), 1e-5f);
    const auto bias_of = [&](const Owned& bias) { return s_.like_gpt_oss ? bias->f32() : nullptr; };
    matmul(c, {.out = l.logits, .x = normed_, .weight = &l.router.weight, .bias = bias_of(l.router_bias)});
    route(c, {.experts = chosen_,
              .weights = weights_,
              .logits = l.logits,
              .routing = {.top_k = s_.top_k, .normalize = s_.normalized}});
    group_by_expert(
        c, {.experts = chosen_, .entries = entries_, .rows = rows_, .places = places_, .starts = expert_starts_});
    expert_matmul(c, {.out = gate_up_,
                      .x = normed_,
                      .rows = rows_,
                      .gathered = gathered_,
                      .starts = expert_starts_,
                      .weight = &l.gate_up.weight,
                      .bias = bias_of(l.in_bias)});
    if (s_.like_gpt_oss) {
      clamped_glu(c, gated_, gate_up_, 1.702f, 1.5f);
    } else {
      glu(c, gated_, gate_up_, Activation::kSilu);
    }
    expert_matmul(c, {.out = summands_,
                      .x = gated_,
                      .starts = expert_starts_,
                      .weight = &l.down.weight,
                      .bias = bias_of(l.out_bias)});
    combine(c, {.out = x_, .x = summands_, .weights = weights_, .places = places_, .accumulate = true});
    if (!s_.shared) return;
    matmul(c, {.out = shared_gate_up_, .x = normed_, .weight = &l.shared_in.weight});
    glu(c, shared_gated_, shared_gate_up_, Activation::kSilu);
    matmul(c, {.out = x_, .x = shared_gated_, .weight = &l.shared_out.weight, .accumulate = true});
  }

  const Sizes s_;
  Owned embedding_, cos_sin_, norm_;
  Matrix head_;
  Owned x_, normed_, last_, qkv_, mixed_, gate_up_, gated_;
  Owned chosen_, weights_, entries_, rows_, places_, expert_starts_, summands_, gathered_;
  Owned shared_gate_up_, shared_gated_;
  Owned logits_;
  std::vector<Layer> layers_;
  Ints ids_, kv_len_, positions_, starts_, slots_, table_, all_;
};

using GraphTest = OpsTest;

TEST_P(GraphTest, StepsGiveWhatTheirOpsGive) {
  if (!GetParam()->can.captures) GTEST_SKIP() << GetParam()->name << " captures no graphs";
  std::vector<Sizes> all = {
      {},
      {.rows = 3, .plain = &kFloat16, .bias = true},
      {.rows = 4, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 32, .inner = 96, .head_norms = true},
      {.rows = 2, .hidden = 1152, .heads = 8, .kv_heads = 2, .head_dim = 128, .inner = 2176, .vocab = 3001},
      {.rows = 1, .hidden = 2048, .heads = 32, .kv_heads = 8, .head_dim = 64, .inner = 4096, .vocab = 500},
      {.rows = 8, .hidden = 256, .heads = 4, .kv_heads = 4, .head_dim = 64, .inner = 512},
      // More keys than the persistent decode kernel holds at a time, in chunks or not, and chunks of one kv head.
      {.rows = 4, .hidden = 256, .heads = 16, .kv_heads = 8, .head_dim = 64, .inner = 512, .most_keys = 4000},
      {.rows = 4, .hidden = 256, .heads = 32, .kv_heads = 32, .head_dim = 128, .inner = 512, .most_keys = 1600},
      {.rows = 1, .hidden = 256, .heads = 6, .kv_heads = 1, .head_dim = 80, .inner = 512, .most_keys = 4000},
      {.rows = 2, .hidden = 512, .heads = 8, .kv_heads = 1, .head_dim = 128, .inner = 512, .head_norms = true},
      {.rows = 3,
       .hidden = 512,
       .heads = 8,
       .kv_heads = 4,
       .head_dim = 80,
       .inner = 512,
       .most_keys = 4000,
       .head_norms = true},
  };
  all[1].weights = &kFloat16;
  // Experts: of one row, whose inputs need padding or not; of several rows.
  all.push_back({.inner = 48, .experts = 4, .top_k = 2});
  all.push_back({.hidden = 512, .heads = 4, .head_dim = 64, .inner = 768, .experts = 20, .top_k = 8});
  all.push_back({.hidden = 256, .inner = 80, .head_norms = true, .experts = 200, .top_k = 3, .normalized = false});
  all.push_back({.rows = 2, .hidden = 256, .inner = 256, .experts = 8, .top_k = 2});
  all.push_back({.rows = 4, .hidden = 640, .inner = 96, .layers = 1, .experts = 130, .top_k = 1, .shared = true});
  all.push_back({.rows = 5, .hidden = 256, .inner = 256, .experts = 8, .top_k = 2});
  all.push_back({.hidden = 512, .inner = 256, .experts = 20, .top_k = 4, .shared = true});
  // More panels than the device has blocks, which have several of each row.
  all.push_back({.rows = 4, .hidden = 2560, .inner = 32, .layers = 1, .experts = 4, .top_k = 1});
  // The shapes of gpt-oss have half a K-slice at the end.
  const Sizes gpt_oss = {.hidden = 288,
                         .heads = 16,
                         .kv_heads = 2,
                         .head_dim = 64,
                         .inner = 352,
                         .bias = true,
                         .experts = 25,
                         .top_k = 3,
                         .like_gpt_oss = true};
  all.push_back(gpt_oss);
  for (const int rows : {1, 2, 4}) {
    all.push_back(gpt_oss);
    all.back().rows = rows, all.back().weights = &quant::MXFP4::kType;
  }
  for (const auto& [type, kernels] : device.ctx.ops.matmul) {
    if (type->block_size == 1 || type->encode == nullptr) continue;
    all.push_back({.hidden = 256, .heads = 2, .kv_heads = 1, .head_dim = 128, .inner = 768, .weights = type});
    all.push_back(
        {.rows = 4, .hidden = 512, .heads = 8, .kv_heads = 2, .head_dim = 64, .inner = 1280, .weights = type});
    for (const int rows : {1, 3}) {
      all.push_back({.rows = rows,
                     .hidden = 256,
                     .heads = 2,
                     .head_dim = 128,
                     .inner = 768,
                     .weights = type,
                     .experts = 6,
                     .top_k = 2});
    }
  }
  for (const Sizes& sizes : all) {
    SCOPED_TRACE(sizes.str());
    std::optional<Decoder> made;
    for (int tries = 0; !made || made->margin() < 0.05f; ++tries) {
      ASSERT_LT(tries, 1000) << "no random experts are chosen clearly";
      made.emplace(sizes, random);
      made->pack(reference.ctx);
      made->forward(reference.ctx);
    }
    Decoder& decoder = *made;
    const Owned expected(decoder.logits());
    decoder.pack(device.ctx);
    decoder.forward(device.ctx);
    const Owned called(decoder.logits());
    for (const char* decode_kernel : {"0", "1"}) {  // "1": one persistent kernel per run of ops, if available
      SCOPED_TRACE(fmt::format("decode kernel {}", decode_kernel));
      setenv("SLUICE_CUDA_DECODE_KERNEL", decode_kernel, 1);
      const auto graph = device.ctx.queue.capture([&] { decoder.forward(device.ctx); });
      unsetenv("SLUICE_CUDA_DECODE_KERNEL");
      for (int turn = 0; turn < 2; ++turn) {
        std::memset(decoder.logits()->data, 0, decoder.logits().bytes());
        graph->launch();
        device.ctx.queue.wait();
        // Inputs are rounded to bf16 before every matmul; ops called one by one may use other kernels.
        const float tolerance = on_tensor_cores() ? 4e-2f : 1e-4f;
        expect_close(decoder.logits(), called, tolerance);
        expect_close(decoder.logits(), expected, tolerance);
      }
    }
  }
}

SLUICE_FOR_EVERY_BACKEND(GraphTest);

}  // namespace
}  // namespace sluice::ops::graph_test
