// The number of tokens of one sequence that fit in a cache by the scheduler's count, with one group of layers and with
// groups by window.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include "nn/attention/kv_cache.h"
#include "scheduler/scheduler.h"

namespace sluice::context_test {
namespace {

constexpr int kStep = 512;  // tokens

int64_t context_in(const KvLayout& layout, int64_t bytes) {
  const int64_t blocks = bytes / static_cast<int64_t>(layout.block_bytes());
  int64_t tokens = 0;
  for (int64_t more = 1 << 24; more > 0; more /= 2) {
    if (peak_blocks(tokens + more, layout.block_size, layout.groups, kStep) <= blocks) tokens += more;
  }
  return tokens;
}

// Returns `layers` layers with Gemma 3's heads. Every `period`-th attends to all tokens, the others to the last 1024.
std::vector<KvShape> gemma3(int layers, int period) {
  std::vector<KvShape> shapes(layers, {.kv_heads = 4, .head_dim = 256, .value_dim = 256, .window = 1024});
  for (int i = period - 1; i < layers; i += period) shapes[i].window = 0;
  return shapes;
}

void expect_more_context(int layers, int period, double times) {
  const auto shapes = gemma3(layers, period);
  const int64_t memory = int64_t{4} << 30;
  const int64_t together = context_in(one_group(shapes, &kBFloat16, 16), memory);
  const int64_t apart = context_in(groups_by_window(shapes, &kBFloat16, 16, 131072), memory);
  fmt::print("{} layers, one of {} sees everything: {} tokens in one group, {} in groups\n", layers, period, together,
             apart);
  EXPECT_EQ(together, memory / (layers * 2 * 4 * 256 * 2) / 16 * 16);
  EXPECT_GT(static_cast<double>(apart), times * static_cast<double>(together));
}

TEST(Context, FiveSlidingLayersToOneFull) { expect_more_context(34, 6, 6.0); }
TEST(Context, ThreeSlidingLayersToOneFull) { expect_more_context(32, 4, 3.7); }
TEST(Context, EveryOtherLayerSlides) { expect_more_context(26, 2, 1.9); }
TEST(Context, OneOfManyLayersSeesEverything) { expect_more_context(64, 64, 5.0); }

}  // namespace
}  // namespace sluice::context_test
