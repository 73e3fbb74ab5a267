// Tests shapes, views, and the memory behind them.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "sluice/error.h"

namespace sluice::tensor_test {
namespace {

constexpr TypeInfo kBlocks{"blocks", 32, 18, ""};

TEST(Shape, CountsAndCompares) {
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().str(), "[]");
  const Shape s{2, 3, 4};
  EXPECT_EQ(s.elements(), 24);
  EXPECT_EQ(s[0], 2);
  EXPECT_EQ(s[-1], 4);
  EXPECT_EQ(s[-3], 2);
  EXPECT_EQ(s.str(), "[2, 3, 4]");
  EXPECT_EQ((Shape{5, 0, 7}).elements(), 0);
  EXPECT_TRUE((Shape{2, 3} == Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3} == Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{2, 3} == Shape{3, 2}));
  Shape grown;
  grown.append(2);
  grown.append(3);
  grown.append(4);
  EXPECT_EQ(grown, s);
}

TEST(ShapeDeathTest, AFifthDimensionIsABug) {
  Shape s{1, 1, 1, 1};
  EXPECT_DEATH(s.append(1), "rank_ < kMaxRank");
}

TEST(Tensor, RowsAndBytes) {
  std::vector<float> data(24);
  const Tensor t(data.data(), &kFloat32, {2, 3, 4});
  EXPECT_EQ(t.rows(), 2);
  EXPECT_EQ(t.row_elements(), 12);
  EXPECT_EQ(t.row_stride, 12);
  EXPECT_EQ(t.bytes(), 96u);
  EXPECT_TRUE(t.dense());
  const Tensor scalar(data.data(), &kFloat32, {});
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.bytes(), 4u);
  const Tensor empty(nullptr, &kFloat32, {0, 5});
  EXPECT_EQ(empty.bytes(), 0u);
  EXPECT_TRUE(empty.dense());
}

TEST(Tensor, RowsAreSlicedInPlace) {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.0f);
  const Tensor t(data.data(), &kFloat32, {4, 2, 3});
  const Tensor s = t.slice_rows(1, 2);
  EXPECT_EQ(s.shape, (Shape{2, 2, 3}));
  EXPECT_EQ(s.f32(), data.data() + 6);
  EXPECT_TRUE(s.dense());
  EXPECT_EQ(t.slice_rows(4, 0).shape, (Shape{0, 2, 3}));
}

TEST(Tensor, ColumnsKeepTheStrideOfTheirRow) {
  std::vector<float> data(12);
  std::iota(data.begin(), data.end(), 0.0f);
  const Tensor fused(data.data(), &kFloat32, {3, 4});
  const Tensor k = fused.slice_columns(2, 1);
  EXPECT_EQ(k.shape, (Shape{3, 1}));
  EXPECT_EQ(k.row_stride, 4);
  EXPECT_FALSE(k.dense());
  EXPECT_EQ(k.f32()[2 * k.row_stride], 10.0f);
  const Tensor last = k.slice_rows(2, 1);
  EXPECT_EQ(last.f32()[0], 10.0f);
  EXPECT_TRUE(last.dense()) << "one row is dense whatever its stride";
  EXPECT_EQ(fused.slice_columns(1, 3).slice_columns(1, 1).f32()[0], 2.0f);
}

TEST(Tensor, RowsOfBlockTypesBeginAtTheirBlocks) {
  std::vector<std::byte> data(3 * 2 * 18);
  const Tensor t(data.data(), &kBlocks, {3, 64});
  EXPECT_EQ(t.bytes(), data.size());
  EXPECT_EQ(t.slice_rows(2, 1).data, data.data() + 2 * 2 * 18);
  const Tensor right = t.slice_columns(32, 32);
  EXPECT_EQ(right.slice_rows(1, 1).data, data.data() + 3 * 18);
  EXPECT_EQ(right.shape, (Shape{3, 32}));
}

TEST(TensorDeathTest, SlicesOutsideAreBugs) {
  std::vector<float> data(12);
  const Tensor t(data.data(), &kFloat32, {3, 4});
  EXPECT_DEATH(t.slice_rows(2, 2), "row slice starts at 2 and has 2 rows");
  EXPECT_DEATH(t.slice_rows(-1, 1), "row slice starts at -1");
  EXPECT_DEATH(t.slice_columns(4, 1), "column slice starts at 4 and has 1 columns");
  const Tensor blocks(data.data(), &kBlocks, {1, 64});
  EXPECT_DEATH(blocks.slice_columns(0, 16), "16 columns from 0 in blocks of 32");
  EXPECT_DEATH(Tensor(data.data(), &kInt32, {3, 4}).f32(), "tensor is int32");
}

TEST(Buffer, IsZeroedAlignedAndMovable) {
  for (size_t bytes : {size_t{1}, size_t{4097}, (size_t{2} << 20) - 1, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    Buffer buffer(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    const size_t alignment = bytes >= (2u << 20) ? 2u << 20 : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0u) << bytes;
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    buffer.data()[bytes - 1] = std::byte{7};
    std::byte* const where = buffer.data();
    Buffer moved = std::move(buffer);
    EXPECT_EQ(moved.data(), where);
    EXPECT_EQ(moved.data()[bytes - 1], std::byte{7});
    Buffer assigned(1);
    assigned = std::move(moved);
    EXPECT_EQ(assigned.data(), where);
    EXPECT_EQ(assigned.size(), bytes);
  }
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

TEST(Buffer, MoreThanThereIsIsAnError) {
  for (size_t bytes : {size_t{1} << 60, SIZE_MAX - (size_t{1} << 21), SIZE_MAX}) {
    try {
      const Buffer buffer(bytes);
      ADD_FAILURE() << bytes;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kOutOfMemory);
    }
  }
}

TEST(Arena, TakesAlignedPiecesAndGivesThemBackByScope) {
  Arena arena(1024);
  const Tensor a = arena.take(&kFloat32, {3});
  EXPECT_EQ(arena.used(), 12u);
  const Tensor b = arena.take(&kFloat32, {2, 2});
  EXPECT_EQ(b.data - a.data, 64);
  EXPECT_EQ(arena.used(), 80u);
  {
    const Arena::Scope scope(arena);
    const Tensor inner = arena.take(&kFloat32, {100});
    EXPECT_EQ(inner.data - a.data, 128);
    {
      const Arena::Scope nested(arena);
      arena.take(&kFloat32, {16});
    }
    EXPECT_EQ(arena.used(), 528u);
  }
  EXPECT_EQ(arena.used(), 80u);
  EXPECT_EQ(arena.take(&kFloat32, {1}).data - a.data, 128) << "memory freed by a scope is reused";
  arena.reset();
  EXPECT_EQ(arena.take(&kFloat32, {256}).data, a.data) << "the whole arena is free again";
  EXPECT_EQ(arena.used(), arena.size());
}

TEST(ArenaDeathTest, APlanThatWasWrongIsABug) {
  Arena arena(64);
  arena.take(&kFloat32, {16});
  EXPECT_DEATH(arena.take(&kFloat32, {1}), "arena of 64 bytes");
}

}  // namespace
}  // namespace sluice::tensor_test
