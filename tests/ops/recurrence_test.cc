// Ops that carry a state, on every backend. Compares with the reference. Checks that results are bit-identical under
// other batches, steps, slots and thread counts.
#include <functional>
#include <limits>

#include "ops/testing.h"

namespace sluice::ops::recurrence_test {
namespace {

// An op over named inputs: fp32 tensors with a row per token.
struct Case {
  std::string name;
  std::vector<int64_t> widths;  // widths of the inputs
  int64_t out_width = 0;
  int64_t state_values = 0;
  std::function<void(Ctx&, const std::vector<Tensor>& in, const Tensor& out, const Tensor& state, const Sequences&)>
      run;
  std::function<void(std::vector<Owned>& in)> prepare{};  // maps random inputs to valid ones
};

Floats values(std::mt19937& random, int64_t count, float mean, float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  Floats made(static_cast<size_t>(count));
  for (float& v : made) v = normal(random);
  return made;
}

Floats negative(Floats x) {
  for (float& v : x) v = -std::abs(v) - 0.01f;
  return x;
}

void make_positive(Owned& x) {
  for (int64_t row = 0; row < x->rows(); ++row) {
    for (int64_t i = 0; i < x->shape[1]; ++i) x.row(row)[i] = std::abs(x.row(row)[i]) * 0.3f;
  }
}

void normalize(Owned& x, int64_t heads) {
  const int64_t dim = x->shape[1] / heads;
  for (int64_t row = 0; row < x->rows(); ++row) {
    for (int64_t h = 0; h < heads; ++h) {
      float* at = x.row(row) + h * dim;
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += double{at[i]} * at[i];
      for (int64_t i = 0; i < dim; ++i) at[i] = static_cast<float>(at[i] / std::sqrt(sum + 1e-6));
    }
  }
}

Case conv(std::mt19937& random, int64_t channels, int width, bool bias, Activation activation) {
  const auto weight = values(random, width * channels, 0, 0.5f), biases = values(random, channels, 0, 0.3f);
  return {.name = fmt::format("convolution of {} channels, width {}", channels, width),
          .widths = {channels},
          .out_width = channels,
          .state_values = (width - 1) * channels,
          .run = [=](Ctx& c, const auto& in, const Tensor& out, const Tensor& state, const Sequences& sequences) {
            causal_conv(c, {.out = out,
                            .x = in[0],
                            .state = state,
                            .width = width,
                            .weight = weight.data(),
                            .bias = bias ? biases.data() : nullptr,
                            .activation = activation,
                            .sequences = sequences});
          }};
}

Case selective(std::mt19937& random, int64_t channels, int64_t n, bool skip) {
  const auto a = negative(values(random, n * channels, 0, 3)), d = values(random, channels, 1, 0.1f);
  return {.name = fmt::format("selective scan of {} channels by {}", channels, n),
          .widths = {channels, channels, n, n},
          .out_width = channels,
          .state_values = n * channels,
          .run =
              [=](Ctx& c, const auto& in, const Tensor& out, const Tensor& state, const Sequences& sequences) {
                selective_scan(c, {.out = out,
                                   .x = in[0],
                                   .dt = in[1],
                                   .b = in[2],
                                   .c = in[3],
                                   .a = a.data(),
                                   .d = skip ? d.data() : nullptr,
                                   .state = state,
                                   .sequences = sequences});
              },
          .prepare = [](std::vector<Owned>& in) { make_positive(in[1]); }};
}

Case heads(std::mt19937& random, int heads, int groups, int64_t dim, int64_t n, bool steps) {
  const auto a = negative(values(random, heads, 0, 1)), d = values(random, heads, 1, 0.1f);
  return {.name = fmt::format("scan of {} heads in {} groups, {} by {}", heads, groups, n, dim),
          .widths = {heads * dim, heads, groups * n, groups * n},
          .out_width = heads * dim,
          .state_values = heads * dim * n,
          .run =
              [=](Ctx& c, const auto& in, const Tensor& out, const Tensor& state, const Sequences& sequences) {
                head_scan(c, {.out = out,
                              .x = in[0],
                              .dt = steps ? in[1] : Tensor(),
                              .b = in[2],
                              .c = in[3],
                              .a = a.data(),
                              .d = steps ? d.data() : nullptr,
                              .heads = heads,
                              .groups = groups,
                              .state = state,
                              .sequences = sequences});
              },
          .prepare = [](std::vector<Owned>& in) { make_positive(in[1]); }};
}

Case delta(std::mt19937& random, int heads, int key_heads, int64_t key_dim, int64_t value_dim, bool per_channel) {
  const auto a = negative(values(random, heads, 0, 1));
  return {.name = fmt::format("delta rule of {} heads over {}, {} by {}", heads, key_heads, key_dim, value_dim),
          .widths = {key_heads * key_dim, key_heads * key_dim, heads * value_dim, per_channel ? heads * key_dim : heads,
                     heads},
          .out_width = heads * value_dim,
          .state_values = heads * key_dim * value_dim,
          .run =
              [=](Ctx& c, const auto& in, const Tensor& out, const Tensor& state, const Sequences& sequences) {
                delta_rule(c, {.out = out,
                               .q = in[0],
                               .k = in[1],
                               .v = in[2],
                               .dt = in[3],
                               .beta = in[4],
                               .a = a.data(),
                               .heads = heads,
                               .key_heads = key_heads,
                               .state = state,
                               .sequences = sequences});
              },
          .prepare =
              [=](std::vector<Owned>& in) {
                normalize(in[0], key_heads);
                normalize(in[1], key_heads);
                make_positive(in[3]);
                make_positive(in[4]);
              }};
}

Case lru(std::mt19937& random, int64_t channels) {
  const auto rate = negative(values(random, channels, 0, 2));
  const auto input_bias = values(random, channels, 0, 0.3f), recurrent_bias = values(random, channels, 0, 0.3f);
  return {.name = fmt::format("gated LRU of {} channels", channels),
          .widths = {channels, channels, channels},
          .out_width = channels,
          .state_values = channels,
          .run = [=](Ctx& c, const auto& in, const Tensor& out, const Tensor& state, const Sequences& sequences) {
            gated_lru(c, {.out = out,
                          .x = in[0],
                          .input_gate = in[1],
                          .recurrent_gate = in[2],
                          .input_bias = input_bias.data(),
                          .recurrent_bias = recurrent_bias.data(),
                          .rate = rate.data(),
                          .state = state,
                          .sequences = sequences});
          }};
}

std::vector<Case> cases(std::mt19937& random) {
  std::vector<Case> all;
  for (auto [channels, width] : {std::pair{1, 1}, {5, 2}, {64, 3}, {131, 4}, {40, 7}}) {
    all.push_back(conv(random, channels, width, true, Activation::kSilu));
    all.push_back(conv(random, channels, width, false, Activation::kIdentity));
  }
  for (auto [channels, n] : {std::pair{1, 1}, {33, 5}, {64, 16}, {200, 8}}) {
    all.push_back(selective(random, channels, n, channels > 1));
  }
  for (auto [count, groups, dim, n] :
       {std::tuple{1, 1, 1, 1}, {6, 2, 7, 9}, {4, 1, 64, 16}, {3, 3, 80, 33}, {2, 2, 100, 4}}) {
    all.push_back(heads(random, count, groups, dim, n, true));
    all.push_back(heads(random, count, groups, dim, n, false));
  }
  for (auto [count, key_heads, key_dim, value_dim] :
       {std::tuple{1, 1, 1, 1}, {4, 2, 16, 16}, {6, 2, 19, 37}, {2, 2, 64, 130}}) {
    all.push_back(delta(random, count, key_heads, key_dim, value_dim, false));
    all.push_back(delta(random, count, key_heads, key_dim, value_dim, true));
  }
  for (int64_t channels : {1, 17, 64, 150}) all.push_back(lru(random, channels));
  return all;
}

// Three sequences of one case, which can be split into steps and batches in any way.
class Scene {
 public:
  static constexpr int kLengths[] = {1, 23, 9};
  static constexpr int kSlots = 5;
  static constexpr int kTotal = 33;

  Scene(const Case& the_case, std::mt19937& random) : case_(the_case) {
    for (int64_t width : case_.widths) in_.emplace_back(&kFloat32, Shape{kTotal, width}).fill(random);
    if (case_.prepare) case_.prepare(in_);
  }

  struct Span {
    int sequence, begin, end;
  };
  Owned new_state(std::mt19937& random) const {  // earlier slot contents must not matter
    Owned state(&kFloat32, {kSlots, case_.state_values}, 3);
    state.fill(random);
    return state;
  }
  // Results go to the rows of `out` [kTotal, out_width]; sequence s lives in slot (s + shift) % kSlots.
  void run(Ctx& ctx, const std::vector<Span>& spans, const Tensor& out, const Tensor& state, int shift) const {
    std::vector<int32_t> start = {0}, kv_len, slots;
    std::vector<int64_t> from;
    for (const Span& span : spans) {
      int64_t first = 0;
      for (int s = 0; s < span.sequence; ++s) first += kLengths[s];
      for (int r = span.begin; r < span.end; ++r) from.push_back(first + r);
      start.push_back(start.back() + span.end - span.begin);
      kv_len.push_back(span.end);
      slots.push_back((span.sequence + shift) % kSlots);
    }
    const auto rows = static_cast<int64_t>(from.size());
    std::vector<Owned> mine;
    std::vector<Tensor> in;
    mine.reserve(in_.size());  // views must not move
    for (size_t i = 0; i < in_.size(); ++i) {
      mine.emplace_back(&kFloat32, Shape{rows, case_.widths[i]}, static_cast<int64_t>(i) + 1);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(mine[i].row(r), in_[i].row(from[r]), case_.widths[i] * sizeof(float));
      }
      in.push_back(mine[i]);
    }
    Owned result(&kFloat32, {rows, case_.out_width}, 2);
    case_.run(ctx, in, result, state, {.query_start = start, .kv_len = kv_len, .slots = slots});
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(out.f32() + from[r] * out.row_stride, result.row(r), case_.out_width * sizeof(float));
    }
  }

 private:
  const Case& case_;
  std::vector<Owned> in_;
};

class RecurrenceTest : public OpsTest {};

TEST_P(RecurrenceTest, MatchesTheReference) {
  for (const Case& c : cases(random)) {
    SCOPED_TRACE(c.name);
    const Scene scene(c, random);
    Owned state = scene.new_state(random), expected_state(state);
    Owned out(&kFloat32, {Scene::kTotal, c.out_width}), expected(out);
    const std::vector<std::vector<Scene::Span>> steps = {{{1, 0, 12}, {0, 0, 1}, {2, 0, 2}}, {{2, 2, 9}, {1, 12, 23}}};
    for (const auto& step : steps) {
      scene.run(device.ctx, step, out, state, 0);
      scene.run(reference.ctx, step, expected, expected_state, 0);
    }
    expect_close(out, expected, 1e-5f, 0.1f);
    for (int slot = 0; slot < 3; ++slot) {
      expect_close(state->slice_rows(slot, 1), expected_state->slice_rows(slot, 1), 1e-5f, 0.1f);
    }
    for (int slot = 3; slot < Scene::kSlots; ++slot) {
      EXPECT_TRUE(same_bits(state.row(slot), expected_state.row(slot), c.state_values)) << "slot " << slot;
    }
  }
}

TEST_P(RecurrenceTest, RowsKeepTheirBitsInEveryStepAndBatch) {
  for (const Case& c : cases(random)) {
    SCOPED_TRACE(c.name);
    const Scene scene(c, random);
    Owned whole(&kFloat32, {Scene::kTotal, c.out_width}), last = scene.new_state(random);
    for (int s = 0; s < 3; ++s) scene.run(device.ctx, {{s, 0, Scene::kLengths[s]}}, whole, last, 0);
    for (int threads : {1, 3}) {
      Checked other(*GetParam(), threads);
      for (int chunk : {1, 2, 5, 16}) {
        Owned out(&kFloat32, {Scene::kTotal, c.out_width}), state = scene.new_state(random);
        for (int begin = 0; begin < 23; begin += chunk) {  // all sequences that have rows left
          std::vector<Scene::Span> spans;
          for (int s : {2, 0, 1}) {
            const int end = std::min(begin + chunk, Scene::kLengths[s]);
            if (begin < end) spans.push_back({s, begin, end});
          }
          scene.run(other.ctx, spans, out, state, 2);
        }
        ASSERT_TRUE(same_bits(out->f32(), whole->f32(), Scene::kTotal * c.out_width)) << "chunks of " << chunk;
        for (int s = 0; s < 3; ++s) {
          ASSERT_TRUE(same_bits(state.row((s + 2) % Scene::kSlots), last.row(s), c.state_values))
              << "chunks of " << chunk;
        }
      }
    }
  }
}

TEST_P(RecurrenceTest, MultiplyAndSoftplus) {
  for (int columns : {1, 15, 16, 100, 20000}) {
    SCOPED_TRACE(columns);
    Owned x(&kFloat32, {3, columns}, 5), gate(&kFloat32, {3, columns}, 2), bias(&kFloat32, {1, columns});
    x.fill(random, 3.0f), gate.fill(random, 3.0f), bias.fill(random);
    Owned expected(x);
    multiply(device.ctx, x, gate, Activation::kSilu);
    multiply(reference.ctx, expected, gate, Activation::kSilu);
    expect_close(x, expected, 1e-6f, 1.0f);
    softplus(device.ctx, x, bias->f32(), 0.125f, 4.0f);
    softplus(reference.ctx, expected, bias->f32(), 0.125f, 4.0f);
    expect_close(x, expected, 1e-6f, 1.0f);
  }
}

// Step sizes of scans are often tiny, so softplus must keep its relative accuracy for very negative inputs.
TEST_P(RecurrenceTest, SoftplusIsAccurateOverTheWholeRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Owned x(&kFloat32, {1, 8001});
  for (int i = 0; i <= 8000; ++i) x.row(0)[i] = static_cast<float>(i - 4000) * 0.0201f;
  const Owned inputs(x);
  softplus(device.ctx, x, nullptr, 0.0f, kInfinity);
  for (int i = 0; i <= 8000; ++i) {
    const double in = inputs.row(0)[i], exact = std::max(in, 0.0) + std::log1p(std::exp(-std::abs(in)));
    ASSERT_LE(std::abs(x.row(0)[i] - exact), 5e-7 * exact) << in;
  }
  Owned special(&kFloat32, {1, 3});
  const float inputs_of_special[] = {kInfinity, -kInfinity, std::nanf("")};
  std::memcpy(special->data, inputs_of_special, sizeof inputs_of_special);
  softplus(device.ctx, special, nullptr, 0.0f, kInfinity);
  EXPECT_EQ(special.row(0)[0], kInfinity);
  EXPECT_EQ(special.row(0)[1], 0.0f);
  EXPECT_TRUE(std::isnan(special.row(0)[2]));
}

SLUICE_FOR_EVERY_KERNEL(RecurrenceTest, &OpTable::causal_conv, &OpTable::selective_scan, &OpTable::head_scan,
                        &OpTable::delta_rule, &OpTable::gated_lru);

}  // namespace
}  // namespace sluice::ops::recurrence_test
