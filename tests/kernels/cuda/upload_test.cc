// Uploads rows of many sizes and reads them back.
#include "kernels/cuda/upload.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cuda/device.h"
#include "ops/ops.h"

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

}  // namespace
}  // namespace sluice::cuda::upload_test
