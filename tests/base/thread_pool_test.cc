// Tests the thread pool: every piece runs once, many small runs work, idle workers sleep.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sluice::thread_pool_test {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPool, RunReachesEveryWorkerOnce) {
  for (int threads : {1, 2, 5, 16}) {
    ThreadPool pool(threads, false);
    ASSERT_EQ(pool.threads(), threads);
    for (int round = 0; round < 200; ++round) {
      // Not atomic: each worker writes its own entry, and the return orders all writes.
      std::vector<int> visits(threads);
      pool.run([&](int worker, int workers) {
        EXPECT_EQ(workers, threads);
        ++visits[worker];
      });
      for (int v : visits) ASSERT_EQ(v, 1);
    }
  }
}

TEST(ThreadPool, ParallelForHandsOutEveryPieceOnce) {
  for (int threads : {1, 3, 4}) {
    ThreadPool pool(threads, false);
    for (int64_t count : {0, 1, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<int> visits(count);
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_TRUE(begin < end && worker >= 0 && worker < threads);
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        for (int v : visits) ASSERT_EQ(v, 1) << count << " by " << grain;
      }
    }
  }
}

TEST(ThreadPool, WhatAPieceThrowsReachesTheCaller) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads, false);
    for (int round = 0; round < 100; ++round) {
      const auto fail = [](int64_t begin, int64_t) { throw std::runtime_error(begin < 50 ? "low" : "high"); };
      EXPECT_THROW(pool.parallel_for(100, 1, fail), std::runtime_error);
      EXPECT_THROW(pool.run([](int worker, int workers) {
        if (worker == workers - 1) throw std::runtime_error("last");
      }),
                   std::runtime_error);
      int64_t sum = 0;
      std::mutex mutex;
      pool.parallel_for(100, 1, [&](int64_t begin, int64_t) {
        const std::scoped_lock lock(mutex);
        sum += begin;
      });
      EXPECT_EQ(sum, threads == 1 ? 0 : 4950);
    }
  }
}

TEST(ThreadPool, PartsShareOutEverythingOnce) {
  for (const auto& [threads, parts] : {std::pair(1, 4), {2, 2}, {4, 3}, {5, 2}, {3, 8}}) {
    ThreadPool pool(threads, true, parts);
    ASSERT_EQ(pool.parts(), std::min(threads, parts));
    std::vector<int> sizes(pool.parts());
    for (int worker = 0; worker < threads; ++worker) ++sizes.at(pool.part_of(worker));
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    EXPECT_LE(*most - *least, 1);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {0, 1, 3, 64, 5000}) {  // grain 0: shrinking runs
        std::vector<int> visits(count);
        const auto visit = [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        };
        grain == 0 ? pool.parallel_runs(count, visit) : pool.parallel_for(count, grain, visit);
        for (int v : visits) ASSERT_EQ(v, 1) << count << " by " << grain;
      }
    }
  }
}

// A thread that works alone starts with its own part's share, not at the front.
TEST(ThreadPool, PartsBeginWithTheirOwnShare) {
  ThreadPool pool(2, false, 2);
  std::vector<int64_t> begins;
  for (int round = 0; round < 100 && begins != std::vector<int64_t>{0, 50}; ++round) {  // a thread may start late
    begins.assign(2, -1);
    pool.parallel_for(100, 10, [&](int64_t begin, int64_t, int worker) {
      if (begins[worker] < 0) begins[worker] = begin;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 50}));
}

// Imitates a step: hundreds of tiny ops in sequence, each reading what the previous one wrote.
TEST(ThreadPool, ManySmallRunsSeeEachOthersWrites) {
  ThreadPool pool(4, false);
  std::vector<int64_t> values(64, 0);
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    if (round % 7 == 0) {
      pool.run([&](int worker, int workers) {
        for (size_t i = worker; i < values.size(); i += workers) values[(i + 1) % 64] += 1;
      });
    } else {
      pool.parallel_for(64, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) values[i] += 1;
      });
    }
  }
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 64 * kRounds);
}

// Sleeping workers must wake for the next run.
TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(3, false);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> visits{0};
    pool.run([&](int, int) { ++visits; });
    ASSERT_EQ(visits, 3);
  }
}

TEST(ThreadPool, IdleCostsNothing) {
  ThreadPool pool(4, false);
  pool.run([](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the spin
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.005);  // 1% of one CPU for all threads together
}

TEST(ThreadPool, ScratchGrowsAndIsAligned) {
  ThreadPool pool(1);
  std::byte* small = pool.scratch(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 64, 0u);
  EXPECT_EQ(pool.scratch(50), small);
  std::byte* large = pool.scratch(1 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 64, 0u);
  large[(1 << 20) - 1] = std::byte{1};
}

}  // namespace
}  // namespace sluice::thread_pool_test
