// Benchmarks decode steps.
#include <fmt/core.h>

#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>

#include "base/thread_pool.h"
#include "cuda/parts.h"
#include "cuda/timing.h"
#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {
namespace {

struct StepShape {
  const char* name;
  int hidden, kv, inner, dim, layers, vocab;  // kv: columns of all kv heads together; vocab 0: without the LM head
};

// Decode steps of some layers of a model as a CUDA graph: by the persistent decode kernel, by separate launches, and by
// the batch-invariant backend where it has kernels for the weights. Reports the bandwidth at which weights and caches
// are read.
class Steps {
 public:
  Steps(const StepShape& shape, DType type, int rows, int keys) : shape_(shape), type_(type), rows_(rows), keys_(keys) {
    const auto [name, hidden, kv, inner, dim, layers, vocab] = shape;
    const auto matrix = [&](ops::Weight& w, DType of, int64_t n, int64_t k) {
      w = {.dtype = of, .n = n, .k = k};
      storage_.emplace_back(ctx_.ops.matmul.at(of).packed_bytes(n, k), device_memory());
      w.data = storage_.back().data();
      fill_at_random(storage_.back());
      bytes_ += static_cast<double>(storage_.back().size());
    };
    for (int i = 0; i < layers; ++i) {
      Layer& l = layers_.emplace_back();
      matrix(l.qkv, type, hidden + 2 * kv, hidden), matrix(l.out, type, hidden, hidden);
      matrix(l.gate_up, type, 2 * inner, hidden), matrix(l.down, type, hidden, inner);
      for (Tensor* cache : {&l.k, &l.v}) *cache = make(&kBFloat16, {rows * blocks(), kv / dim, kBlock, dim});
    }
    if (vocab > 0) matrix(head_, &kBFloat16, vocab, hidden);
    bytes_ += double(layers) * rows * keys * kv * 2 * 2;
    std::vector<int32_t> lengths(rows, keys), starts(rows + 1), positions(rows, keys - 1), slots(rows), table,
        sampled(rows);
    std::iota(sampled.begin(), sampled.end(), 0);
    for (int r = 0; r < rows; ++r) {
      starts[r + 1] = r + 1;
      slots[r] = (r * blocks() + (keys - 1) / kBlock) * kBlock + (keys - 1) % kBlock;
      for (int b = 0; b < blocks(); ++b) table.push_back(r * blocks() + b);
    }
    host_ = {lengths, starts, positions, slots, table, sampled};
    for (const std::vector<int32_t>& values : host_) {
      device_.emplace_back(values);
      indices_.emplace_back(std::span<const int32_t>(values), device_.back().data());
    }
  }

  void report() {
    for (const char* decode_kernel : {"1", "0"}) {
      setenv("SLUICE_CUDA_DECODE_KERNEL", decode_kernel, 1);
      report(*decode_kernel == '1' ? "kernel" : "launches", bench_queue());
    }
    if (ops::input_type(invariant_, layers_[0].qkv, rows_) != &kFloat32) {
      report("invariant", invariant_queue());
    }
    unsetenv("SLUICE_CUDA_DECODE_KERNEL");
  }

 private:
  static constexpr int kBlock = 16;
  struct Layer {
    ops::Weight qkv, out, gate_up, down;
    Tensor k, v;
  };

  static Queue& invariant_queue() {
    static ThreadPool threads(1, false);
    static const auto queue = ops::select_backend("cuda-invariant").open(0).make_queue(threads);
    return current(*queue);
  }

  void report(const char* name, Queue& queue) {
    ops::Ctx ctx(queue, arena_);
    forward(ctx);
    const auto graph = queue.capture([&] { forward(ctx); });
    const double s = seconds([&] { graph->launch(); }, queue.launch().stream);
    fmt::print("{} {:>10} {} x {:5} keys, {:2} layers{} {:9}: {:8.1f} us, {:7.2f} a layer, {:.2f} TB/s\n", shape_.name,
               type_->name, rows_, keys_, shape_.layers, shape_.vocab > 0 ? " and head" : "", name, s * 1e6,
               s * 1e6 / shape_.layers, bytes_ / s * 1e-12);
  }

  int blocks() const { return (keys_ + kBlock - 1) / kBlock; }
  // Zeros would be read and multiplied with less power, so at a higher clock, than the weights of a model. These words
  // are valid numbers in every type: bf16 values of about 0.01, in either byte order.
  void fill_at_random(Buffer& weights) {
    static const std::vector<uint32_t> numbers = [] {
      std::mt19937 random(11);
      std::vector<uint32_t> words(size_t{1} << 22);
      for (uint32_t& word : words) word = (random() & 0x80ff80ff) | 0x3c003c00 | (random() & 0x7f007f);
      return words;
    }();
    const size_t all = numbers.size() * sizeof(uint32_t);
    for (size_t at = 0; at < weights.size(); at += all) {
      device_memory().copy(weights.data() + at, numbers.data(), std::min(all, weights.size() - at));
    }
  }
  Tensor make(DType type, Shape shape) {
    memory_.emplace_back(static_cast<size_t>(shape.elements()) * type->block_bytes, device_memory());
    return Tensor(memory_.back().data(), type, shape);
  }

  void forward(ops::Ctx& ctx) {
    const auto input = [&](const Tensor& x, const ops::Weight& to) {
      return ops::rows_in(x, ops::input_type(ctx, to, rows_));
    };
    const auto output = [&](const Tensor& out, const ops::Weight& of) {
      return ops::rows_in(out, ops::output_type(ctx, of, rows_));
    };
    for (const Layer& l : layers_) {
      Tensor normed = input(normed_, l.qkv);
      const Tensor qkv = output(qkv_, l.qkv), mixed = input(mixed_, l.out), gate_up = output(gate_up_, l.gate_up),
                   gated = input(gated_, l.down);
      ops::rms_norm(ctx, normed, x_, norm_.f32(), 1e-5f);
      ops::matmul(ctx, {.out = qkv, .x = normed, .weight = &l.qkv});
      const Tensor q = qkv.slice_columns(0, shape_.hidden);
      ops::rope_store(ctx, {.q = q,
                            .k = qkv.slice_columns(shape_.hidden, shape_.kv),
                            .v = qkv.slice_columns(shape_.hidden + shape_.kv, shape_.kv),
                            .cos_sin = rotations_,
                            .k_cache = l.k,
                            .v_cache = l.v,
                            .positions = indices_[2],
                            .slots = indices_[3]});
      ops::attention(ctx, {.out = mixed,
                           .q = q,
                           .k_cache = l.k,
                           .v_cache = l.v,
                           .query_start = indices_[1],
                           .kv_len = indices_[0],
                           .block_table = indices_[4],
                           .block_table_stride = blocks(),
                           .heads = shape_.hidden / shape_.dim,
                           .scale = 0.1f});
      ops::matmul(ctx, {.out = x_, .x = mixed, .weight = &l.out, .accumulate = true});
      normed = input(normed_, l.gate_up);
      ops::rms_norm(ctx, normed, x_, norm_.f32(), 1e-5f);
      ops::matmul(ctx, {.out = gate_up, .x = normed, .weight = &l.gate_up});
      ops::glu(ctx, gated, gate_up, ops::Activation::kSilu);
      ops::matmul(ctx, {.out = x_, .x = gated, .weight = &l.down, .accumulate = true});
    }
    if (shape_.vocab == 0) return;
    const Tensor normed = input(normed_, head_);
    ops::gather_rows(ctx, last_, x_, indices_[5]);
    ops::rms_norm(ctx, normed, last_, norm_.f32(), 1e-5f);
    ops::matmul(ctx, {.out = logits_, .x = normed, .weight = &head_});
  }

  const StepShape shape_;
  const DType type_;
  const int rows_, keys_;
  Arena arena_{0};
  ops::Ctx ctx_{bench_queue(), arena_}, invariant_{invariant_queue(), arena_};
  double bytes_ = 0;
  std::vector<Buffer> memory_;
  std::vector<Layer> layers_;
  std::vector<Buffer> storage_;
  ops::Weight head_;
  std::vector<DeviceIndices> device_;
  std::vector<std::vector<int32_t>> host_;
  std::vector<Indices> indices_;
  Tensor floats(int columns) { return make(&kFloat32, {rows_, columns}); }
  const Tensor x_ = floats(shape_.hidden), normed_ = floats(shape_.hidden), last_ = floats(shape_.hidden);
  const Tensor norm_ = make(&kFloat32, {1, shape_.hidden}), rotations_ = make(&kFloat32, {keys_, shape_.dim});
  const Tensor qkv_ = floats(shape_.hidden + 2 * shape_.kv), mixed_ = floats(shape_.hidden);
  const Tensor gate_up_ = floats(2 * shape_.inner), gated_ = floats(shape_.inner);
  const Tensor logits_ = floats(std::max(shape_.vocab, 1));
};

}  // namespace

void bench_steps() {
  const auto of_8b = [](int layers, int vocab) { return StepShape{"8B", 4096, 1024, 14336, 128, layers, vocab}; };
  for (const DType type : {&kBFloat16, &quant::Fp8::kType, &quant::Int4G128::kType}) {
    for (const auto& [rows, keys] : {std::pair{1, 130}, {1, 4000}, {4, 1000}, {32, 1000}}) {
      Steps(of_8b(6, 0), type, rows, keys).report();
    }
  }
}

void bench_whole_steps() {
  for (const DType type : {&kBFloat16, &quant::Fp8::kType, &quant::Int4G128::kType}) {
    for (const auto& [layers, vocab] : {std::pair{8, 0}, {32, 0}, {32, 128256}}) {
      Steps({"8B", 4096, 1024, 14336, 128, layers, vocab}, type, 1, 130).report();
    }
  }
  for (const auto& [layers, vocab] : {std::pair{4, 0}, {16, 0}, {16, 128256}}) {
    Steps({"1B", 2048, 512, 8192, 64, layers, vocab}, &kBFloat16, 1, 130).report();
  }
}

void bench_step_of_32() { Steps({"8B", 4096, 1024, 14336, 128, 6, 0}, &kBFloat16, 32, 1150).report(); }

}  // namespace sluice::cuda
