// Ops that carry a state from row to row: convolution, scans, the delta rule, the gated LRU. A piece of work is one
// sequence and some columns of its state, over all rows. Columns are independent, so the split over threads and steps
// does not change any sum. The state of a piece fits in L1. Rows after the first are bound by arithmetic; a step of
// single rows is bound by reading and writing the states.
#include <utility>

#include "base/thread_pool.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/kernels.h"

namespace sluice::SLUICE_ISA {
namespace {

float* row_of(const Tensor& x, int64_t row) { return reinterpret_cast<float*>(x.data) + row * x.row_stride; }

// Rows [begin, end) of one sequence.
struct Rows {
  int32_t begin, end;
  float* state;  // the sequence's slot
  bool first;    // no earlier rows: the state starts as zeros
};

Rows rows_of(const ops::Sequences& sequences, const Tensor& state, int64_t s) {
  const int32_t begin = sequences.query_start.data()[s], end = sequences.query_start.data()[s + 1];
  return {begin, end, row_of(state, sequences.slots.data()[s]), sequences.kv_len.data()[s] == end - begin};
}

// Calls body(rows, part, worker) for every sequence with rows and every part of `parts`.
template <class F>
void each_part(ops::Queue& queue, const ops::Sequences& sequences, const Tensor& state, int64_t parts, F&& body) {
  const int64_t pieces = static_cast<int64_t>(sequences.kv_len.size()) * parts;
  constexpr int64_t kPiecesPerThread = 16;
  queue.threads().parallel_for(pieces, pieces / (queue.threads().threads() * kPiecesPerThread) + 1,
                               [&](int64_t begin, int64_t end, int worker) {
                                 for (int64_t piece = begin; piece < end; ++piece) {
                                   const Rows rows = rows_of(sequences, state, piece / parts);
                                   if (rows.begin < rows.end) body(rows, piece % parts, worker);
                                 }
                               });
}

constexpr int kBlock = 4;  // vectors processed together: enough independent sums to hide their latency
constexpr int64_t kBlockColumns = kBlock * kLanes;

int64_t blocks_of(int64_t columns) { return (columns + kBlockColumns - 1) / kBlockColumns; }

// Calls body(offset, number of vectors, extent of each) for the columns of block `block`.
template <class F>
SLUICE_INLINE void with_block(int64_t block, int64_t columns, F&& body) {
  const int64_t begin = block * kBlockColumns;
  if (begin + kBlockColumns <= columns) return body(begin, std::integral_constant<int, kBlock>{}, All{});
  each_vec(columns - begin, [&](int64_t i, auto n) { body(begin + i, std::integral_constant<int, 1>{}, n); });
}

// Calls body(0) .. body(Count - 1), unrolled: arrays indexed by the argument stay in registers.
template <int Count, class F>
SLUICE_INLINE void each(std::integral_constant<int, Count>, F&& body) {
  [&]<int... J>(std::integer_sequence<int, J...>) { (body(J), ...); }
  (std::make_integer_sequence<int, Count>{});
}

template <class Extent>
void clear(float* from, int64_t rows, int64_t stride, int vectors, Extent n) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) store(from + i * stride + j * kLanes, zero(), n);
  }
}

SLUICE_INLINE float exp_of(float x) { return first_lane(exp(broadcast(x))); }

// Returns the inputs that row t of a convolution sees, the oldest first.
void conv_inputs(const ops::CausalConvArgs& args, const Rows& rows, int64_t t, const float* zeros,
                 const float* (&inputs)[ops::kMaxConvWidth]) {
  const int64_t channels = args.x.shape[1];
  for (int j = 0; j < args.width; ++j) {
    const int64_t at = t - rows.begin - args.width + 1 + j;  // index in the sequence's rows
    if (at >= 0) {
      inputs[j] = row_of(args.x, rows.begin + at);
    } else {
      inputs[j] = rows.first ? zeros : rows.state + (args.width - 1 + at) * channels;
    }
  }
}

// Stores the last width - 1 inputs as the state.
void keep_inputs(const ops::CausalConvArgs& args, const Rows& rows) {
  const int64_t channels = args.x.shape[1], past = args.width - 1;
  const size_t bytes = static_cast<size_t>(channels) * sizeof(float);
  for (int64_t j = 0; j < past; ++j) {
    const int64_t at = rows.end - rows.begin - past + j;
    float* to = rows.state + j * channels;
    if (at >= 0) {
      __builtin_memcpy(to, row_of(args.x, rows.begin + at), bytes);
    } else if (rows.first) {
      __builtin_memset(to, 0, bytes);
    } else {  // copies toward the front, so that nothing is overwritten before it is read
      __builtin_memcpy(to, to + (rows.end - rows.begin) * channels, bytes);
    }
  }
}

}  // namespace

void causal_conv(ops::Queue& queue, const ops::CausalConvArgs& args) {
  const int64_t channels = args.x.shape[1], sequences = static_cast<int64_t>(args.sequences.kv_len.size());
  auto* zeros = reinterpret_cast<float*>(queue.threads().scratch(static_cast<size_t>(channels) * sizeof(float)));
  __builtin_memset(zeros, 0, static_cast<size_t>(channels) * sizeof(float));
  constexpr int64_t kGrain = 1 << 12;  // elements
  with_activation(args.activation, [&](auto function) {
    queue.threads().parallel_for(args.x.shape[0], kGrain / (channels + 1) + 1, [&](int64_t begin, int64_t end) {
      const int32_t* starts = args.sequences.query_start.data();
      int64_t s = 0;
      for (int64_t t = begin; t < end; ++t) {
        while (starts[s + 1] <= t) ++s;
        const float* inputs[ops::kMaxConvWidth];
        conv_inputs(args, rows_of(args.sequences, args.state, s), t, zeros, inputs);
        float* to = row_of(args.out, t);
        each_vec(channels, [&](int64_t i, auto n) {
          Vec sum = args.bias != nullptr ? load(args.bias + i, n) : zero();
          for (int j = 0; j < args.width; ++j) {
            sum = fma(load(args.weight + j * channels + i, n), load(inputs[j] + i, n), sum);
          }
          store(to + i, function(sum), n);
        });
      }
    });
  });
  queue.threads().parallel_for(sequences, kGrain / (channels + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const Rows rows = rows_of(args.sequences, args.state, s);
      if (rows.begin < rows.end) keep_inputs(args, rows);
    }
  });
}

void selective_scan(ops::Queue& queue, const ops::SelectiveScanArgs& args) {
  const int64_t channels = args.x.shape[1], count = args.b.shape[1], tile = count * kLanes;
  // Scratch per thread: a vector's columns of the state and of a. In their own arrays, rows are so far apart that they
  // would share few sets of L1.
  auto* scratch = reinterpret_cast<float*>(
      queue.threads().scratch(static_cast<size_t>(queue.threads().threads() * 2 * tile) * sizeof(float)));
  each_part(queue, args.sequences, args.state, blocks_of(channels), [&](const Rows& rows, int64_t block, int worker) {
    const int64_t columns = channels < (block + 1) * kBlockColumns ? channels : (block + 1) * kBlockColumns;
    float *h = scratch + worker * 2 * tile, *a = h + tile;
    each_vec(columns - block * kBlockColumns, [&](int64_t offset, auto n) {
      const int64_t at = block * kBlockColumns + offset;
      for (int64_t i = 0; i < count; ++i) {
        store(h + i * kLanes, rows.first ? zero() : load(rows.state + i * channels + at, n), All{});
        store(a + i * kLanes, load(args.a + i * channels + at, n), All{});
      }
      const Vec d = args.d != nullptr ? load(args.d + at, n) : zero();
      for (int64_t t = rows.begin; t < rows.end; ++t) {
        const float *b = row_of(args.b, t), *c = row_of(args.c, t);
        const Vec x = load(row_of(args.x, t) + at, n), dt = load(row_of(args.dt, t) + at, n), step = dt * x;
        Vec sum = zero();
        for (int64_t i = 0; i < count; ++i) {
          const Vec decay = exp(dt * load(a + i * kLanes, All{}));
          const Vec next = fma(broadcast(b[i]), step, decay * load(h + i * kLanes, All{}));
          store(h + i * kLanes, next, All{});
          sum = fma(broadcast(c[i]), next, sum);
        }
        store(row_of(args.out, t) + at, fma(d, x, sum), n);
      }
      for (int64_t i = 0; i < count; ++i) store(rows.state + i * channels + at, load(h + i * kLanes, All{}), n);
    });
  });
}

void head_scan(ops::Queue& queue, const ops::HeadScanArgs& args) {
  const int64_t dim = args.x.shape[1] / args.heads, count = args.b.shape[1] / args.groups, blocks = blocks_of(dim);
  each_part(queue, args.sequences, args.state, args.heads * blocks, [&](const Rows& rows, int64_t part, int) {
    const int64_t head = part / blocks, group = head / (args.heads / args.groups);
    const float d = args.d != nullptr ? args.d[head] : 0.0f;
    with_block(part % blocks, dim, [&](int64_t at, auto vectors, auto n) {
      constexpr int kCount = decltype(vectors)::value;
      float* state = rows.state + head * count * dim + at;
      if (rows.first) clear(state, count, dim, vectors, n);
      for (int64_t t = rows.begin; t < rows.end; ++t) {
        const float dt = args.dt.data != nullptr ? row_of(args.dt, t)[head] : 1.0f;
        const float *x = row_of(args.x, t) + head * dim + at, *b = row_of(args.b, t) + group * count;
        const float* c = row_of(args.c, t) + group * count;
        const Vec decay = broadcast(exp_of(dt * args.a[head]));
        Vec step[kCount], sum[kCount];
        each(vectors, [&](int j) { step[j] = broadcast(dt) * load(x + j * kLanes, n), sum[j] = zero(); });
        for (int64_t i = 0; i < count; ++i) {
          each(vectors, [&](int j) {
            float* s = state + i * dim + j * kLanes;
            const Vec next = fma(broadcast(b[i]), step[j], decay * load(s, n));
            store(s, next, n);
            sum[j] = fma(broadcast(c[i]), next, sum[j]);
          });
        }
        float* out = row_of(args.out, t) + head * dim + at;
        each(vectors, [&](int j) { store(out + j * kLanes, fma(broadcast(d), load(x + j * kLanes, n), sum[j]), n); });
      }
    });
  });
}

void delta_rule(ops::Queue& queue, const ops::DeltaRuleArgs& args) {
  const int64_t value_dim = args.v.shape[1] / args.heads, key_dim = args.q.shape[1] / args.key_heads;
  const int64_t blocks = blocks_of(value_dim);
  const bool per_channel = args.dt.shape[1] != args.heads;
  each_part(queue, args.sequences, args.state, args.heads * blocks, [&](const Rows& rows, int64_t part, int) {
    const int64_t head = part / blocks, keys = head / (args.heads / args.key_heads) * key_dim;
    const Vec a = broadcast(args.a[head]);
    with_block(part % blocks, value_dim, [&](int64_t at, auto vectors, auto n) {
      constexpr int kCount = decltype(vectors)::value;
      float* state = rows.state + head * key_dim * value_dim + at;
      if (rows.first) clear(state, key_dim, value_dim, vectors, n);
      for (int64_t t = rows.begin; t < rows.end; ++t) {
        const float *q = row_of(args.q, t) + keys, *k = row_of(args.k, t) + keys;
        const float* dt = row_of(args.dt, t) + (per_channel ? head * key_dim : head);
        const float *v = row_of(args.v, t) + head * value_dim + at, beta = row_of(args.beta, t)[head];
        // Calls body(i, decay of key i) for all keys.
        const auto each_key = [&](auto&& body) {
          float decay[kLanes];
          if (!per_channel) store(decay, exp(broadcast(dt[0]) * a), All{});
          each_vec(key_dim, [&](int64_t begin, auto some) {
            if (per_channel) store(decay, exp(load(dt + begin, some) * a), All{});
            const int64_t end = begin + kLanes < key_dim ? begin + kLanes : key_dim;
            for (int64_t i = begin; i < end; ++i) body(i, broadcast(decay[i - begin]));
          });
        };
        Vec seen[kCount], sum[kCount];
        each(vectors, [&](int j) { seen[j] = sum[j] = zero(); });
        each_key([&](int64_t i, Vec decay) {
          each(vectors, [&](int j) {
            seen[j] = fma(broadcast(k[i]), decay * load(state + i * value_dim + j * kLanes, n), seen[j]);
          });
        });
        each(vectors, [&](int j) { seen[j] = broadcast(beta) * (load(v + j * kLanes, n) - seen[j]); });
        each_key([&](int64_t i, Vec decay) {
          each(vectors, [&](int j) {
            float* s = state + i * value_dim + j * kLanes;
            const Vec next = fma(broadcast(k[i]), seen[j], decay * load(s, n));
            store(s, next, n);
            sum[j] = fma(broadcast(q[i]), next, sum[j]);
          });
        });
        float* out = row_of(args.out, t) + head * value_dim + at;
        each(vectors, [&](int j) { store(out + j * kLanes, sum[j], n); });
      }
    });
  });
}

void gated_lru(ops::Queue& queue, const ops::GatedLruArgs& args) {
  const int64_t channels = args.x.shape[1];
  each_part(queue, args.sequences, args.state, blocks_of(channels), [&](const Rows& rows, int64_t block, int) {
    const int64_t columns = channels < (block + 1) * kBlockColumns ? channels : (block + 1) * kBlockColumns;
    each_vec(columns - block * kBlockColumns, [&](int64_t offset, auto n) {
      const int64_t at = block * kBlockColumns + offset;
      const Vec one = broadcast(1.0f), rate = load(args.rate + at, n);
      const Vec input_bias = load(args.input_bias + at, n), recurrent_bias = load(args.recurrent_bias + at, n);
      Vec h = rows.first ? zero() : load(rows.state + at, n);
      for (int64_t t = rows.begin; t < rows.end; ++t) {
        const Vec gate = sigmoid(load(row_of(args.input_gate, t) + at, n) + input_bias);
        const Vec log_a = rate * sigmoid(load(row_of(args.recurrent_gate, t) + at, n) + recurrent_bias);
        const bool scaled = !rows.first || t != rows.begin;
        const Vec root = scaled ? sqrt(max(zero(), one - exp(log_a + log_a))) : one;
        h = fma(root * gate, load(row_of(args.x, t) + at, n), exp(log_a) * h);
        store(row_of(args.out, t) + at, h, n);
      }
      store(rows.state + at, h, n);
    });
  });
}

}  // namespace sluice::SLUICE_ISA
