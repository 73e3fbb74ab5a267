// Recurrent ops, which carry a state from row to row. A thread owns one column of a state (one channel, or one
// dimension of a head's values). It walks the rows of its sequence in order with the column in registers. Columns are
// adjacent, so states are read and written in whole cache lines. Decode is bound by reading and writing the states,
// long prompts by the length of the walk. Sums run over the column in index order.
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

struct Matrix {
  float* data;
  int64_t stride;
  __device__ float* row(int64_t i) const { return data + i * stride; }
};

// ops::Sequences in device memory.
struct SequenceIndices {
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* slots = nullptr;
  int sequences = 0;
};

SequenceIndices indices_of(const Launch& l, const ops::Sequences& s) {
  return {on_device(l, s.query_start), on_device(l, s.kv_len), on_device(l, s.slots),
          static_cast<int>(s.kv_len.size())};
}

Matrix matrix_of(const Tensor& t) { return {t.data != nullptr ? t.f32() : nullptr, t.row_stride}; }

// The rows of a sequence and the state in its slot.
struct Walk {
  int begin, end;
  bool first;  // these are all its rows: the state begins as zeros
  float* state;
};

__device__ Walk walk_of(const SequenceIndices& s, const Matrix& state, int sequence) {
  const int begin = s.query_start[sequence], end = s.query_start[sequence + 1];
  return {begin, end, s.kv_len[sequence] == end - begin, state.row(s.slots[sequence])};
}

// n values of a state, `stride` apart. They are kept in registers if at most `Held`, or in memory if Held is 0.
template <int Held>
class Column {
 public:
  __device__ Column(float* memory, int64_t stride, int n, bool zero) : memory_(memory), stride_(stride), n_(n) {
    each([&](int i, float& value) {
      if (zero) {
        value = 0.0f;
      } else if constexpr (Held > 0) {
        value = memory_[i * stride_];
      }
    });
  }
  __device__ void store() {
    if constexpr (Held > 0) {
      each([&](int i, float& value) { memory_[i * stride_] = value; });
    }
  }
  template <class F>
  __device__ void each(F&& f) {
    if constexpr (Held > 0) {
#pragma unroll
      for (int i = 0; i < Held; ++i) {
        if (i < n_) f(i, values_[i]);
      }
    } else {
      for (int i = 0; i < n_; ++i) f(i, memory_[i * stride_]);
    }
  }

 private:
  float* memory_;
  int64_t stride_;
  int n_;
  float values_[Held > 0 ? Held : 1];
};

template <class F>
void by_held(int n, F&& launch) {
  if (n <= 16) return launch.template operator()<16>();
  if (n <= 64) return launch.template operator()<64>();
  if (n <= 128) return launch.template operator()<128>();
  launch.template operator()<0>();
}

// Columns along x, sequences along y.
dim3 grid_of(int64_t columns, const SequenceIndices& s) {
  return {static_cast<unsigned>(pieces(columns, kThreads)), static_cast<unsigned>(s.sequences)};
}

__device__ int64_t column_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

struct ConvParams {
  Matrix out, x, state;
  const float *weight, *bias;
  int width, rows;
  int64_t channels;
  ops::Activation activation;
  SequenceIndices sequences;
};

constexpr int kConvRows = 32;  // rows of a block

// Grid: (channels, sequences, groups of rows).
__global__ void convolve(const __grid_constant__ ConvParams p) {
  const int64_t channel = column_index();
  const Walk walk = walk_of(p.sequences, p.state, blockIdx.y);
  const int past = p.width - 1, first = walk.begin + static_cast<int>(blockIdx.z) * kConvRows;
  if (channel >= p.channels) return;
  for (int t = first; t < min(first + kConvRows, walk.end); ++t) {
    float sum = p.bias != nullptr ? p.bias[channel] : 0.0f;
    for (int j = 0; j < p.width; ++j) {
      const int at = t - walk.begin + j;  // index among the state's inputs, then those of the step
      float input = 0.0f;
      if (at >= past) {
        input = p.x.row(walk.begin + at - past)[channel];
      } else if (!walk.first) {
        input = walk.state[at * p.channels + channel];
      }
      sum = fmaf(p.weight[j * p.channels + channel], input, sum);
    }
    p.out.row(t)[channel] = apply(p.activation, sum);
  }
}

// The last inputs become the state, oldest first. Each is moved to a place that is not read later.
__global__ void keep_inputs(const __grid_constant__ ConvParams p) {
  const int64_t channel = column_index();
  const Walk walk = walk_of(p.sequences, p.state, blockIdx.y);
  const int past = p.width - 1, rows = walk.end - walk.begin;
  if (channel >= p.channels || rows == 0) return;
  for (int j = 0; j < past; ++j) {
    const int at = rows + j;
    float& to = walk.state[j * p.channels + channel];
    if (at >= past) {
      to = p.x.row(walk.begin + at - past)[channel];
    } else {
      to = walk.first ? 0.0f : walk.state[at * p.channels + channel];
    }
  }
}

struct SelectiveParams {
  Matrix out, x, dt, b, c, state;
  const float *a, *d;
  int64_t channels;
  int n;
  SequenceIndices sequences;
};

template <int Held>
__global__ void __launch_bounds__(kThreads) selective_kernel(const __grid_constant__ SelectiveParams p) {
  const int64_t channel = column_index();
  const Walk walk = walk_of(p.sequences, p.state, blockIdx.y);
  if (channel >= p.channels || walk.begin == walk.end) return;
  Column<Held> state(walk.state + channel, p.channels, p.n, walk.first);
  for (int t = walk.begin; t < walk.end; ++t) {
    const float x = p.x.row(t)[channel], dt = p.dt.row(t)[channel], step = dt * x;
    const float *b = p.b.row(t), *c = p.c.row(t);
    float sum = 0.0f;
    state.each([&](int i, float& h) {
      h = expf(dt * p.a[i * p.channels + channel]) * h + step * b[i];
      sum = fmaf(c[i], h, sum);
    });
    p.out.row(t)[channel] = sum + (p.d != nullptr ? p.d[channel] * x : 0.0f);
  }
  state.store();
}

struct HeadScanParams {
  Matrix out, x, dt, b, c, state;
  const float *a, *d;
  int64_t columns;  // heads * dim
  int heads, groups, dim, n;
  SequenceIndices sequences;
};

template <int Held>
__global__ void __launch_bounds__(kThreads) head_scan_kernel(const __grid_constant__ HeadScanParams p) {
  const int64_t column = column_index();
  const Walk walk = walk_of(p.sequences, p.state, blockIdx.y);
  if (column >= p.columns || walk.begin == walk.end) return;
  const int head = static_cast<int>(column / p.dim), group = head / (p.heads / p.groups);
  const int64_t first = int64_t{head} * p.n * p.dim + column % p.dim;
  Column<Held> state(walk.state + first, p.dim, p.n, walk.first);
  const float d = p.d != nullptr ? p.d[head] : 0.0f;
  for (int t = walk.begin; t < walk.end; ++t) {
    const float x = p.x.row(t)[column], dt = p.dt.data != nullptr ? p.dt.row(t)[head] : 1.0f;
    const float decay = expf(dt * p.a[head]), step = dt * x;
    const float *b = p.b.row(t) + group * p.n, *c = p.c.row(t) + group * p.n;
    float sum = 0.0f;
    state.each([&](int i, float& s) {
      s = decay * s + step * b[i];
      sum = fmaf(c[i], s, sum);
    });
    p.out.row(t)[column] = sum + d * x;
  }
  state.store();
}

struct DeltaParams {
  Matrix out, q, k, v, dt, beta, state;
  const float* a;
  int64_t columns;  // heads * value_dim
  int heads, key_heads, key_dim, value_dim;
  bool per_channel;
  SequenceIndices sequences;
};

template <int Held>
__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ DeltaParams p) {
  const int64_t column = column_index();
  const Walk walk = walk_of(p.sequences, p.state, blockIdx.y);
  if (column >= p.columns || walk.begin == walk.end) return;
  const int head = static_cast<int>(column / p.value_dim), key_head = head / (p.heads / p.key_heads);
  const int64_t first = int64_t{head} * p.key_dim * p.value_dim + column % p.value_dim;
  Column<Held> state(walk.state + first, p.value_dim, p.key_dim, walk.first);
  for (int t = walk.begin; t < walk.end; ++t) {
    const float *q = p.q.row(t) + key_head * p.key_dim, *k = p.k.row(t) + key_head * p.key_dim;
    const float* dt = p.dt.row(t) + (p.per_channel ? head * p.key_dim : head);
    const float decay = p.per_channel ? 0.0f : expf(dt[0] * p.a[head]);
    float seen = 0.0f;
    state.each([&](int i, float& s) {
      s *= p.per_channel ? expf(dt[i] * p.a[head]) : decay;
      seen = fmaf(k[i], s, seen);
    });
    const float rest = p.beta.row(t)[head] * (p.v.row(t)[column] - seen);
    float sum = 0.0f;
    state.each([&](int i, float& s) {
      s = fmaf(k[i], rest, s);
      sum = fmaf(q[i], s, sum);
    });
    p.out.row(t)[column] = sum;
  }
  state.store();
}

struct LruParams {
  Matrix out, x, input_gate, recurrent_gate, state;
  const float *input_bias, *recurrent_bias, *rate;
  int64_t channels;
  SequenceIndices sequences;
};

__global__ void lru_kernel(const __grid_constant__ LruParams p) {
  const int64_t c = column_index();
  const Walk walk = walk_of(p.sequences, p.state, blockIdx.y);
  if (c >= p.channels || walk.begin == walk.end) return;
  float h = walk.first ? 0.0f : walk.state[c];
  for (int t = walk.begin; t < walk.end; ++t) {
    const float gate = sigmoid(p.input_gate.row(t)[c] + p.input_bias[c]);
    const float log_a = p.rate[c] * sigmoid(p.recurrent_gate.row(t)[c] + p.recurrent_bias[c]);
    const float root = walk.first && t == walk.begin ? 1.0f : sqrtf(-expm1f(2.0f * log_a));
    h = expf(log_a) * h + root * gate * p.x.row(t)[c];
    p.out.row(t)[c] = h;
  }
  walk.state[c] = h;
}

}  // namespace

void causal_conv(const Launch& l, const ops::CausalConvArgs& args) {
  if (args.x.rows() == 0) return;
  const ConvParams p{.out = matrix_of(args.out),
                     .x = matrix_of(args.x),
                     .state = matrix_of(args.state),
                     .weight = args.weight,
                     .bias = args.bias,
                     .width = args.width,
                     .rows = static_cast<int>(args.x.rows()),
                     .channels = args.x.shape[1],
                     .activation = args.activation,
                     .sequences = indices_of(l, args.sequences)};
  dim3 grid = grid_of(p.channels, p.sequences);
  grid.z = static_cast<unsigned>(pieces(p.rows, kConvRows));
  convolve<<<grid, kThreads, 0, l.stream>>>(p);
  check_launch("causal_conv");
  keep_inputs<<<grid_of(p.channels, p.sequences), kThreads, 0, l.stream>>>(p);
  check_launch("causal_conv: state");
}

void selective_scan(const Launch& l, const ops::SelectiveScanArgs& args) {
  if (args.x.rows() == 0) return;
  const SelectiveParams p{.out = matrix_of(args.out),
                          .x = matrix_of(args.x),
                          .dt = matrix_of(args.dt),
                          .b = matrix_of(args.b),
                          .c = matrix_of(args.c),
                          .state = matrix_of(args.state),
                          .a = args.a,
                          .d = args.d,
                          .channels = args.x.shape[1],
                          .n = static_cast<int>(args.b.shape[1]),
                          .sequences = indices_of(l, args.sequences)};
  by_held(p.n,
          [&]<int Held>() { selective_kernel<Held><<<grid_of(p.channels, p.sequences), kThreads, 0, l.stream>>>(p); });
  check_launch("selective_scan");
}

void head_scan(const Launch& l, const ops::HeadScanArgs& args) {
  if (args.x.rows() == 0) return;
  const HeadScanParams p{.out = matrix_of(args.out),
                         .x = matrix_of(args.x),
                         .dt = matrix_of(args.dt),
                         .b = matrix_of(args.b),
                         .c = matrix_of(args.c),
                         .state = matrix_of(args.state),
                         .a = args.a,
                         .d = args.d,
                         .columns = args.x.shape[1],
                         .heads = args.heads,
                         .groups = args.groups,
                         .dim = static_cast<int>(args.x.shape[1] / args.heads),
                         .n = static_cast<int>(args.b.shape[1] / args.groups),
                         .sequences = indices_of(l, args.sequences)};
  by_held(p.n,
          [&]<int Held>() { head_scan_kernel<Held><<<grid_of(p.columns, p.sequences), kThreads, 0, l.stream>>>(p); });
  check_launch("head_scan");
}

void delta_rule(const Launch& l, const ops::DeltaRuleArgs& args) {
  if (args.v.rows() == 0) return;
  const DeltaParams p{.out = matrix_of(args.out),
                      .q = matrix_of(args.q),
                      .k = matrix_of(args.k),
                      .v = matrix_of(args.v),
                      .dt = matrix_of(args.dt),
                      .beta = matrix_of(args.beta),
                      .state = matrix_of(args.state),
                      .a = args.a,
                      .columns = args.v.shape[1],
                      .heads = args.heads,
                      .key_heads = args.key_heads,
                      .key_dim = static_cast<int>(args.q.shape[1] / args.key_heads),
                      .value_dim = static_cast<int>(args.v.shape[1] / args.heads),
                      .per_channel = args.dt.shape[1] != args.heads,
                      .sequences = indices_of(l, args.sequences)};
  by_held(p.key_dim,
          [&]<int Held>() { delta_kernel<Held><<<grid_of(p.columns, p.sequences), kThreads, 0, l.stream>>>(p); });
  check_launch("delta_rule");
}

void gated_lru(const Launch& l, const ops::GatedLruArgs& args) {
  if (args.x.rows() == 0) return;
  const LruParams p{.out = matrix_of(args.out),
                    .x = matrix_of(args.x),
                    .input_gate = matrix_of(args.input_gate),
                    .recurrent_gate = matrix_of(args.recurrent_gate),
                    .state = matrix_of(args.state),
                    .input_bias = args.input_bias,
                    .recurrent_bias = args.recurrent_bias,
                    .rate = args.rate,
                    .channels = args.x.shape[1],
                    .sequences = indices_of(l, args.sequences)};
  lru_kernel<<<grid_of(p.channels, p.sequences), kThreads, 0, l.stream>>>(p);
  check_launch("gated_lru");
}

}  // namespace sluice::cuda
