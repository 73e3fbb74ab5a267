// The ops between ranks: exact results, equal bits on all ranks, odd sizes, strided views, and matrices that are larger
// than an outbox. Ranks are threads on host memory and processes on other devices, because CUDA calls of one thread may
// wait for kernels of another.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "ops/testing.h"
#include "parallel/communicator.h"
#include "parallel/share.h"

extern char** environ;

namespace sluice::ops::collectives_test {
namespace {

struct Rank {
  Communicator& communicator;
  Ctx& ctx;
};

// Runs body(rank) for one rank, on the backend's devices in turn.
template <class F>
void run_rank(const Backend& backend, Communicator& communicator, int threads, F&& body) {
  ThreadPool pool(threads, /*pin=*/false);
  const std::unique_ptr<Queue> queue = backend.open(communicator.rank() % backend.devices()).make_queue(pool);
  Arena arena(0);
  Ctx ctx(*queue, arena);
  ctx.communicator = ctx.pipeline = &communicator;
  body(Rank{communicator, ctx});
  communicator.barrier();  // a rank that ends early would count as lost
}

constexpr int kFd = 3;
constexpr const char* kRankVariable = "SLUICE_TEST_RANK";  // "rank call": a process that is another rank

// Starts this program again, for the present test alone.
pid_t start_process(int fd, int rank, int call) {
  const std::string filter = std::string("--gtest_filter=") +
                             ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() + "." +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name();
  ::setenv(kRankVariable, fmt::format("{} {}", rank, call).c_str(), 1);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, fd, kFd);
  std::string name = "ops_test", argument = filter;
  char* words[] = {name.data(), argument.data(), nullptr};
  pid_t pid = -1;
  EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, words, environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::unsetenv(kRankVariable);
  return pid;
}

template <class F>
void on_processes(const Backend& backend, int size, int threads, F&& body) {
  static int calls = 0;
  const int call = calls++;
  if (const char* variable = std::getenv(kRankVariable); variable != nullptr) {
    int rank = 0, wanted = 0;
    ASSERT_EQ(std::sscanf(variable, "%d %d", &rank, &wanted), 2);
    if (call != wanted) return;
    run_rank(backend, *Communicator::join(kFd, rank), threads, body);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  std::vector<pid_t> processes;
  {
    const std::unique_ptr<Communicator> communicator = Communicator::create(size);
    for (int rank = 1; rank < size; ++rank) processes.push_back(start_process(communicator->fd(), rank, call));
    run_rank(backend, *communicator, threads, body);
  }
  for (const pid_t process : processes) {
    int status = -1;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0) << "of another rank";
  }
}

template <class F>
void on_ranks(const Backend& backend, int size, int threads, F&& body) {
  if (!backend.open(0).memory().host_accessible()) return on_processes(backend, size, threads, body);
  if (std::getenv(kRankVariable) != nullptr) return;
  std::vector<std::thread> running;
  for (std::unique_ptr<Communicator>& rank : Communicator::of_threads(size)) {
    running.emplace_back([&, mine = std::move(rank)] { run_rank(backend, *mine, threads, body); });
  }
  for (std::thread& thread : running) thread.join();
}

Owned matrix_of(int rank, int64_t rows, int64_t columns, int64_t gap) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  Owned matrix(&kFloat32, {rows, columns}, gap);
  matrix.fill(random, static_cast<float>(1 + 100 * rank));
  return matrix;
}

// Those with different kernels.
std::vector<const Backend*> backends() {
  std::vector<const Backend*> found;
  for (const Backend* backend : usable_backends()) {
    const auto equal = [&](const Backend* other) {
      return same_kernels<&OpTable::all_reduce, &OpTable::all_gather, &OpTable::send>(backend, other);
    };
    if (backend->can.collectives && std::ranges::none_of(found, equal)) found.push_back(backend);
  }
  return found;
}

struct Size {
  int64_t rows, columns, gap;
};
const std::vector<Size> kSizes = {{1, 1, 0},       {1, 256, 0}, {3, 257, 5},      {70, 4099, 1},
                                  {2, 300'000, 0}, {5, 2, 7},   {3, 2'500'000, 3}};

TEST(Collectives, AllReduceSumsInTheOrderOfTheRanks) {
  for (const Backend* backend : backends()) {
    for (const int size : {1, 2, 3}) {
      on_ranks(*backend, size, 2, [&](const Rank& rank) {
        for (const auto& [rows, columns, gap] : kSizes) {
          for (const bool accumulate : {false, true}) {
            const Owned x = matrix_of(rank.communicator.rank(), rows, columns, gap);
            Owned out = matrix_of(10, rows, columns, gap);
            const Owned before = out;
            all_reduce(rank.ctx, out, x, accumulate);
            std::vector<Owned> all;
            for (int i = 0; i < size; ++i) all.push_back(matrix_of(i, rows, columns, gap));
            for (int64_t i = 0; i < rows; ++i) {
              for (int64_t j = 0; j < columns; ++j) {
                float want = all[0].row(i)[j];
                for (int other = 1; other < size; ++other) want += all[static_cast<size_t>(other)].row(i)[j];
                if (accumulate) want = before.row(i)[j] + want;
                ASSERT_EQ(out.row(i)[j], want) << rows << " x " << columns << ", row " << i << ", column " << j;
              }
              for (int64_t j = columns; j < columns + (i + 1 < rows ? gap : 0); ++j) {
                ASSERT_EQ(out.row(i)[j], before.row(i)[j]) << "beside the matrix";
              }
            }
            all_reduce(rank.ctx, out, out, false);  // out may be x
          }
        }
      });
    }
  }
}

// Runs of rows travel while later ones are computed, if there are two ranks and the device can do it. Many sums in turn
// use the same memory. All values are small integers, so every order of additions has the same result.
TEST(Collectives, AllReduceOfRowsThatAreComputedMeanwhile) {
  const Size cases[] = {{5, 7, 0}, {1700, 4100, 0}, {2100, 2050, 0}, {900, 4096, 3}, {300, 16384, 0}, {0, 64, 0}};
  for (const Backend* backend : backends()) {
    for (const int size : {2, 3}) {
      on_ranks(*backend, size, 2, [&](const Rank& rank) {
        const auto value = [](int of_rank, int64_t row, int64_t column) {
          return static_cast<float>((row * 31 + column * 7 + of_rank * 5) % 61);
        };
        for (int round = 0; round < 3; ++round) {
          for (const auto& [rows, columns, gap] : cases) {
            Owned x(&kFloat32, {rows, columns}, gap), out(&kFloat32, {rows, columns}, gap);
            Owned made(&kFloat32, {rows, columns}, 0);
            for (int64_t i = 0; i < rows; ++i) {
              for (int64_t j = 0; j < columns; ++j) {
                made.row(i)[j] = value(rank.communicator.rank(), i, j) + static_cast<float>(round);
                out.row(i)[j] = static_cast<float>(i % 3);
              }
            }
            int64_t next = 0;
            all_reduce(rank.ctx, out, x, round != 1, [&](int64_t first, int64_t count) {
              ASSERT_EQ(first, next);
              next = first + count;
              if (count > 0) copy(rank.ctx, x->slice_rows(first, count), made->slice_rows(first, count));
            });
            ASSERT_EQ(next, rows);
            for (int64_t i = 0; i < rows; ++i) {
              for (int64_t j = 0; j < columns; ++j) {
                float want = round != 1 ? static_cast<float>(i % 3) : 0.0f;
                for (int other = 0; other < size; ++other) want += value(other, i, j) + static_cast<float>(round);
                ASSERT_EQ(out.row(i)[j], want) << rows << " x " << columns << ", row " << i << ", column " << j;
              }
            }
          }
        }
      });
    }
  }
}

TEST(Collectives, AllGatherPutsColumnsSideBySide) {
  for (const Backend* backend : backends()) {
    for (const int size : {1, 2, 3, 5}) {
      on_ranks(*backend, size, 1, [&](const Rank& rank) {
        for (const auto& [rows, columns, gap] : kSizes) {
          const Owned whole = matrix_of(3, rows, columns, gap);
          Owned out(&kFloat32, {rows, columns}, gap);
          const Share mine = share_of(columns, rank.communicator.rank(), size);
          all_gather(rank.ctx, out, whole->slice_columns(mine.begin, mine.count));
          for (int64_t i = 0; i < rows; ++i) ASSERT_TRUE(same_bits(out.row(i), whole.row(i), columns)) << columns;
        }
      });
    }
  }
}

TEST(Collectives, BroadcastCopiesFromRankZero) {
  for (const Backend* backend : backends()) {
    on_ranks(*backend, 3, 1, [&](const Rank& rank) {
      for (const auto& [rows, columns, gap] : kSizes) {
        Owned x = matrix_of(rank.communicator.rank(), rows, columns, 0);
        const Owned want = matrix_of(0, rows, columns, 0);
        broadcast(rank.ctx, x);
        for (int64_t i = 0; i < rows; ++i) ASSERT_TRUE(same_bits(x.row(i), want.row(i), columns)) << columns;
      }
      broadcast(rank.ctx, Owned(&kFloat32, {0, 5}));  // nothing
    });
  }
}

// Each rank sends to the next one; the last one answers the first.
TEST(Collectives, MessagesGoToOneRank) {
  for (const Backend* backend : backends()) {
    on_ranks(*backend, 3, 1, [&](const Rank& rank) {
      const int mine = rank.communicator.rank(), next = (mine + 1) % 3, previous = (mine + 2) % 3;
      for (const auto& [rows, columns, gap] : kSizes) {
        Owned out(&kFloat32, {rows, columns}, 0);
        if (mine == 0) send(rank.ctx, next, matrix_of(0, rows, columns, 0));
        receive(rank.ctx, previous, out);
        for (int64_t i = 0; i < rows; ++i) {
          ASSERT_TRUE(same_bits(out.row(i), matrix_of(0, rows, columns, 0).row(i), columns)) << columns;
        }
        if (mine != 0) send(rank.ctx, next, out);
      }
      send(rank.ctx, next, Owned(&kFloat32, {0, 5}));  // nothing
      receive(rank.ctx, previous, Owned(&kFloat32, {0, 5}));
    });
  }
}

TEST(Collectives, SharesCoverEverythingOnce) {
  for (const int64_t total : {0, 1, 7, 64}) {
    for (const int ranks : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Share share = share_of(total, rank, ranks);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(std::abs(share.count * ranks - total), ranks);
        next += share.count;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace sluice::ops::collectives_test
