// Tests RoPE tables: which prompts share rotations, and where the rows of a step come from.
#include "nn/attention/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "base/thread_pool.h"
#include "nn/loading/weights.h"

namespace sluice::rope_test {
namespace {

RopeSpec spec(const std::string& type) {
  RopeSpec s;
  s.type = type;
  s.rotary_dim = 8;
  s.factor = 2.0;
  s.original_max_positions = 16;
  s.short_factor.assign(4, 1.0);
  s.long_factor.assign(4, 3.0);
  return s;
}

Batch one_sequence(int prompt, int begin, int count) {
  Batch b;
  for (int i = 0; i < count; ++i) {
    b.tokens.push_back(0);
    b.positions.push_back(begin + i);
  }
  b.query_start = {0, count};
  b.kv_len = {begin + count};
  b.prompt_len = {prompt};
  return b;
}

TEST(Rope, ClassesOfPrompts) {
  EXPECT_EQ(rope_class(spec("default"), 1000), 0);
  EXPECT_EQ(rope_class(spec("yarn"), 1000), 0);
  EXPECT_EQ(rope_class(spec("longrope"), 16), 0);
  EXPECT_EQ(rope_class(spec("longrope"), 17), rope_class(spec("longrope"), 1000));
  EXPECT_NE(rope_class(spec("dynamic"), 17), rope_class(spec("dynamic"), 18));
  EXPECT_EQ(rope_class(spec("dynamic"), 3), rope_class(spec("dynamic"), 16));
}

// The scaling's own factor counts; the ratio of the lengths is used only without one. A length beside the scaling takes
// precedence over the scaling's own. "dynamic" stretches all positions.
TEST(Rope, LengthsAndFactorsOfAConfiguration) {
  const std::vector<double> ones(4, 1.0);
  const auto read = [](Json rope, Json rest = Json::object()) {
    rest["rope_parameters"] = std::move(rope);
    return read_rope(Config(rest, "config.json"), 8, 64);
  };
  const char* const original = "original_max_position_embeddings";
  const Json longrope = {{"rope_type", "longrope"}, {"short_factor", ones}, {"long_factor", ones}, {original, 16}};
  EXPECT_EQ(read(longrope).factor, 4.0);
  EXPECT_EQ(read(longrope, {{original, 32}}).factor, 2.0);
  EXPECT_EQ(read(longrope, {{original, 32}}).original_max_positions, 32);
  Json stretched = longrope;
  stretched["factor"] = 3.0;
  EXPECT_EQ(read(stretched).factor, 3.0);
  EXPECT_DOUBLE_EQ(read(stretched).attention_factor, std::sqrt(1 + std::log(3.0) / std::log(16.0)));
  EXPECT_EQ(read({{"rope_type", "yarn"}, {"factor", nullptr}, {original, 16}}).factor, 4.0);
  EXPECT_EQ(read({{"rope_type", "yarn"}, {"factor", 8.0}, {original, 16}}).factor, 8.0);
  EXPECT_EQ(read({{"rope_type", "dynamic"}, {"factor", 2.0}, {original, 16}}).original_max_positions, 64);
}

const Checkpoint kNoFile;

// A row of the step's table depends only on position and prompt length, not on the chunk it is computed in.
TEST(Rope, RowsDoNotDependOnChunks) {
  ThreadPool pool(1);
  ops::Queue queue(ops::select_backend("reference").open(0), pool);
  for (const char* type : {"default", "linear", "dynamic", "yarn", "llama3", "longrope"}) {
    RopeSpec s = spec(type);
    s.low_freq_factor = 1;
    s.high_freq_factor = 4;
    LoadContext context{.checkpoint = kNoFile, .queue = queue};
    Rope rope(s, 64, context);
    EXPECT_EQ(context.weight_bytes, depends_on_length(s) ? 0u : 64 * 8 * sizeof(float));
    Arena arena(1 << 16);
    ops::Ctx ctx(queue, arena);
    const Batch all = one_sequence(40, 0, 40);
    const auto whole = rope.rows(ctx, all);
    for (int begin = 0; begin < 40; begin += 7) {
      const int count = std::min(7, 40 - begin);
      const Batch chunk = one_sequence(40, begin, count);
      const auto part = rope.rows(ctx, chunk);
      for (int i = 0; i < count; ++i) {
        const float* a = whole.cos_sin.f32() + whole.rows[begin + i] * 8;
        const float* b = part.cos_sin.f32() + part.rows[i] * 8;
        for (int d = 0; d < 8; ++d) EXPECT_EQ(a[d], b[d]) << type << " position " << begin + i;
      }
    }
  }
}

TEST(Rope, FirstPositionIsNotRotated) {
  ThreadPool pool(1);
  ops::Queue queue(ops::select_backend("reference").open(0), pool);
  LoadContext context{.checkpoint = kNoFile, .queue = queue};
  Rope rope(spec("default"), 4, context);
  Arena arena(1 << 12);
  ops::Ctx ctx(queue, arena);
  const Batch batch = one_sequence(2, 0, 2);
  const auto rows = rope.rows(ctx, batch);
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(rows.cos_sin.f32()[d], 1.0f);
    EXPECT_EQ(rows.cos_sin.f32()[4 + d], 0.0f);
  }
  EXPECT_FLOAT_EQ(rows.cos_sin.f32()[8], std::cos(1.0f));
}

}  // namespace
}  // namespace sluice::rope_test
