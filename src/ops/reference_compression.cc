// The ops of compressed attention, for all backends that work on host memory. A row's sums run in an order that its own
// data fixes.
#include "ops/compression.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace compression {
namespace {

const float* row_of(const Tensor& x, int64_t row) { return x.f32() + row * x.row_stride; }
float* mutable_row(const Tensor& x, int64_t row) { return x.f32() + row * x.row_stride; }

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Partial sums in as many lanes as vector registers have; their order is fixed.
float dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float rest = 0;
  for (; i < n; ++i) rest += a[i] * b[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0] + rest;
}

// Rotates pairs (2i, 2i + 1).
void rotate_pairs(float* x, const float* cos_sin, int64_t rotary_dim, float direction) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], c = cos_sin[i], s = direction * cos_sin[half + i];
    x[2 * i] = a * c - b * s;
    x[2 * i + 1] = b * c + a * s;
  }
}

// The rows of one sequence of a step.
struct SequenceRows {
  int64_t begin = 0, count = 0;  // rows of the batch
  int64_t position = 0;          // the first row's
  const int32_t* blocks = nullptr;

  SequenceRows(const PagedSequences& all, size_t s)
      : begin(all.query_start[s]),
        count(all.query_start[s + 1] - begin),
        position(all.kv_len[s] - count),
        blocks(all.block_table.data() + s * static_cast<size_t>(all.block_table_stride)) {}
};

// Finds a row's sequence. Rows are asked for in any order.
size_t sequence_of(const PagedSequences& all, int64_t row) {
  const auto after = std::upper_bound(all.query_start.begin(), all.query_start.end(), row);
  return static_cast<size_t>(after - all.query_start.begin()) - 1;
}

std::byte* address(const EntryCache& e, const int32_t* blocks, int64_t entry) {
  const int64_t block_size = e.cache.shape[2], last_token = entry * e.rate + e.rate - 1;
  const int64_t block = last_token / block_size, first_entry = block * block_size / e.rate;
  const int64_t element = blocks[block] * block_size * e.cache.shape[3] + (entry - first_entry) * e.stride + e.first;
  return e.cache.data + element * static_cast<int64_t>(e.cache.dtype->block_bytes);
}

// Entries that a row at this position sees.
int64_t complete_entries(const EntryCache& e, int64_t position) { return (position + 1) / e.rate; }

void load_entry(const EntryCache& e, const int32_t* blocks, int64_t entry, float* to) {
  to_float(e.cache.dtype, address(e, blocks, entry), to, static_cast<size_t>(e.dim));
}

int64_t vector_at(const CacheTensor& cache, const int32_t* blocks, int64_t position) {
  const int64_t block_size = cache.shape[2];
  return blocks[position / block_size] * block_size + position % block_size;
}

void load_key(const CacheTensor& cache, int64_t vector, float* to) {
  const int64_t dim = cache.shape[3];
  const std::byte* from = cache.data + vector * dim * static_cast<int64_t>(cache.dtype->block_bytes);
  if (cache.dtype != &kInt8) return to_float(cache.dtype, from, to, static_cast<size_t>(dim));
  const auto* codes = reinterpret_cast<const int8_t*>(from);
  for (int64_t i = 0; i < dim; ++i) to[i] = cache.scales[vector] * static_cast<float>(codes[i]);
}

// A softmax-weighted mean in every channel, one token after the other. All zeros: no token so far.
struct RunningMean {
  float* largest = nullptr;
  float* weights = nullptr;
  float* values = nullptr;

  RunningMean(float* state, int64_t dim) : largest(state), weights(state + dim), values(state + 2 * dim) {}

  void add(int64_t channel, float gate, float value) {
    float& top = largest[channel];
    if (weights[channel] == 0) {
      top = gate, weights[channel] = 1, values[channel] = value;
    } else if (gate <= top) {
      const float weight = std::exp(gate - top);
      weights[channel] += weight, values[channel] += weight * value;
    } else {
      const float scale = std::exp(top - gate);
      top = gate;
      weights[channel] = weights[channel] * scale + 1, values[channel] = values[channel] * scale + value;
    }
  }
  void copy(int64_t channel, const RunningMean& from) {
    largest[channel] = from.largest[channel], weights[channel] = from.weights[channel];
    values[channel] = from.values[channel];
  }
  void clear(int64_t channel) { largest[channel] = weights[channel] = values[channel] = 0; }
};

// Runs channels [begin, end) of one sequence. `made`: the new entries, before the norm.
void sum_channels(const CompressArgs& args, const SequenceRows& rows, float* state, int64_t begin, int64_t end,
                  float* made) {
  const int64_t dim = args.entries.dim, rate = args.entries.rate;
  RunningMean present(state, dim), next(state + (args.series - 1) * 3 * dim, dim);
  const bool overlaps = args.series == 2;
  const int64_t own = overlaps ? dim : 0;  // the columns of the series that the present window's entry reads
  for (int64_t c = begin; c < end; ++c) {
    if (rows.position == 0) present.clear(c), next.clear(c);
    float* entry = made + c;
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t place = (rows.position + i) % rate;
      const float *x = row_of(args.x, rows.begin + i), *gates = row_of(args.gates, rows.begin + i);
      const float* bias = args.bias + place * args.series * dim;
      present.add(c, gates[own + c] + bias[own + c], x[own + c]);
      if (overlaps) next.add(c, gates[c] + bias[c], x[c]);
      if (place + 1 < rate) continue;
      *entry = present.values[c] / present.weights[c];
      entry += dim;
      if (overlaps) present.copy(c, next);
      next.clear(c);
    }
  }
}

void norm(float* x, const float* weight, int64_t dim, float eps) {
  const float scale = 1.0f / std::sqrt(dot(x, x, dim) / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) x[i] = x[i] * scale * weight[i];
}

void compress(Queue& queue, const CompressArgs& args) {
  constexpr int64_t kChannels = 64;  // in a piece of work
  const int64_t dim = args.entries.dim, rate = args.entries.rate;
  std::vector<float> made;
  for (size_t s = 0; s < args.sequences.kv_len.size(); ++s) {
    const SequenceRows rows(args.sequences, s);
    if (rows.count == 0) continue;
    const int64_t first = rows.position / rate, count = (rows.position + rows.count) / rate - first;
    made.resize(static_cast<size_t>(count * dim));
    float* state = mutable_row(args.state, args.slots[s]);
    queue.threads().parallel_for(
        dim, kChannels, [&](int64_t begin, int64_t end) { sum_channels(args, rows, state, begin, end, made.data()); });
    queue.threads().parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* entry = made.data() + i * dim;
        norm(entry, args.norm, dim, args.eps);
        const int64_t rotary_dim = args.cos_sin.shape[1];
        rotate_pairs(entry + dim - rotary_dim, row_of(args.cos_sin, (first + i) * rate), rotary_dim, 1.0f);
        from_float(args.entries.cache.dtype, entry, address(args.entries, rows.blocks, first + i),
                   static_cast<size_t>(dim));
      }
    });
  }
}

// Attention of one row for a few heads at a time, so that keys are decoded once for all of them.
class EntryRow {
 public:
  static constexpr int64_t kHeads = 8;  // in a piece of work

  explicit EntryRow(const EntryAttentionArgs& args)
      : args_(args), dim_(args.k_cache.shape[3]), key_(static_cast<size_t>(dim_)) {}

  void attend(int64_t row, int64_t head, int64_t heads) {
    const SequenceRows rows(args_.sequences, sequence_of(args_.sequences, row));
    const int64_t position = rows.position + row - rows.begin;
    begin(row, head, heads);
    for (int64_t p = std::max<int64_t>(0, position - args_.window + 1); p <= position; ++p) {
      load_key(args_.k_cache, vector_at(args_.k_cache, rows.blocks, p), key_.data());
      add();
    }
    if (args_.entries.cache.data != nullptr) add_entries(rows, row, position);
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t i = 0; i < dim_; ++i) out_[h * dim_ + i] /= sums_[h];
    }
  }

 private:
  void begin(int64_t row, int64_t head, int64_t heads) {
    heads_ = heads;
    q_ = row_of(args_.q, row) + head * dim_;
    out_ = mutable_row(args_.out, row) + head * dim_;
    std::fill_n(out_, heads * dim_, 0.0f);
    for (int64_t h = 0; h < heads; ++h) {
      largest_[h] = args_.sinks != nullptr ? args_.sinks[head + h] : -std::numeric_limits<float>::infinity();
      sums_[h] = args_.sinks != nullptr ? 1.0f : 0.0f;
    }
  }

  void add_entries(const SequenceRows& rows, int64_t row, int64_t position) {
    const int64_t count = complete_entries(args_.entries, position);
    const auto add_one = [&](int64_t entry) {
      load_entry(args_.entries, rows.blocks, entry, key_.data());
      add();
    };
    if (args_.selected.data == nullptr) {
      for (int64_t e = 0; e < count; ++e) add_one(e);
      return;
    }
    const int64_t most = args_.selected.shape[1];
    const auto* selected = args_.selected.as<const int32_t>() + row * most;
    for (int64_t i = 0; i < most && selected[i] >= 0; ++i) add_one(selected[i]);
  }

  // Adds the present key, which is also the value, to all heads.
  void add() {
    for (int64_t h = 0; h < heads_; ++h) {
      const float score = dot(q_ + h * dim_, key_.data(), dim_) * args_.scale;
      float* out = out_ + h * dim_;
      if (score > largest_[h]) {
        const float scale = std::exp(largest_[h] - score);
        largest_[h] = score;
        sums_[h] *= scale;
        for (int64_t i = 0; i < dim_; ++i) out[i] *= scale;
      }
      const float weight = std::exp(score - largest_[h]);
      sums_[h] += weight;
      for (int64_t i = 0; i < dim_; ++i) out[i] += weight * key_[i];
    }
  }

  const EntryAttentionArgs& args_;
  const int64_t dim_;
  std::vector<float> key_;
  int64_t heads_ = 0;
  const float* q_ = nullptr;
  float* out_ = nullptr;
  std::array<float, kHeads> largest_{}, sums_{};
};

void entry_attention(Queue& queue, const EntryAttentionArgs& args) {
  const int64_t pieces = (args.heads + EntryRow::kHeads - 1) / EntryRow::kHeads;
  queue.threads().parallel_for(args.q.shape[0] * pieces, 1, [&](int64_t begin, int64_t end) {
    EntryRow row(args);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item % pieces * EntryRow::kHeads;
      row.attend(item / pieces, head, std::min(EntryRow::kHeads, args.heads - head));
    }
  });
}

void rotate(Queue& queue, const RotateArgs& args) {
  const int64_t rotary_dim = args.cos_sin.shape[1];
  const float direction = args.backward ? -1.0f : 1.0f;
  queue.threads().parallel_for(args.x.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* x = mutable_row(args.x, t);
      const float* cos_sin = row_of(args.cos_sin, args.positions[static_cast<size_t>(t)]);
      for (int64_t at = args.dim - rotary_dim; at < args.x.shape[1]; at += args.dim) {
        rotate_pairs(x + at, cos_sin, rotary_dim, direction);
      }
    }
  });
}

void store_keys(Queue&, const StoreKeysArgs& args) {
  const int64_t dim = args.k_cache.shape[3];
  for (size_t t = 0; t < args.slots.size(); ++t) {
    const float* x = row_of(args.x, static_cast<int64_t>(t));
    std::byte* to = args.k_cache.data + args.slots[t] * dim * static_cast<int64_t>(args.k_cache.dtype->block_bytes);
    if (args.k_cache.dtype == &kInt8) {
      args.k_cache.scales[args.slots[t]] = encode_int8(x, reinterpret_cast<int8_t*>(to), dim);
    } else {
      from_float(args.k_cache.dtype, x, to, static_cast<size_t>(dim));
    }
  }
}

// Divides the rows and columns of a positive matrix [n, n] by their sums, in turn.
class Sinkhorn {
 public:
  Sinkhorn(float* matrix, int64_t n, float eps) : matrix_(matrix), n_(n), eps_(eps) {}

  void softmax_rows() {
    for (int64_t i = 0; i < n_; ++i) {
      float* row = matrix_ + i * n_;
      const float top = *std::max_element(row, row + n_);
      float sum = 0;
      for (int64_t j = 0; j < n_; ++j) sum += row[j] = std::exp(row[j] - top);
      for (int64_t j = 0; j < n_; ++j) row[j] = row[j] / sum + eps_;
    }
  }
  void divide_rows() { divide(n_, 1); }
  void divide_columns() { divide(1, n_); }
  void transpose() {
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < i; ++j) std::swap(matrix_[i * n_ + j], matrix_[j * n_ + i]);
    }
  }

 private:
  void divide(int64_t line_stride, int64_t stride) {
    for (int64_t i = 0; i < n_; ++i) {
      float* line = matrix_ + i * line_stride;
      float sum = 0;
      for (int64_t j = 0; j < n_; ++j) sum += line[j * stride];
      for (int64_t j = 0; j < n_; ++j) line[j * stride] /= sum + eps_;
    }
  }

  float* matrix_;
  int64_t n_;
  float eps_;
};

void stream_weights(Queue&, const StreamWeightsArgs& args) {
  const int64_t n = args.streams;
  for (int64_t row = 0; row < args.logits.rows(); ++row) {
    float* x = mutable_row(args.logits, row);
    for (int64_t i = 0; i < args.logits.shape[1]; ++i)
      x[i] = x[i] * args.scale[std::min<int64_t>(i / n, 2)] + args.base[i];
    for (int64_t i = 0; i < n; ++i) x[i] = sigmoid(x[i]) + args.eps;
    if (args.logits.shape[1] == n) continue;
    for (int64_t i = n; i < 2 * n; ++i) x[i] = 2 * sigmoid(x[i]);
    Sinkhorn mix(x + 2 * n, n, args.eps);
    mix.softmax_rows();
    mix.divide_columns();
    for (int i = 1; i < args.iterations; ++i) mix.divide_rows(), mix.divide_columns();
    mix.transpose();
  }
}

}  // namespace

constexpr CompressionOps kOps{.compress = compress,
                              .entry_attention = entry_attention,
                              .rotate = rotate,
                              .store_keys = store_keys,
                              .stream_weights = stream_weights};

}  // namespace compression

const CompressionOps kCompression = compression::kOps;

}  // namespace sluice::ops::reference
