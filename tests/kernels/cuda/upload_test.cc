// Uploads rows of many sizes and reads them back.
#include "kernels/cuda/upload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cuda/device.h"
#include "ops/ops.h"
#include "ops/upload.h"

namespace sluice::cuda::upload_test {
namespace {

class Uploads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no GPU";
    device_ = &ops::select_backend("cuda").open(0);
    queue_ = device_->make_copy_queue(pool_);
  }

  static std::byte byte_of(int64_t row, size_t at) {
    return static_cast<std::byte>((row * 131 + static_cast<int64_t>(at * 7 + at / 251)) & 255);
  }
  static void fill(int64_t begin, int64_t end, size_t row_bytes, std::byte* rows) {
    for (int64_t row = begin; row < end; ++row, rows += row_bytes) {
      for (size_t i = 0; i < row_bytes; ++i) rows[i] = byte_of(row, i);
    }
  }
  void expect_uploaded(int64_t rows, size_t row_bytes, size_t pitch) {
    SCOPED_TRACE(::testing::Message() << rows << " rows of " << row_bytes << " bytes, " << pitch << " apart");
    const Buffer there(static_cast<size_t>(rows) * pitch, device_->memory());
    upload_rows(*queue_, there.data(), pitch, row_bytes, rows,
                [&](int64_t begin, int64_t end, std::byte* to) { fill(begin, end, row_bytes, to); });
    queue_->wait();
    std::vector<std::byte> back(there.size());
    device_->memory().copy(back.data(), there.data(), back.size());
    size_t wrong = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const std::byte* at = back.data() + static_cast<size_t>(row) * pitch;
      for (size_t i = 0; i < pitch; ++i) wrong += at[i] == (i < row_bytes ? byte_of(row, i) : std::byte{0}) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0u);
  }

  ThreadPool pool_{5, /*pin=*/false};
  ops::Device* device_ = nullptr;
  std::unique_ptr<ops::Queue> queue_;
};

TEST_F(Uploads, RowsOfAnySize) {
  expect_uploaded(1, 1, 1);
  expect_uploaded(100'003, 4, 4);
  expect_uploaded(40'001, 4096, 4096);  // more than all slots hold
  expect_uploaded(977, 10'001, 10'240);
  expect_uploaded(11, (2u << 20) + 1, (2u << 20) + 1);  // longer than a slot of the other calls
  expect_uploaded(3, UploadSlots::kLongestRow, UploadSlots::kLongestRow);
  expect_uploaded(7, 3u << 20, 4u << 20);
  expect_uploaded(5'000, 3'000, 3'000);
}

TEST_F(Uploads, ErrorsReachTheCallerAndTheNextCallWorks) {
  const Buffer there(size_t{64} << 20, device_->memory());
  EXPECT_THROW(upload_rows(*queue_, there.data(), 1024, 1024, 65'536,
                           [&](int64_t begin, int64_t end, std::byte* to) {
                             if (end > 30'000) throw std::runtime_error("a damaged row");
                             fill(begin, end, 1024, to);
                           }),
               std::runtime_error);
  expect_uploaded(65'536, 1024, 1024);
}

TEST_F(Uploads, PiecesOfSeveralAreNotCut) {
  constexpr size_t kPiece = size_t{1} << 20;
  const std::vector<size_t> sizes = {kPiece, 7, 3 * kPiece + 1, 0, 90 * kPiece + 12'345, 5 * kPiece};
  std::vector<Buffer> there;
  std::vector<ops::UploadedBytes> all;
  std::atomic<size_t> cut = 0;
  for (const size_t bytes : sizes) {
    const Buffer& to = there.emplace_back(std::max<size_t>(bytes, 1), device_->memory());
    const auto seed = static_cast<int64_t>(all.size());
    all.push_back({to.data(), bytes, bytes % 2 == 0 ? kPiece : size_t{64} << 10, {}});
    all.back().read = [&cut, seed, bytes, piece = all.back().piece](size_t begin, std::span<std::byte> into) {
      if (begin % piece != 0 || (into.size() % piece != 0 && begin + into.size() != bytes)) ++cut;
      for (size_t i = 0; i < into.size(); ++i) into[i] = byte_of(seed, begin + i);
    };
  }
  ops::upload(*queue_, all);
  queue_->wait();
  EXPECT_EQ(cut, 0u);
  for (size_t n = 0; n < sizes.size(); ++n) {
    std::vector<std::byte> back(sizes[n]);
    device_->memory().copy(back.data(), there[n].data(), back.size());
    size_t wrong = 0;
    for (size_t i = 0; i < back.size(); ++i) wrong += back[i] == byte_of(static_cast<int64_t>(n), i) ? 0 : 1;
    EXPECT_EQ(wrong, 0u) << n;
  }
}

TEST_F(Uploads, PlainMatricesAreCopiedToTheirRows) {
  const Buffer there(1 << 20, device_->memory());
  const ops::Weight into{.dtype = &kBFloat16, .n = 64, .k = 256, .data = there.data()};
  std::byte source[1];
  EXPECT_EQ(ops::place_of(*queue_, into, 3, Tensor(source, &kBFloat16, {8, 256})), there.data() + 3 * 256 * 2);
  EXPECT_EQ(ops::place_of(*queue_, into, 3, Tensor(source, &kFloat32, {8, 256})), nullptr) << "converted";
  Tensor wide(source, &kBFloat16, {8, 256});
  wide.row_stride = 512;
  EXPECT_EQ(ops::place_of(*queue_, into, 3, wide), nullptr);
  ops::Weight padded = into;
  padded.k = 250;
  EXPECT_EQ(ops::place_of(*queue_, padded, 3, Tensor(source, &kBFloat16, {8, 250})), nullptr);
}

// A matrix is packed by several calls, and some of them read back what an earlier one uploaded.
TEST_F(Uploads, TakeTheirTurnAmongTheWorkOfTheQueue) {
  constexpr size_t kBytes = size_t{48} << 20;
  constexpr int kTurns = 4, kCopies = 100;  // copies that keep the device busy for longer than the host needs for rows
  const Buffer there(kBytes, device_->memory());
  std::vector<Buffer> copies;
  for (int turn = 0; turn < kTurns; ++turn) {
    upload_rows(*queue_, there.data(), 4096, 4096, kBytes / 4096, [&](int64_t begin, int64_t end, std::byte* to) {
      std::fill_n(to, (end - begin) * 4096, static_cast<std::byte>(turn + 1));
    });
    const Buffer& copy = copies.emplace_back(kBytes, device_->memory());
    for (int i = 0; i < kCopies; ++i) queue_->copy_async(copy.data(), there.data(), kBytes);
  }
  queue_->wait();
  std::vector<std::byte> back(kBytes);
  for (int turn = 0; turn < kTurns; ++turn) {
    device_->memory().copy(back.data(), copies[turn].data(), kBytes);
    EXPECT_EQ(std::ranges::count(back, static_cast<std::byte>(turn + 1)), static_cast<std::ptrdiff_t>(kBytes)) << turn;
  }
}

}  // namespace
}  // namespace sluice::cuda::upload_test
