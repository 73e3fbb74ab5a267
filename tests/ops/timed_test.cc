// The timing op table: it wraps every slot, and reports the ops that were called.
#include "ops/timed.h"

#include "ops/testing.h"

namespace sluice::ops::timed_test {
namespace {

// A clock that advances by one second at every read.
double tick() {
  static double seconds = 0;
  return seconds += 1;
}

TEST(Timed, EverySlotIsTimed) {
  const Ops& inner = select_backend("reference").open(0).ops();
  const Ops& outer = timed(inner, tick);
  const auto expect_wrapped = [&](const auto& slot) { EXPECT_NE(outer.*slot.member, inner.*slot.member) << slot.name; };
  std::apply([&](const auto&... slots) { (expect_wrapped(slots), ...); }, kSlots);
  for (const auto& [type, kernels] : inner.matmul) {
    EXPECT_NE(outer.matmul.at(type).matmul, kernels.matmul) << type->name;
    EXPECT_EQ(outer.matmul.at(type).pack, kernels.pack) << type->name;
  }
}

TEST(Timed, CountsCallsTimeAndBytes) {
  const Ops& inner = select_backend("reference").open(0).ops();
  ThreadPool threads(1);
  Queue queue(select_backend("reference").open(0), threads);
  Arena arena(1 << 16);
  Ctx ctx{timed(inner, tick), queue, arena};
  take_times();
  const Tensor x = arena.take(&kFloat32, {2, 8}), out = arena.take(&kFloat32, {2, 16});
  const Buffer memory(inner.matmul.at(&kFloat32).packed_bytes(16, 8));
  const Weight weight{.dtype = &kFloat32, .n = 16, .k = 8, .data = memory.data()};
  for (int i = 0; i < 3; ++i) matmul(ctx, {.out = out, .x = x, .weight = &weight});
  unary(ctx, out, Activation::kRelu);
  const std::vector<OpTime> times = take_times();
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[0].op, "matmul float32 16x8");
  EXPECT_EQ(times[0].calls, 3);
  EXPECT_EQ(times[0].seconds, 3);
  EXPECT_EQ(times[0].best, 1);
  EXPECT_EQ(times[0].bytes, 3.0 * static_cast<double>(memory.size() + x.bytes() + out.bytes()));
  EXPECT_EQ(times[1].op, "unary 2x16");
  EXPECT_EQ(times[2].op, "between ops");
  EXPECT_EQ(times[2].calls, 3);
  EXPECT_EQ(take_times().size(), 1u);
}

}  // namespace
}  // namespace sluice::ops::timed_test
