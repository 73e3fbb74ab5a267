// The scalar reference: the simplest implementation of each op, against which tests compare every other backend. Sums
// run in double precision and in index order; weights stay row-major. It is written to be correct, not fast.
#include "ops/reference.h"
#include "ops/compression.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/registry.h"
#include "base/thread_pool.h"
#include "quant/all.h"

namespace sluice::ops {
namespace reference {

void embed(Queue&, Tensor out, const Tensor& table, Indices ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::byte* row = table.data + ids[i] * table.row_stride / table.dtype->block_size * table.dtype->block_bytes;
    to_float(table.dtype, row, out.f32() + i * out.row_stride, table.shape[1]);
  }
}

namespace {

// Calls body(out row, x row, columns) for every vector of the last dimension of [rows, columns] or
// [rows, groups, columns].
template <class F>
void each_vector(Tensor out, Tensor x, F&& body) {
  const int64_t columns = x.shape[-1];
  const int64_t groups = x.shape.rank() == 3 ? x.shape[1] : 1;
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t at = group * columns;
      body(out.f32() + row * out.row_stride + at, x.f32() + row * x.row_stride + at, columns);
    }
  }
}

}  // namespace

void rms_norm(Queue&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset) {
  each_vector(out, x, [&](float* to, const float* from, int64_t columns) {
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += double(from[i]) * from[i];
    const double scale = 1.0 / std::sqrt(sum / columns + eps);
    for (int64_t i = 0; i < columns; ++i) {
      to[i] = static_cast<float>(from[i] * scale * (weight ? double(weight[i]) + weight_offset : 1.0));
    }
  });
}

void layer_norm(Queue&, Tensor out, Tensor x, const float* weight, const float* bias, float eps) {
  each_vector(out, x, [&](float* to, const float* from, int64_t columns) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < columns; ++i) sum += from[i];
    const double mean = sum / columns;
    for (int64_t i = 0; i < columns; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / columns + eps);
    for (int64_t i = 0; i < columns; ++i) {
      to[i] = static_cast<float>((from[i] - mean) * scale * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f));
    }
  });
}

void match_rms(Queue&, Tensor x, Tensor like, float floor) {
  each_vector(x, like, [&](float* to, const float* other, int64_t columns) {
    double own = 0, wanted = 0;
    for (int64_t i = 0; i < columns; ++i) own += double(to[i]) * to[i], wanted += double(other[i]) * other[i];
    const double scale = std::sqrt(wanted / columns / std::max(own / columns, double{floor}));
    for (int64_t i = 0; i < columns; ++i) to[i] = static_cast<float>(to[i] * scale);
  });
}

void gaussian_top_k(Queue&, Tensor x, float deviations) {
  each_vector(x, x, [&](float* to, const float*, int64_t columns) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < columns; ++i) sum += to[i];
    const double mean = sum / columns;
    for (int64_t i = 0; i < columns; ++i) squares += (to[i] - mean) * (to[i] - mean);
    const double cutoff = mean + deviations * std::sqrt(squares / columns);
    for (int64_t i = 0; i < columns; ++i) to[i] = static_cast<float>(std::max(to[i] - cutoff, 0.0));
  });
}

void glu(Queue&, Tensor out, Tensor gate_up, Activation activation) {
  const int64_t n = out.shape[1];
  for (int64_t row = 0; row < out.rows(); ++row) {
    const float* gate = gate_up.f32() + row * gate_up.row_stride;
    float* to = out.f32() + row * out.row_stride;
    for (int64_t i = 0; i < n; ++i) to[i] = activate(activation, gate[i]) * gate[n + i];
  }
}

void clamped_glu(Queue&, Tensor out, Tensor gate_up, float alpha, float limit) {
  const int64_t n = out.shape[1];
  for (int64_t row = 0; row < out.rows(); ++row) {
    const float* from = gate_up.f32() + row * gate_up.row_stride;
    float* to = out.f32() + row * out.row_stride;
    for (int64_t i = 0; i < n; ++i) {
      const double gate = from[i] > limit ? limit : from[i];
      const double up = from[n + i] < -limit ? -limit : from[n + i] > limit ? limit : from[n + i];
      to[i] = static_cast<float>(gate / (1.0 + std::exp(-alpha * gate)) * (up + 1.0));
    }
  }
}

void unary(Queue&, Tensor x, Activation activation) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    float* values = x.f32() + row * x.row_stride;
    for (int64_t i = 0; i < x.shape[1]; ++i) values[i] = activate(activation, values[i]);
  }
}

namespace {

template <class F>
void each_element(Tensor x, F&& function) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    float* values = x.f32() + row * x.row_stride;
    for (int64_t i = 0; i < x.shape[1]; ++i) values[i] = static_cast<float>(function(double{values[i]}));
  }
}

}  // namespace

void xielu(Queue&, Tensor x, const Xielu& p) {
  each_element(x, [&](double v) {
    const double curved = v > 0 ? p.alpha_p * v * v : p.alpha_n * (std::expm1(std::min(v, double{p.eps})) - v);
    return curved + p.beta * v;
  });
}

void map(Queue&, Tensor x, Map function, float p) {
  switch (function) {
    case Map::kScale:
      return each_element(x, [=](double v) { return v * p; });
    case Map::kClamp:
      return each_element(x, [=](double v) { return v < -p ? -p : v > p ? p : v; });
    case Map::kSoftCap:
      return each_element(x, [=](double v) { return p * std::tanh(v / p); });
  }
}

void copy(Queue&, Tensor out, Tensor x) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    std::memcpy(out.f32() + row * out.row_stride, x.f32() + row * x.row_stride, x.shape[1] * sizeof(float));
  }
}

void add(Queue&, Tensor out, Tensor x, float scale) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    float* to = out.f32() + row * out.row_stride;
    const float* from = x.f32() + row * x.row_stride;
    for (int64_t i = 0; i < x.shape[1]; ++i) to[i] += scale * from[i];
  }
}

namespace {

std::vector<float> numbers(DType type, const std::byte* from, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  to_float(type, from + first * type->block_bytes, values.data(), values.size());
  return values;
}

}  // namespace

void lora_shrink(Queue&, const LoraShrinkArgs& args) {
  const LoraWeight& w = *args.weight;
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    const int64_t slot = args.slots[static_cast<size_t>(row)];
    if (slot < 0) continue;
    const std::vector<float> x = numbers(args.x.dtype, args.x.data, row * args.x.row_stride, w.k);
    for (int64_t j = 0; j < w.inner(); ++j) {
      const std::vector<float> a = numbers(w.type, w.a, (slot * w.inner() + j) * w.k, w.k);
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * x[i];
      args.inner.f32()[row * args.inner.row_stride + j] =
          w.scales[slot * w.parts + j / w.rank] * static_cast<float>(sum);
    }
  }
}

void lora_expand(Queue&, const LoraExpandArgs& args) {
  const LoraWeight& w = *args.weight;
  for (int64_t row = 0; row < args.out.rows(); ++row) {
    const int64_t slot = args.slots[static_cast<size_t>(row)], at = row * args.out.row_stride;
    if (slot < 0) continue;
    const float* inner = args.inner.f32() + row * args.inner.row_stride;
    std::vector<float> out = numbers(args.out.dtype, args.out.data, at, w.n);
    int part = 0;
    for (int64_t o = 0; o < w.n; ++o) {
      while (o == w.part_ends[part]) ++part;
      const std::vector<float> b = numbers(w.type, w.b, (slot * w.n + o) * w.rank, w.rank);
      double sum = 0;
      for (int64_t j = 0; j < w.rank; ++j) sum += double{b[static_cast<size_t>(j)]} * inner[part * w.rank + j];
      out[static_cast<size_t>(o)] += static_cast<float>(sum);
    }
    from_float(args.out.dtype, out.data(), args.out.data + at * static_cast<int64_t>(args.out.dtype->block_bytes),
               out.size());
  }
}

void gather_rows(Queue&, Tensor out, Tensor x, Indices rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(out.f32() + i * out.row_stride, x.f32() + rows[i] * x.row_stride, x.shape[1] * sizeof(float));
  }
}

namespace {

template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(n) * k / Type.block_size * Type.block_bytes;
}

template <const TypeInfo& Type>
void pack(Queue&, const Weight& into, int64_t row, const Tensor& from) {
  CHECK(from.shape.rank() == 2 && from.shape[1] == into.k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, into.k);
  const size_t row_bytes = packed_bytes<Type>(1, into.k);
  std::vector<float> values(into.k);
  for (int64_t i = 0; i < from.rows(); ++i) {
    const std::byte* source = from.data + i * from.row_stride / from.dtype->block_size * from.dtype->block_bytes;
    std::byte* to = into.data + (row + i) * row_bytes;
    if (from.dtype == &Type) {
      std::memcpy(to, source, row_bytes);
    } else {
      to_float(from.dtype, source, values.data(), values.size());
      from_float(&Type, values.data(), to, values.size());
    }
  }
}

// The dot products of up to four rows with the weights. Each is summed in order; they do not wait for each other.
std::array<double, 4> dot_products(const Tensor& x, int64_t row, int64_t count, const std::vector<float>& weights) {
  const float* rows[4];
  for (int64_t j = 0; j < 4; ++j) rows[j] = x.f32() + (row + std::min(j, count - 1)) * x.row_stride;
  std::array<double, 4> sums{};
  for (size_t i = 0; i < weights.size(); ++i) {
    for (int j = 0; j < 4; ++j) sums[j] += double{rows[j][i]} * weights[i];
  }
  return sums;
}

template <const TypeInfo& Type>
void matmul(Queue& queue, const MatmulArgs& args) {
  const int64_t k = args.weight->k;
  queue.threads().parallel_for(args.weight->n, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(k);
    for (int64_t n = begin; n < end; ++n) {
      to_float(&Type, args.weight->data + packed_bytes<Type>(n, k), weights.data(), k);
      for (int64_t row = 0; row < args.x.rows(); row += 4) {
        const int64_t count = std::min<int64_t>(4, args.x.rows() - row);
        const std::array<double, 4> sums = dot_products(args.x, row, count, weights);
        for (int64_t j = 0; j < count; ++j) {
          float& out = args.out.f32()[(row + j) * args.out.row_stride + n];
          out = static_cast<float>((args.accumulate ? out : 0.0f) + sums[j] + (args.bias ? args.bias[n] : 0.0f));
        }
      }
    }
  });
}

template <const TypeInfo& Type>
constexpr MatmulKernels kMatmul{.packed_bytes = packed_bytes<Type>, .pack = pack<Type>, .matmul = matmul<Type>};

template <class... Codecs>
void add_blocks(Ops& ops, quant::CodecList<Codecs...>) {
  ((ops.matmul[&Codecs::kType] = kMatmul<Codecs::kType>), ...);
}

Ops make_ops() {
  Ops ops{kTable, {{&kFloat32, kMatmul<kFloat32>}, {&kBFloat16, kMatmul<kBFloat16>}, {&kFloat16, kMatmul<kFloat16>}}};
  add_blocks(ops, quant::AllCodecs{});
  ops.compression = &kCompression;
  return ops;
}

Device& open(int) {
  static const Ops ops = make_ops();
  static HostDevice device(ops);
  return device;
}

const Backend backend{.name = "reference",
                      .rank = 0,
                      .devices = [] { return 1; },
                      .open = open,
                      .can = {.collectives = true, .narrow_caches = {&kFloat8E4M3, &kFloat8E5M2, &kInt8}}};
const Registry<Backend> registered{backend};

}  // namespace
}  // namespace reference
}  // namespace sluice::ops
