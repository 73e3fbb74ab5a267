// Element-wise ops: activations, gated units, sums, and copies of rows. All are bound by memory traffic. One token is
// too little work to wake a thread, so work is handed out in pieces of kGrain elements.
#include "base/thread_pool.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/kernels.h"

namespace sluice::SLUICE_ISA {
namespace {

using ops::Activation;

constexpr int64_t kGrain = 1 << 14;

int64_t grain_rows(int64_t columns) { return columns >= kGrain ? 1 : kGrain / (columns + 1) + 1; }

float* row_of(const Tensor& x, int64_t row) { return reinterpret_cast<float*>(x.data) + row * x.row_stride; }

template <class F>
void each_row(ops::Queue& queue, int64_t rows, int64_t columns, F&& body) {
  queue.threads().parallel_for(rows, grain_rows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// Applies x = function(x) in place.
template <class F>
void each_element(ops::Queue& queue, const Tensor& x, F&& function) {
  const int64_t columns = x.shape[1];
  each_row(queue, x.shape[0], columns, [&](int64_t row) {
    float* values = row_of(x, row);
    each_vec(columns, [&](int64_t i, auto n) { store(values + i, function(load(values + i, n)), n); });
  });
}

template <class T>
void widen_row(const T* from, float* to, int64_t columns) {
  each_vec(columns, [&](int64_t i, auto n) { store(to + i, load(from + i, n), n); });
}

}  // namespace

void glu(ops::Queue& queue, Tensor out, Tensor gate_up, Activation activation) {
  const int64_t columns = out.shape[1];
  with_activation(activation, [&](auto function) {
    each_row(queue, out.shape[0], columns, [&](int64_t row) {
      const float* gate = row_of(gate_up, row);
      const float* up = gate + columns;
      float* to = row_of(out, row);
      each_vec(columns, [&](int64_t i, auto n) { store(to + i, function(load(gate + i, n)) * load(up + i, n), n); });
    });
  });
}

void clamped_glu(ops::Queue& queue, Tensor out, Tensor gate_up, float alpha, float limit) {
  const int64_t columns = out.shape[1];
  const Vec one = broadcast(1.0f), most = broadcast(limit), least = broadcast(-limit);
  each_row(queue, out.shape[0], columns, [&](int64_t row) {
    const float* from = row_of(gate_up, row);
    float* to = row_of(out, row);
    each_vec(columns, [&](int64_t i, auto n) {
      const Vec gate = min(most, load(from + i, n)), up = min(most, max(least, load(from + columns + i, n)));
      store(to + i, gate / (one + exp(gate * broadcast(-alpha))) * (up + one), n);
    });
  });
}

void unary(ops::Queue& queue, Tensor x, Activation activation) {
  with_activation(activation, [&](auto function) { each_element(queue, x, function); });
}

void xielu(ops::Queue& queue, Tensor x, const ops::Xielu& p) {
  // e^x - 1 - x cancels near zero, where beta * x is the whole result.
  each_element(queue, x, [&](Vec v) {
    const Vec above = broadcast(p.alpha_p) * v * v;
    const Vec below = broadcast(p.alpha_n) * (exp(min(v, broadcast(p.eps))) - broadcast(1.0f) - v);
    return select(less(zero(), v), above, below) + broadcast(p.beta) * v;
  });
}

void map(ops::Queue& queue, Tensor x, ops::Map function, float parameter) {
  switch (function) {
    case ops::Map::kScale:
      return each_element(queue, x, [=](Vec v) { return v * broadcast(parameter); });
    case ops::Map::kClamp:
      return each_element(queue, x, [=](Vec v) { return min(broadcast(parameter), max(broadcast(-parameter), v)); });
    case ops::Map::kSoftCap:
      return each_element(queue, x, [=](Vec v) { return broadcast(parameter) * tanh(v / broadcast(parameter)); });
  }
}

void add(ops::Queue& queue, Tensor out, Tensor x, float scale) {
  const int64_t columns = out.shape[1];
  each_row(queue, out.shape[0], columns, [&](int64_t row) {
    const float* from = row_of(x, row);
    float* to = row_of(out, row);
    each_vec(columns,
             [&](int64_t i, auto n) { store(to + i, load(to + i, n) + broadcast(scale) * load(from + i, n), n); });
  });
}

void multiply(ops::Queue& queue, Tensor out, Tensor x, Activation activation) {
  const int64_t columns = out.shape[1];
  with_activation(activation, [&](auto function) {
    each_row(queue, out.shape[0], columns, [&](int64_t row) {
      const float* from = row_of(x, row);
      float* to = row_of(out, row);
      each_vec(columns, [&](int64_t i, auto n) { store(to + i, load(to + i, n) * function(load(from + i, n)), n); });
    });
  });
}

void softplus(ops::Queue& queue, Tensor x, const float* bias, float low, float high) {
  const int64_t columns = x.shape[1];
  const Vec least = broadcast(low), most = broadcast(high);
  each_row(queue, x.shape[0], columns, [&](int64_t row) {
    float* values = row_of(x, row);
    each_vec(columns, [&](int64_t i, auto n) {
      Vec v = load(values + i, n);
      if (bias != nullptr) v = v + load(bias + i, n);
      store(values + i, min(most, max(least, softplus(v))), n);
    });
  });
}

void embed(ops::Queue& queue, Tensor out, const Tensor& table, Indices ids) {
  const int64_t columns = out.shape[1], bytes = table.row_stride / table.dtype->block_size * table.dtype->block_bytes;
  each_row(queue, out.shape[0], columns, [&](int64_t row) {
    const std::byte* from = table.data + ids.data()[row] * bytes;
    float* to = row_of(out, row);
    if (table.dtype == &kBFloat16) {
      widen_row(reinterpret_cast<const Bf16*>(from), to, columns);
    } else if (table.dtype == &kFloat16) {
      widen_row(reinterpret_cast<const Fp16*>(from), to, columns);
    } else {
      to_float(table.dtype, from, to, static_cast<size_t>(columns));
    }
  });
}

void copy(ops::Queue& queue, Tensor out, Tensor x) {
  const int64_t columns = out.shape[1];
  each_row(queue, out.shape[0], columns, [&](int64_t row) {
    __builtin_memcpy(row_of(out, row), row_of(x, row), static_cast<size_t>(columns) * sizeof(float));
  });
}

void gather_rows(ops::Queue& queue, Tensor out, Tensor x, Indices rows) {
  const int64_t columns = out.shape[1];
  each_row(queue, out.shape[0], columns, [&](int64_t row) {
    __builtin_memcpy(row_of(out, row), row_of(x, rows.data()[row]), static_cast<size_t>(columns) * sizeof(float));
  });
}

void combine(ops::Queue& queue, const ops::CombineArgs& args) {
  const int64_t columns = args.out.shape[1], top_k = args.weights.shape[1];
  const auto* places = reinterpret_cast<const int32_t*>(args.places.data);
  CHECK(args.x.dtype == &kFloat32, "x is {}", args.x.dtype->name);
  each_row(queue, args.out.shape[0], columns * top_k, [&](int64_t row) {
    float* to = row_of(args.out, row);
    const float* weights = row_of(args.weights, row);
    each_vec(columns, [&](int64_t i, auto n) {
      Vec sum = args.accumulate ? load(to + i, n) : zero();
      for (int64_t entry = row * top_k, j = 0; j < top_k; ++entry, ++j) {
        const float* from = row_of(args.x, places != nullptr ? places[entry] : entry);
        sum = fma(broadcast(weights[j]), load(from + i, n), sum);
      }
      store(to + i, sum, n);
    });
  });
}

}  // namespace sluice::SLUICE_ISA
