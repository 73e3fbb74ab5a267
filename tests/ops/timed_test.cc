// The table that times another one: no slot is forgotten, and what is measured is what was called.
#include "ops/timed.h"

#include "ops/testing.h"

namespace sluice::ops {
namespace {

// A clock that moves by one second whenever somebody looks at it.
double tick() {
  static double seconds = 0;
  return seconds += 1;
}

TEST(Timed, EverySlotIsTimed) {
  const Ops& inner = select_backend("reference").table();
  const Ops& outer = timed(inner, tick);
  // All members before `matmul` are pointers to functions.
  const auto bytes = reinterpret_cast<const char*>(&inner.matmul) - reinterpret_cast<const char*>(&inner);
  const auto* of_inner = reinterpret_cast<void* const*>(&inner);
  const auto* of_outer = reinterpret_cast<void* const*>(&outer);
  for (size_t i = 0; i < static_cast<size_t>(bytes) / sizeof(void*); ++i) {
    if (of_inner[i] == nullptr) continue;
    EXPECT_NE(of_inner[i], of_outer[i]) << "slot " << i;
  }
  for (const auto& [type, kernels] : inner.matmul) {
    EXPECT_NE(outer.matmul.at(type).matmul, kernels.matmul) << type->name;
    EXPECT_EQ(outer.matmul.at(type).pack, kernels.pack) << type->name;
  }
}

TEST(Timed, CountsCallsTimeAndBytes) {
  const Ops& inner = select_backend("reference").table();
  ThreadPool pool(1);
  Arena arena(1 << 16);
  Ctx ctx{timed(inner, tick), pool, arena};
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
}  // namespace sluice::ops
