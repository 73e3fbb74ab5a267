// Tests experts in every checkpoint layout: the same matrices must give the same bits, however they were stored.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <random>

#include "base/json.h"
#include "base/thread_pool.h"
#include "formats/quantized/quantized.h"
#include "nn/moe/moe.h"
#include "sluice/error.h"

namespace sluice::expert_layouts_test {
namespace {

constexpr int kExperts = 5, kHidden = 64, kInner = 96, kTopK = 2;

// Tensors made up in memory.
class MadeUp : public Checkpoint {
 public:
  float* add(const std::string& name, const Shape& shape) {
    memory_.emplace_back(static_cast<size_t>(shape.elements()));
    add(name, &kFloat32, shape, memory_.back().data());
    return memory_.back().data();
  }
  void add(const std::string& name, DType type, const Shape& shape, void* data) {
    const Tensor t(data, type, shape);
    tensors_[name] = {.name = name, .dtype = type, .shape = shape, .data = t.data, .bytes = t.bytes()};
  }
  void read_as(const char* method) {
    read_quantized(Config(Json{{"quantization_config", {{"quant_method", method}}}}, "config.json"), tensors_);
  }

 private:
  std::deque<std::vector<float>> memory_;
};

// All matrices, and biases if a layout has them, as 4-bit floats times powers of two.
struct Source {
  std::vector<uint8_t> gate_up_nibbles, down_nibbles;  // [experts, rows, columns]
  std::vector<uint8_t> gate_up_scales, down_scales;    // [experts, rows, columns / 32]
  std::vector<float> router, gate_up_bias, down_bias;

  explicit Source(std::mt19937& random) {
    const auto fill = [&](std::vector<uint8_t>& to, size_t count, int low, int high) {
      std::uniform_int_distribution<int> value(low, high);
      to.resize(count);
      for (uint8_t& v : to) v = static_cast<uint8_t>(value(random));
    };
    fill(gate_up_nibbles, size_t{kExperts} * 2 * kInner * kHidden, 0, 15);
    fill(down_nibbles, size_t{kExperts} * kHidden * kInner, 0, 15);
    fill(gate_up_scales, gate_up_nibbles.size() / 32, 121, 124);
    fill(down_scales, down_nibbles.size() / 32, 121, 124);
    std::normal_distribution<float> normal;
    for (auto [list, count] : {std::pair{&router, kExperts * kHidden},
                               {&gate_up_bias, kExperts * 2 * kInner},
                               {&down_bias, kExperts * kHidden}}) {
      for (int i = 0; i < count; ++i) list->push_back(normal(random));
    }
  }

  // gpt-oss stores gate rows and up rows interleaved: gate rows are the even ones.
  static float value(const std::vector<uint8_t>& nibbles, const std::vector<uint8_t>& scales, size_t i) {
    constexpr std::array<float, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const float magnitude = std::ldexp(kMagnitudes[nibbles[i] & 7], scales[i / 32] - 127);
    return nibbles[i] & 8 ? -magnitude : magnitude;
  }
  float gate(int e, int row, int column) const { return gate_up(e, 2 * row, column); }
  float up(int e, int row, int column) const { return gate_up(e, 2 * row + 1, column); }
  float gate_up(int e, int row, int column) const {
    return value(gate_up_nibbles, gate_up_scales, (size_t{2} * kInner * e + row) * kHidden + column);
  }
  float down(int e, int row, int column) const {
    return value(down_nibbles, down_scales, (size_t{kHidden} * e + row) * kInner + column);
  }
};

MoeSpec plain_spec() {
  MoeSpec s;
  s.top_k = kTopK;
  s.experts = kExperts;
  s.inner = kInner;
  s.normalize = true;
  s.gate = "gate", s.up = "up", s.down = "down";
  return s;
}

class ExpertLayouts : public ::testing::Test {
 protected:
  void add_router(MadeUp& made, const std::string& name = "gate.weight") {
    std::copy(source.router.begin(), source.router.end(), made.add(name, {kExperts, kHidden}));
  }

  // Runs the layer on fixed rows.
  std::vector<float> run(const MadeUp& made, const MoeSpec& spec) {
    LoadContext context{.checkpoint = made, .queue = queue, .dtype = &kFloat32};
    const Moe moe(Weights(context), spec, kHidden);
    context.finish();
    // inputs of a token over all experts that it takes
    EXPECT_EQ(context.widest_matmul, spec.top_k * std::max(kHidden, spec.inner));
    Arena arena(1 << 20);
    ops::Ctx ctx(queue, arena);
    std::mt19937 same(7);
    std::normal_distribution<float> normal;
    const Tensor x = arena.take(&kFloat32, {9, kHidden}), out = arena.take(&kFloat32, {9, kHidden});
    for (int i = 0; i < 9 * kHidden; ++i) x.f32()[i] = normal(same);
    moe(ctx, out, x, false);
    return {out.f32(), out.f32() + 9 * kHidden};
  }

  // The plainest layout: one tensor per expert.
  std::vector<float> separate() {
    MadeUp made;
    add_router(made);
    for (int e = 0; e < kExperts; ++e) {
      const std::string prefix = fmt::format("experts.{}.", e);
      float* gate = made.add(prefix + "gate.weight", {kInner, kHidden});
      float* up = made.add(prefix + "up.weight", {kInner, kHidden});
      float* down = made.add(prefix + "down.weight", {kHidden, kInner});
      for (int r = 0; r < kInner; ++r) {
        for (int c = 0; c < kHidden; ++c, ++gate, ++up) *gate = source.gate(e, r, c), *up = source.up(e, r, c);
      }
      for (int r = 0; r < kHidden; ++r) {
        for (int c = 0; c < kInner; ++c) *down++ = source.down(e, r, c);
      }
    }
    return run(made, plain_spec());
  }

  std::mt19937 random{42};
  Source source{random};
  ThreadPool threads{1, false};
  ops::Queue queue{ops::select_backend("reference").open(0), threads};
};

TEST_F(ExpertLayouts, Stacked) {
  MoeSpec spec = plain_spec();
  spec.layout = ExpertLayout::kStacked;
  spec.router = "router";
  spec.gate = "in";
  MadeUp stacked;
  add_router(stacked, "router.weight");
  float* in = stacked.add("in.weight", {kExperts, 2 * kInner, kHidden});
  float* down = stacked.add("down.weight", {kExperts, kHidden, kInner});
  for (int e = 0; e < kExperts; ++e) {
    for (int r = 0; r < 2 * kInner; ++r) {
      for (int c = 0; c < kHidden; ++c) *in++ = r < kInner ? source.gate(e, r, c) : source.up(e, r - kInner, c);
    }
    for (int r = 0; r < kHidden; ++r) {
      for (int c = 0; c < kInner; ++c) *down++ = source.down(e, r, c);
    }
  }
  EXPECT_EQ(run(stacked, spec), separate());
}

TEST_F(ExpertLayouts, FlatWithTheLastTransposed) {
  MadeUp made;
  add_router(made);
  MoeSpec spec = plain_spec();
  spec.layout = ExpertLayout::kFlat;
  spec.gate = "w1", spec.up = "v1", spec.down = "w2";
  float* gate = made.add("w1", {kExperts * kInner, kHidden});
  float* up = made.add("v1", {kExperts * kInner, kHidden});
  float* down = made.add("w2", {kExperts * kInner, kHidden});
  for (int e = 0; e < kExperts; ++e) {
    for (int r = 0; r < kInner; ++r) {
      for (int c = 0; c < kHidden; ++c) {
        *gate++ = source.gate(e, r, c), *up++ = source.up(e, r, c), *down++ = source.down(e, c, r);
      }
    }
  }
  EXPECT_EQ(run(made, spec), separate());
}

// gpt-oss: published in MXFP4, or as the transposed matrices that it decodes to.
TEST_F(ExpertLayouts, TransposedInTurnAndMxfp4) {
  MoeSpec spec = plain_spec();
  spec.layout = ExpertLayout::kTransposed;
  spec.router = "router";
  spec.gate = "gate_up_proj";
  const auto add_biases = [&](MadeUp& made) {
    std::copy(source.gate_up_bias.begin(), source.gate_up_bias.end(),
              made.add("gate_up_proj_bias", {kExperts, 2 * kInner}));
    std::copy(source.down_bias.begin(), source.down_bias.end(), made.add("down_bias", {kExperts, kHidden}));
  };
  MadeUp transposed;
  add_router(transposed, "router.weight");
  float* in = transposed.add("gate_up_proj", {kExperts, kHidden, 2 * kInner});
  float* out = transposed.add("down", {kExperts, kInner, kHidden});
  for (int e = 0; e < kExperts; ++e) {
    for (int c = 0; c < kHidden; ++c) {
      for (int r = 0; r < 2 * kInner; ++r) *in++ = source.gate_up(e, r, c);
    }
    for (int c = 0; c < kInner; ++c) {
      for (int r = 0; r < kHidden; ++r) *out++ = source.down(e, r, c);
    }
  }
  EXPECT_EQ(run(transposed, spec), separate());
  spec.bias = ExpertBias::kEach;
  add_biases(transposed);
  const std::vector<float> with_bias = run(transposed, spec);
  EXPECT_NE(with_bias, separate());

  const auto packed = [](const std::vector<uint8_t>& nibbles) {
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < nibbles.size(); i += 2) bytes.push_back(nibbles[i] | nibbles[i + 1] << 4);
    return bytes;
  };
  std::vector<uint8_t> gate_up = packed(source.gate_up_nibbles), down = packed(source.down_nibbles);
  MadeUp mxfp4;
  add_router(mxfp4, "router.weight");
  add_biases(mxfp4);
  mxfp4.add("gate_up_proj_blocks", &kUInt8, {kExperts, 2 * kInner, kHidden / 32, 16}, gate_up.data());
  mxfp4.add("gate_up_proj_scales", &kUInt8, {kExperts, 2 * kInner, kHidden / 32}, source.gate_up_scales.data());
  mxfp4.add("down_blocks", &kUInt8, {kExperts, kHidden, kInner / 32, 16}, down.data());
  mxfp4.add("down_scales", &kUInt8, {kExperts, kHidden, kInner / 32}, source.down_scales.data());
  mxfp4.read_as("mxfp4");
  EXPECT_EQ(run(mxfp4, spec), with_bias);

  MadeUp broken;
  add_router(broken, "router.weight");
  add_biases(broken);
  broken.add("down_blocks", &kUInt8, {kExperts, kHidden, kInner / 32, 15}, down.data());
  const auto refusal = [&] {
    try {
      broken.read_as("mxfp4");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal().find("'down_scales' is missing"), std::string::npos) << refusal();
  broken.add("down_blocks", &kUInt8, {kExperts, kHidden, kInner / 32, 15}, down.data());
  broken.add("down_scales", &kUInt8, {kExperts, kHidden, kInner / 32}, source.down_scales.data());
  EXPECT_NE(refusal().find("'down_blocks' [5, 64, 3, 15]"), std::string::npos) << refusal();
  broken.add("down_blocks", &kInt8, {kExperts, kHidden, kInner / 32, 16}, down.data());
  broken.add("down_scales", &kUInt8, {kExperts, kHidden, kInner / 32}, source.down_scales.data());
  EXPECT_NE(refusal().find("'down_blocks' [5, 64, 3, 16]: is int8"), std::string::npos) << refusal();
}

TEST_F(ExpertLayouts, TheBiasOfASumIsAddedOnce) {
  MadeUp made;
  add_router(made, "router.weight");
  MoeSpec spec = plain_spec();
  spec.layout = ExpertLayout::kStacked;
  spec.router = "router";
  spec.gate = "in";
  made.add("in.weight", {kExperts, 2 * kInner, kHidden});  // zeros
  made.add("down.weight", {kExperts, kHidden, kInner});
  spec.bias = ExpertBias::kSum;
  float* bias = made.add("bias", {kHidden});
  for (int i = 0; i < kHidden; ++i) bias[i] = static_cast<float>(i);
  const std::vector<float> out = run(made, spec);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], static_cast<float>(i % kHidden), 1e-4f);
}

}  // namespace
}  // namespace sluice::expert_layouts_test
