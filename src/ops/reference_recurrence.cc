// Scalar reference of the ops that carry a state from row to row, and of the related gates. States are rounded to fp32
// after every row, so splitting a sequence into steps does not change results.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace {

const float* row_of(const Tensor& x, int64_t row) { return x.f32() + row * x.row_stride; }
float* mutable_row(const Tensor& x, int64_t row) { return x.f32() + row * x.row_stride; }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Calls body(first row, row after the last, state, first) for each sequence. `first` tells whether these are the
// sequence's first rows; its state is then zeroed before the call.
template <class F>
void each_sequence(const Sequences& sequences, const Tensor& state, F&& body) {
  for (size_t s = 0; s < sequences.kv_len.size(); ++s) {
    const int32_t begin = sequences.query_start[s], end = sequences.query_start[s + 1];
    if (begin == end) continue;
    float* values = mutable_row(state, sequences.slots[s]);
    const bool first = sequences.kv_len[s] == end - begin;
    if (first) std::fill_n(values, state.shape[1], 0.0f);
    body(begin, end, values, first);
  }
}

}  // namespace

void multiply(Queue&, Tensor out, Tensor x, Activation activation) {
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t i = 0; i < out.shape[1]; ++i) mutable_row(out, row)[i] *= activate(activation, row_of(x, row)[i]);
  }
}

void softplus(Queue&, Tensor x, const float* bias, float low, float high) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t i = 0; i < x.shape[1]; ++i) {
      float& value = mutable_row(x, row)[i];
      const double v = double{value} + (bias != nullptr ? bias[i] : 0.0f);
      value = std::min(std::max(static_cast<float>(std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v)))), low), high);
    }
  }
}

void causal_conv(Queue&, const CausalConvArgs& args) {
  const int64_t channels = args.x.shape[1], past = args.width - 1;
  each_sequence(args.sequences, args.state, [&](int64_t begin, int64_t end, float* state, bool) {
    for (int64_t c = 0; c < channels; ++c) {
      std::vector<float> inputs;  // inputs from the state, then those of the step
      for (int64_t j = 0; j < past; ++j) inputs.push_back(state[j * channels + c]);
      for (int64_t t = begin; t < end; ++t) inputs.push_back(row_of(args.x, t)[c]);
      for (int64_t t = begin; t < end; ++t) {
        double sum = args.bias != nullptr ? args.bias[c] : 0.0;
        for (int64_t j = 0; j < args.width; ++j) sum += double{args.weight[j * channels + c]} * inputs[t - begin + j];
        mutable_row(args.out, t)[c] = activate(args.activation, static_cast<float>(sum));
      }
      for (int64_t j = 0; j < past; ++j) state[j * channels + c] = inputs[inputs.size() - past + j];
    }
  });
}

void selective_scan(Queue&, const SelectiveScanArgs& args) {
  const int64_t channels = args.x.shape[1], n = args.b.shape[1];
  each_sequence(args.sequences, args.state, [&](int64_t begin, int64_t end, float* state, bool) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t ch = 0; ch < channels; ++ch) {
        const double x = row_of(args.x, t)[ch], dt = row_of(args.dt, t)[ch];
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          float& h = state[i * channels + ch];
          h = static_cast<float>(std::exp(dt * args.a[i * channels + ch]) * h + dt * row_of(args.b, t)[i] * x);
          sum += double{row_of(args.c, t)[i]} * h;
        }
        mutable_row(args.out, t)[ch] = static_cast<float>(sum + (args.d != nullptr ? args.d[ch] * x : 0.0));
      }
    }
  });
}

void head_scan(Queue&, const HeadScanArgs& args) {
  const int64_t dim = args.x.shape[1] / args.heads, n = args.b.shape[1] / args.groups;
  each_sequence(args.sequences, args.state, [&](int64_t begin, int64_t end, float* state, bool) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < args.heads; ++head) {
        const int64_t group = head / (args.heads / args.groups);
        const double dt = args.dt.data != nullptr ? row_of(args.dt, t)[head] : 1.0;
        const double decay = std::exp(dt * args.a[head]), d = args.d != nullptr ? args.d[head] : 0.0;
        for (int64_t p = 0; p < dim; ++p) {
          const double x = row_of(args.x, t)[head * dim + p];
          double sum = 0;
          for (int64_t i = 0; i < n; ++i) {
            float& s = state[(head * n + i) * dim + p];
            s = static_cast<float>(decay * s + dt * row_of(args.b, t)[group * n + i] * x);
            sum += double{row_of(args.c, t)[group * n + i]} * s;
          }
          mutable_row(args.out, t)[head * dim + p] = static_cast<float>(sum + d * x);
        }
      }
    }
  });
}

void delta_rule(Queue&, const DeltaRuleArgs& args) {
  const int64_t value_dim = args.v.shape[1] / args.heads, key_dim = args.q.shape[1] / args.key_heads;
  const bool per_channel = args.dt.shape[1] != args.heads;
  each_sequence(args.sequences, args.state, [&](int64_t begin, int64_t end, float* state, bool) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < args.heads; ++head) {
        const int64_t keys = head / (args.heads / args.key_heads) * key_dim;
        const float *q = row_of(args.q, t) + keys, *k = row_of(args.k, t) + keys;
        const float* dt = row_of(args.dt, t) + (per_channel ? head * key_dim : head);
        for (int64_t j = 0; j < value_dim; ++j) {
          float* s = state + head * key_dim * value_dim + j;
          double seen = 0, sum = 0;
          for (int64_t i = 0; i < key_dim; ++i) {
            const double decay = std::exp(double{dt[per_channel ? i : 0]} * args.a[head]);
            s[i * value_dim] = static_cast<float>(decay * s[i * value_dim]);
            seen += double{k[i]} * s[i * value_dim];
          }
          const double rest = row_of(args.beta, t)[head] * (row_of(args.v, t)[head * value_dim + j] - seen);
          for (int64_t i = 0; i < key_dim; ++i) {
            s[i * value_dim] = static_cast<float>(s[i * value_dim] + k[i] * rest);
            sum += double{q[i]} * s[i * value_dim];
          }
          mutable_row(args.out, t)[head * value_dim + j] = static_cast<float>(sum);
        }
      }
    }
  });
}

void gated_lru(Queue&, const GatedLruArgs& args) {
  each_sequence(args.sequences, args.state, [&](int64_t begin, int64_t end, float* state, bool first) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < args.x.shape[1]; ++c) {
        const double gate = sigmoid(double{row_of(args.input_gate, t)[c]} + args.input_bias[c]);
        const double log_a = args.rate[c] * sigmoid(double{row_of(args.recurrent_gate, t)[c]} + args.recurrent_bias[c]);
        const double root = first && t == begin ? 1.0 : std::sqrt(-std::expm1(2 * log_a));
        state[c] = static_cast<float>(std::exp(log_a) * state[c] + root * gate * row_of(args.x, t)[c]);
        mutable_row(args.out, t)[c] = state[c];
      }
    }
  });
}

}  // namespace sluice::ops::reference
