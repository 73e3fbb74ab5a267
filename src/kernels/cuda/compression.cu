// The ops of compressed attention and of hyper-connections (DeepSeek-V4), but for the attention itself
// (attention/entries.cu). Entries are made by one block per window of tokens, the rest by one thread or warp per
// element or row. A window's sums run in the order of its tokens, however a text is divided into steps, so an entry's
// bits depend on its own tokens alone. Bound by memory traffic in prompts, and by launches where one token is decoded.
#include "kernels/cuda/compression.h"

#include "kernels/cuda/device/entry_places.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

struct CompressParams {
  const float *x, *gates, *bias, *norm, *cos_sin;
  int64_t x_stride, gates_stride, cos_sin_stride;
  int series, dim, rotary;
  float eps;
  std::byte* entries;
  EntryPlaces places;
  float* state;
  int64_t state_stride;
  const int32_t *slots, *query_start, *kv_len, *block_table;
  int block_table_stride, sequences;
};

// The rows of a sequence, and its windows of this step. Window 0 is that of the first row.
struct Windows {
  int sequence, first_row, rows, position;

  __device__ Windows(const CompressParams& p, int sequence)
      : sequence(sequence),
        first_row(p.query_start[sequence]),
        rows(p.query_start[sequence + 1] - first_row),
        position(p.kv_len[sequence] - rows) {}
  __device__ int before(const CompressParams& p) const { return position / p.places.rate; }  // windows before window 0
  __device__ int complete(const CompressParams& p) const { return (position + rows) / p.places.rate - before(p); }
  // The first row of a window among the sequence's rows.
  __device__ int begin(const CompressParams& p, int window) const {
    return max(0, window * p.places.rate - position % p.places.rate);
  }
  __device__ int end(const CompressParams& p, int window) const {
    return min(rows, (window + 1) * p.places.rate - position % p.places.rate);
  }
};

// A mean in one channel, weighted by the softmax of gates. All zeros: no token so far.
struct RunningMean {
  float largest = 0.0f, weights = 0.0f, values = 0.0f;

  __device__ void add(float gate, float value) {
    if (weights == 0.0f) {
      largest = gate, weights = 1.0f, values = value;
    } else if (gate <= largest) {
      const float weight = expf(gate - largest);
      weights = __fadd_rn(weights, weight), values = __fmaf_rn(weight, value, values);
    } else {
      const float scale = expf(largest - gate);
      largest = gate;
      weights = __fmaf_rn(weights, scale, 1.0f), values = __fmaf_rn(values, scale, value);
    }
  }
};

// What one channel of a sequence has summed up, as in CompressArgs::state.
class ChannelState {
 public:
  __device__ ChannelState(const CompressParams& p, const Windows& w, int channel)
      : at_(p.state + p.slots[w.sequence] * p.state_stride + channel), dim_(p.dim), empty_(w.position == 0) {}
  __device__ RunningMean load(int series) const {
    if (empty_) return {};
    const float* from = at_ + series * 3 * dim_;
    return {from[0], from[dim_], from[2 * dim_]};
  }
  __device__ void store(int series, const RunningMean& mean) const {
    float* to = at_ + series * 3 * dim_;
    to[0] = mean.largest, to[dim_] = mean.weights, to[2 * dim_] = mean.values;
  }

 private:
  float* const at_;
  const int dim_;
  const bool empty_;
};

// Adds a window's tokens of this step, in the columns of one series.
__device__ void add_tokens(RunningMean& mean, const CompressParams& p, const Windows& w, int window, int series,
                           int channel) {
  const int column = series * p.dim + channel, end = w.end(p, window);
  const float* bias = p.bias + column;
#pragma unroll 4
  for (int i = w.begin(p, window); i < end; ++i) {
    const int64_t row = w.first_row + i;
    const int place = (w.position + i) % p.places.rate;
    mean.add(p.gates[row * p.gates_stride + column] + bias[int64_t{place} * p.series * p.dim],
             p.x[row * p.x_stride + column]);
  }
}

// The sum of the first of two series over the tokens of a window. The next window's entry begins with it.
__device__ RunningMean sum_for_next(const CompressParams& p, const Windows& w, const ChannelState& state, int window,
                                    int channel) {
  RunningMean mean;
  if (window == 0) mean = state.load(1);
  add_tokens(mean, p, w, window, 0, channel);
  return mean;
}

// The sum for the entry of a window.
__device__ RunningMean sum_of_entry(const CompressParams& p, const Windows& w, const ChannelState& state, int window,
                                    int channel) {
  RunningMean mean;
  if (window == 0) {
    mean = state.load(0);
  } else if (p.series == 2) {
    mean = sum_for_next(p, w, state, window - 1, channel);
  }
  add_tokens(mean, p, w, window, p.series - 1, channel);
  return mean;
}

// The block of each window that may be complete: a sequence's blocks begin at this one. It has at most one more than
// its rows fill.
__device__ inline int first_block(const CompressParams& p, int sequence) {
  return p.query_start[sequence] / p.places.rate + sequence;
}

// Makes the entry of a complete window. Shared memory: [dim].
template <class T>
__global__ void __launch_bounds__(kThreads) make_entries(const __grid_constant__ CompressParams p) {
  extern __shared__ float entry[];
  __shared__ float scratch[kWarp + 1];
  wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const Windows w(p, last_of(0, p.sequences - 1, [&](int s) { return first_block(p, s) <= block; }));
  const int window = block - first_block(p, w.sequence);
  if (window >= w.complete(p)) return;
  float squares = 0.0f;
  for (int c = thread; c < p.dim; c += kThreads) {
    const RunningMean mean = sum_of_entry(p, w, ChannelState(p, w, c), window, c);
    const float value = mean.values / mean.weights;
    entry[c] = value;
    squares = __fmaf_rn(value, value, squares);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(p.dim) + p.eps);
  for (int c = thread; c < p.dim; c += kThreads) entry[c] = entry[c] * scale * p.norm[c];
  __syncthreads();
  const int index = w.before(p) + window, plain = p.dim - p.rotary;
  const Rotation rotation{p.cos_sin, p.cos_sin_stride, p.rotary, true};
  const float* table = p.cos_sin + int64_t{index} * p.places.rate * p.cos_sin_stride;
  const int32_t* blocks = p.block_table + int64_t{w.sequence} * p.block_table_stride;
  T* to = reinterpret_cast<T*>(p.entries) + p.places.element(blocks, index);
  for (int c = thread; c < p.dim; c += kThreads) {
    to[c] = from_f32<T>(c < plain ? entry[c] : rotated(rotation, table, entry + plain, c - plain));
  }
}

// Stores what the tokens of incomplete windows add up to: one block per sequence and kThreads channels. Runs behind
// make_entries, which reads the state of the step before.
__global__ void __launch_bounds__(kThreads) keep_sums(const __grid_constant__ CompressParams p) {
  wait_for_earlier();
  const Windows w(p, static_cast<int>(blockIdx.x));
  const int channel = static_cast<int>(blockIdx.y * kThreads + threadIdx.x), last = w.complete(p);
  if (w.rows == 0 || channel >= p.dim) return;
  const ChannelState state(p, w, channel);
  const RunningMean present = sum_of_entry(p, w, state, last, channel);
  if (p.series == 2) state.store(1, sum_for_next(p, w, state, last, channel));
  state.store(0, present);
}

template <class T>
void make_entries_of(const Launch& l, const CompressParams& p, int64_t tokens) {
  const auto shared = static_cast<size_t>(p.dim) * sizeof(float);
  CHECK(shared <= 47 << 10, "entries of {} elements do not fit into shared memory", p.dim);
  const dim3 grid(static_cast<unsigned>(tokens / p.places.rate + p.sequences));
  launch_pdl(l, "compress: entries", make_entries<T>, grid, kThreads, shared, p);
}

__global__ void __launch_bounds__(kThreads) rotate_heads(float* x, int64_t stride, int heads, int dim,
                                                         Rotation rotation, float direction, const int32_t* positions) {
  wait_for_earlier();
  const int half = rotation.rotary / 2;
  const int64_t token = blockIdx.x;
  const float* table = rotation.cos_sin + positions[token] * rotation.stride;
  for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); i < heads * half;
       i += static_cast<int>(gridDim.y) * kThreads) {
    const int pair = i % half;
    float* at = x + token * stride + int64_t{i / half} * dim + dim - rotation.rotary + 2 * pair;
    const float a = at[0], b = at[1], c = table[pair], s = direction * table[half + pair];
    at[0] = a * c - b * s, at[1] = b * c + a * s;
  }
}

struct StreamParams {
  float* logits;
  int64_t stride;
  const float *scale, *base;
  int rows, columns, streams, iterations;
  float eps;
};

// One warp per row. Shared memory: the matrix, [streams, streams].
__global__ void __launch_bounds__(kWarp) weigh_streams(const __grid_constant__ StreamParams p) {
  extern __shared__ float matrix[];
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x), n = p.streams;
  float* x = p.logits + int64_t{blockIdx.x} * p.stride;
  for (int i = lane; i < p.columns; i += kWarp) {
    const float logit = x[i] * p.scale[min(i / n, 2)] + p.base[i];
    if (i >= 2 * n) {
      matrix[i - 2 * n] = logit;
    } else {
      const float sigmoid = 1.0f / (1.0f + expf(-logit));
      x[i] = i < n ? sigmoid + p.eps : 2.0f * sigmoid;
    }
  }
  if (p.columns == n) return;
  __syncwarp();
  for (int i = lane; i < n; i += kWarp) {
    float* row = matrix + i * n;
    float top = row[0], sum = 0.0f;
    for (int j = 1; j < n; ++j) top = row[j] > top ? row[j] : top;
    for (int j = 0; j < n; ++j) sum += row[j] = expf(row[j] - top);
    for (int j = 0; j < n; ++j) row[j] = row[j] / sum + p.eps;
  }
  const auto divide = [&](int line_stride, int element_stride) {
    __syncwarp();
    for (int i = lane; i < n; i += kWarp) {
      float* line = matrix + i * line_stride;
      float sum = 0.0f;
      for (int j = 0; j < n; ++j) sum += line[j * element_stride];
      for (int j = 0; j < n; ++j) line[j * element_stride] /= sum + p.eps;
    }
  };
  divide(1, n);
  for (int i = 1; i < p.iterations; ++i) divide(n, 1), divide(1, n);
  __syncwarp();
  for (int i = lane; i < n * n; i += kWarp) x[2 * n + i] = matrix[i % n * n + i / n];
}

}  // namespace

void compress(const Launch& l, const ops::CompressArgs& a) {
  const int64_t tokens = a.x.shape[0];
  if (tokens == 0) return;
  const ops::EntryCache& e = a.entries;
  const ops::PagedSequences& at = a.sequences;
  const CompressParams p{.x = a.x.f32(),
                         .gates = a.gates.f32(),
                         .bias = a.bias,
                         .norm = a.norm,
                         .cos_sin = a.cos_sin.f32(),
                         .x_stride = a.x.row_stride,
                         .gates_stride = a.gates.row_stride,
                         .cos_sin_stride = a.cos_sin.row_stride,
                         .series = a.series,
                         .dim = static_cast<int>(e.dim),
                         .rotary = static_cast<int>(a.cos_sin.shape[1]),
                         .eps = a.eps,
                         .entries = e.cache.data,
                         .places = EntryPlaces(e),
                         .state = a.state.f32(),
                         .state_stride = a.state.row_stride,
                         .slots = on_device(l, a.slots),
                         .query_start = on_device(l, at.query_start),
                         .kv_len = on_device(l, at.kv_len),
                         .block_table = on_device(l, at.block_table),
                         .block_table_stride = at.block_table_stride,
                         .sequences = static_cast<int>(at.kv_len.size())};
  const DType type = e.cache.dtype;
  if (type == &kFloat32) {
    make_entries_of<float>(l, p, tokens);
  } else if (type == &kBFloat16) {
    make_entries_of<__nv_bfloat16>(l, p, tokens);
  } else if (type == &kFloat16) {
    make_entries_of<__half>(l, p, tokens);
  } else if (type == &kFloat8E5M2) {
    make_entries_of<__nv_fp8_e5m2>(l, p, tokens);
  } else {
    CHECK(type == &kFloat8E4M3, "entries of {} are not supported", type->name);
    make_entries_of<__nv_fp8_e4m3>(l, p, tokens);
  }
  const dim3 grid(static_cast<unsigned>(p.sequences), static_cast<unsigned>(pieces(p.dim, kThreads)));
  launch_pdl(l, "compress: sums", keep_sums, grid, kThreads, 0, p);
}

void rotate(const Launch& l, const ops::RotateArgs& a) {
  const int64_t tokens = a.x.shape[0], heads = a.x.shape[1] / a.dim, rotary = a.cos_sin.shape[1];
  if (tokens == 0 || rotary == 0) return;
  const Rotation rotation{a.cos_sin.f32(), a.cos_sin.row_stride, static_cast<int>(rotary), true};
  const int64_t wanted = pieces(int64_t{l.sm_count} * 8, tokens), most = pieces(heads * rotary / 2, kThreads);
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(std::min(wanted, most)));
  launch_pdl(l, "rotate", rotate_heads, grid, kThreads, 0, a.x.f32(), a.x.row_stride, static_cast<int>(heads),
             static_cast<int>(a.dim), rotation, a.backward ? -1.0f : 1.0f, on_device(l, a.positions));
}

void stream_weights(const Launch& l, const ops::StreamWeightsArgs& a) {
  const StreamParams p{.logits = a.logits.f32(),
                       .stride = a.logits.row_stride,
                       .scale = a.scale,
                       .base = a.base,
                       .rows = static_cast<int>(a.logits.rows()),
                       .columns = static_cast<int>(a.logits.shape[1]),
                       .streams = a.streams,
                       .iterations = a.iterations,
                       .eps = a.eps};
  if (p.rows == 0) return;
  const size_t shared = static_cast<size_t>(a.streams) * static_cast<size_t>(a.streams) * sizeof(float);
  CHECK(shared <= 48 << 10, "{} streams do not fit into shared memory", a.streams);
  launch_pdl(l, "stream_weights", weigh_streams, dim3(static_cast<unsigned>(p.rows)), kWarp, shared, p);
}

}  // namespace sluice::cuda
