// Tests the thread that packs weights: the order of jobs, who waits for them, and what happens to errors.
#include "nn/loading/packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <latch>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "sluice/error.h"

namespace sluice::packer_test {
namespace {

constexpr bool kStay = true, kTemporary = false;

class PackerTest : public ::testing::Test {
 protected:
  Packer::Job add(int number) {
    return [this, number](ops::Queue&) { done_.push_back(number); };
  }
  static Packer::Job wait_for(std::latch& gate) {
    return [&gate](ops::Queue&) { gate.wait(); };
  }
  static void fail(ops::Queue&) { throw Error(ErrorCode::kCorruptFile, "a weight is NaN"); }

  ThreadPool pool_{2, /*pin=*/false};
  const std::unique_ptr<ops::Queue> queue_ = ops::select_host_backend().open(0).make_queue(pool_);
  const std::thread::id caller_ = std::this_thread::get_id();
  std::vector<int> done_;  // read when nothing runs
  Packer packer_{*queue_};
};

TEST_F(PackerTest, RunsJobsInOrder) {
  for (int i = 0; i < 100; ++i) packer_.run(add(i), 1, i % 7 == 0 ? kTemporary : kStay);
  EXPECT_TRUE(packer_.wait());
  EXPECT_EQ(packer_.pending(), 0u);
  ASSERT_EQ(done_.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(done_));
}

TEST_F(PackerTest, PacksTemporaryWeightsWithTheCaller) {
  const auto note = [&](ops::Queue& queue) {
    const bool here = &queue == queue_.get() && std::this_thread::get_id() == caller_;
    done_.push_back(here ? 1 : &queue.device() == &queue_->device() ? queue.threads().threads() : 0);
  };
  packer_.run(note, 1, kTemporary);
  packer_.run(note, 1, kStay);
  packer_.run(note, 1, kTemporary);
  EXPECT_EQ(done_, (std::vector{1, 2, 1}));
}

TEST_F(PackerTest, HandsOverWeightsThatStay) {
  std::latch gate(1);
  packer_.run(wait_for(gate), 10, kStay);
  packer_.run(add(1), 5, kStay);
  EXPECT_EQ(packer_.pending(), 15u);
  EXPECT_FALSE(packer_.wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(5)));
  gate.count_down();
  packer_.run(add(2), 1, kTemporary);
  EXPECT_EQ(done_, (std::vector{1, 2}));
  EXPECT_EQ(packer_.pending(), 0u);
}

// Returns a copy of `bytes` bytes of value `value`, in pieces of three.
ops::UploadedBytes filled(std::byte* to, size_t bytes, std::byte value) {
  return {.to = to, .bytes = bytes, .piece = 3, .read = [value](size_t, std::span<std::byte> into) {
            std::ranges::fill(into, value);
          }};
}

TEST_F(PackerTest, CopiesInOrderWithJobs) {
  std::array<std::byte, 30> to{};
  std::vector<std::ptrdiff_t> counts;
  const auto count = [&](ops::Queue&) { counts.push_back(std::ranges::count(to, std::byte{0})); };
  std::latch gate(1);
  packer_.run(wait_for(gate), 1, kStay);
  packer_.copy(filled(to.data(), 7, std::byte{1}));
  packer_.copy(filled(to.data() + 7, 0, std::byte{2}));
  packer_.copy(filled(to.data() + 7, 3, std::byte{3}));
  packer_.run(count, 1, kStay);
  packer_.copy(filled(to.data() + 10, 20, std::byte{4}));
  EXPECT_EQ(packer_.pending(), 1u + 10 + 1 + 20);
  gate.count_down();
  packer_.run(count, 1, kTemporary);
  EXPECT_EQ(counts, (std::vector<std::ptrdiff_t>{20, 0}));
  EXPECT_EQ(std::ranges::count(to, std::byte{1}), 7);
  EXPECT_EQ(std::ranges::count(to, std::byte{3}), 3);
  EXPECT_EQ(packer_.pending(), 0u);
}

TEST_F(PackerTest, ThrowsWhatACopyThrew) {
  std::byte to{};
  packer_.copy({.to = &to, .bytes = 1, .read = [](size_t, std::span<std::byte>) {
                  throw Error(ErrorCode::kCorruptFile, "a damaged weight");
                }});
  EXPECT_THROW(packer_.wait(), Error);
  EXPECT_THROW(packer_.copy(filled(&to, 1, std::byte{1})), Error);
}

TEST_F(PackerTest, ThrowsWhatAJobThrew) {
  std::latch gate(1);
  packer_.run(wait_for(gate), 1, kStay);
  packer_.run(fail, 1, kStay);
  packer_.run(add(1), 1, kStay);
  gate.count_down();
  EXPECT_THROW(packer_.wait(), Error);
  EXPECT_THROW(packer_.run(add(2), 1, kStay), Error);
  EXPECT_TRUE(done_.empty());
}

TEST_F(PackerTest, ThrowsToTheCallerWithTemporaryWeights) {
  EXPECT_THROW(packer_.run(fail, 1, kTemporary), Error);
  packer_.run(add(1), 1, kStay);
  EXPECT_TRUE(packer_.wait());
  packer_.run(fail, 1, kStay);
  EXPECT_THROW(packer_.run(add(2), 1, kTemporary), Error);
  EXPECT_EQ(done_, std::vector{1});
}

TEST_F(PackerTest, LeavesWhatIsNotBegun) {
  const auto held = std::make_shared<int>(0);
  std::latch gate(1);
  std::jthread opens;
  {
    Packer packer(*queue_);
    packer.run(wait_for(gate), 1, kStay);
    for (int i = 0; i < 100; ++i) packer.run([held, job = add(i)](ops::Queue& queue) { job(queue); }, 1, kStay);
    opens = std::jthread([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the packer is being destroyed then
      gate.count_down();
    });
  }
  EXPECT_TRUE(done_.empty());
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace sluice::packer_test
