// The pool of workers: order of small and large tasks, and tasks that throw.
#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>

namespace sluice::server::worker_pool_test {
namespace {

using Size = WorkerPool::Size;

TEST(WorkerPool, SmallTasksGoBeforeLargeOnes) {
  WorkerPool pool(1);
  std::promise<void> go, done;
  std::string order;
  pool.post(Size::kSmall, [&] { go.get_future().wait(); });
  for (const char c : {'L', 'M'}) pool.post(Size::kLarge, [&order, c] { order += c; });
  for (const char c : {'a', 'b', 'c'}) pool.post(Size::kSmall, [&order, c] { order += c; });
  pool.post(Size::kLarge, [&] { done.set_value(); });
  go.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, "abcLM");
}

TEST(WorkerPool, LargeTasksOccupyHalfOfTheThreads) {
  WorkerPool pool(4);
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::atomic<int> large{0};
  for (int i = 0; i < 8; ++i) {
    pool.post(Size::kLarge, [&large, ended] {
      ++large;
      ended.wait();
    });
  }
  for (int i = 0; i < 20; ++i) {
    std::promise<void> done;
    pool.post(Size::kSmall, [&] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  }
  EXPECT_LE(large, 2);
  end.set_value();
  while (large < 8) std::this_thread::yield();
}

TEST(WorkerPool, ATaskThatThrowsEndsAlone) {
  WorkerPool pool(1);
  pool.post(Size::kSmall, [] { throw std::runtime_error("boom"); });
  pool.post(Size::kLarge, [] { throw std::bad_alloc(); });
  std::promise<void> done;
  pool.post(Size::kLarge, [&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

}  // namespace
}  // namespace sluice::server::worker_pool_test
