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

#include "ops/sum_runs.h"
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
  const Size cases[] = {{5, 7, 0}, {1700, 4100, 0}, {3100, 2050, 0}, {900, 4096, 3}, {400, 16384, 0}, {0, 64, 0}};
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

TEST(Collectives, AllToAllMovesTheColumnsOfEachRank) {
  for (const Backend* backend : backends()) {
    for (const int size : {1, 2, 3}) {
      on_ranks(*backend, size, 2, [&](const Rank& rank) {
        for (const auto& [rows, columns, gap] : kSizes) {
          const auto x_of = [&](int of) { return matrix_of(of, rows, columns * size, gap); };
          const Owned x = x_of(rank.communicator.rank());
          Owned out = matrix_of(10, rows, columns * size, gap + 1);
          const Owned before = out;
          all_to_all(rank.ctx, out, x);
          for (int other = 0; other < size; ++other) {
            const Owned theirs = x_of(other);
            for (int64_t i = 0; i < rows; ++i) {
              const float* want = theirs.row(i) + rank.communicator.rank() * columns;
              ASSERT_TRUE(same_bits(out.row(i) + other * columns, want, columns))
                  << rows << " x " << columns << ", row " << i << " of rank " << other;
            }
          }
          for (int64_t i = 0; i + 1 < rows; ++i) {
            ASSERT_TRUE(same_bits(out.row(i) + columns * size, before.row(i) + columns * size, gap + 1)) << "row " << i;
          }
        }
      });
    }
  }
}

// What every rank holds of a sum over the ranks in their order.
Owned sum_of(const std::vector<Owned>& summands, const Owned& before, bool accumulate) {
  Owned out(before);
  for (int64_t i = 0; i < out->rows(); ++i) {
    for (int64_t j = 0; j < out->shape[1]; ++j) {
      const auto at = [&](const Owned& x) {
        float value = 0;
        to_float(x->dtype, x->data + (i * x->row_stride + j) * x->dtype->block_bytes, &value, 1);
        return value;
      };
      float sum = at(summands[0]);
      for (size_t rank = 1; rank < summands.size(); ++rank) sum += at(summands[rank]);
      out.row(i)[j] = accumulate ? before.row(i)[j] + sum : sum;
    }
  }
  return out;
}

void expect_on_all_ranks(const Rank& rank, const Owned& x) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < x.bytes(); ++i) hash = (hash ^ static_cast<uint64_t>(x->data[i])) * 1099511628211u;
  std::vector<uint64_t> all(static_cast<size_t>(rank.communicator.size()));
  rank.communicator.all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(all)));
  for (const uint64_t other : all) ASSERT_EQ(other, hash) << "another rank has other bits";
}

// Uniform values in (-scale, scale), also in the gaps. Much faster than Owned::fill.
Owned& fill_evenly(Owned& x, uint64_t seed, float scale) {
  std::vector<float> values(x.bytes() / x->dtype->block_bytes);
  for (float& value : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = scale * (static_cast<float>(seed >> 40) * 0x1p-23f - 1.0f);
  }
  from_float(x->dtype, values.data(), x->data, values.size());
  return x;
}

// A sum with a norm behind it. What varies follows from the number of the turn.
struct NormedSum {
  const Size& size;
  bool centred;
  int turn;
  bool fuses;  // the device may compute the norm in the kernel of the sum, and takes rows of 16 bits
};

// `call` sums the given rows of this rank.
template <class F>
void expect_normed_sum(const Rank& rank, const NormedSum& test, F&& call) {
  const auto& [rows, columns, gap] = test.size;
  const int turn = test.turn, ranks = rank.communicator.size();
  const bool accumulate = turn % 3 != 0, in_place = turn % 5 == 0;
  const DType type = test.fuses && turn % 4 == 1 ? &kBFloat16 : &kFloat32;
  const bool rounds = test.fuses && !in_place && columns % 4 == 0;  // to what a matmul takes
  const DType out_type = !rounds                     ? &kFloat32
                         : turn % 7 == 2             ? &kFloat16
                         : turn % 7 == 3 && gap == 0 ? &kFloat8E4M3
                         : turn % 2 == 0             ? &kBFloat16
                                                     : &kFloat32;
  SCOPED_TRACE(fmt::format("{} x {}, turn {}, {} ranks", rows, columns, turn, ranks));
  const auto seed = [&](int number) { return static_cast<uint64_t>(100 * turn + number); };
  std::vector<Owned> summands;
  for (int i = 0; i < ranks; ++i) {
    fill_evenly(summands.emplace_back(type, Shape{rows, columns}, gap), seed(i), 1.7f);
  }
  Owned out(&kFloat32, {rows, columns}, gap), memory(&kFloat32, {rows, columns}, gap);
  Owned weight(&kFloat32, {1, columns}), bias(&kFloat32, {1, columns});
  fill_evenly(out, seed(10), 5.0f), fill_evenly(weight, seed(11), 1.7f), fill_evenly(bias, seed(12), 1.7f);
  Tensor normed = out_type == &kFloat8E4M3 ? rows_in(memory, out_type) : *memory;
  normed.dtype = out_type;
  const Owned want = sum_of(summands, out, accumulate);
  RowNorm norm{.out = in_place ? *out : normed, .weight = weight->f32(), .eps = 1e-5f, .centred = test.centred};
  if (test.centred && turn % 2 == 0) norm.bias = bias->f32();
  if (turn % 11 == 0) norm.weight = nullptr;
  Owned want_normed(&kFloat32, {rows, columns});
  Checked reference(select_backend("reference"), 1);
  if (test.centred) {
    layer_norm(reference.ctx, want_normed, want, norm.weight, norm.bias, norm.eps);
  } else {
    rms_norm(reference.ctx, want_normed, want, norm.weight, norm.eps);
  }
  call(out, summands[static_cast<size_t>(rank.communicator.rank())], accumulate, norm);
  if (!in_place) {
    for (int64_t i = 0; i < rows; ++i) ASSERT_TRUE(same_bits(out.row(i), want.row(i), columns)) << i;
  }
  const Tensor& result = norm.out;
  Owned wide(&kFloat32, {rows, columns});
  for (int64_t i = 0; i < rows; ++i) {
    to_float(out_type, result.data + i * result.row_stride * out_type->block_bytes, wide.row(i),
             static_cast<size_t>(columns));
    if (out_type != &kFloat8E4M3) continue;
    for (int64_t j = 0; j < columns; ++j) wide.row(i)[j] *= row_scales(result)[i];
  }
  const float tolerance = out_type == &kFloat32    ? 2e-6f
                          : out_type == &kFloat16  ? 6e-4f
                          : out_type == &kBFloat16 ? 5e-3f
                                                   : 4e-2f;
  expect_close(wide, want_normed, tolerance);
  expect_on_all_ranks(rank, wide);
}

// Sums with a norm behind them, in turn with plain sums of other sizes. Wide rows and many rows are beyond one kernel.
TEST(Collectives, ANormFollowsASum) {
  const Size cases[] = {{1, 4096, 0},  {64, 4096, 0}, {3, 64, 4},    {5, 2056, 8}, {7, 257, 3},    {33, 640, 0},
                        {130, 768, 0}, {2, 20480, 0}, {4, 40960, 0}, {1, 4, 0},    {520, 2048, 4}, {17, 7168, 0}};
  for (const Backend* backend : backends()) {
    const bool fuses = backend->open(0).ops().all_reduce_norm != nullptr;
    for (const int size : {1, 2, 3, 5}) {
      on_ranks(*backend, size, 2, [&](const Rank& rank) {
        int turn = 0;
        for (const Size& rows : cases) {
          for (const bool centred : {false, true}) {
            ++turn;
            expect_normed_sum(rank, {rows, centred, turn, fuses},
                              [&](const Tensor& out, const Tensor& mine, bool accumulate, const RowNorm& norm) {
                                all_reduce(rank.ctx, out, mine, accumulate, &norm);
                              });
            if (turn % 3 == 1) {
              Owned other = matrix_of(rank.communicator.rank(), 1 + turn % 9, 130 * turn, 0);
              all_reduce(rank.ctx, other, other, false);
              expect_on_all_ranks(rank, other);
            }
          }
        }
      });
    }
  }
}

// The same for rows that travel in runs. The last run is short, one case has more runs than may be under way, and rows
// may be too wide, or no whole units, for one kernel.
TEST(Collectives, ANormFollowsRowsThatAreComputedMeanwhile) {
  const Size cases[] = {{3100, 4100, 0}, {2180, 8192, 0}, {6200, 2052, 0}, {1400, 4099, 0}, {800, 16384, 0},
                        {900, 8192, 0},  {400, 4096, 4},  {777, 7168, 0},  {3073, 4096, 0}};
  for (const Backend* backend : backends()) {
    const Ops& ops = backend->open(0).ops();
    on_ranks(*backend, 2, 2, [&](const Rank& rank) {
      int turn = 0;
      for (const Size& rows : cases) {
        for (const bool centred : {false, true}) {
          ++turn;
          if (ops.begin_sum == nullptr && turn % 6 != 0) continue;  // all are one run
          expect_normed_sum(rank, {rows, centred, turn, ops.all_reduce_norm != nullptr},
                            [&](const Tensor& out, const Tensor& mine, bool accumulate, const RowNorm& norm) {
                              int64_t next = 0;
                              const auto compute = [&](int64_t first, int64_t count) {
                                ASSERT_EQ(first, next);
                                next = first + count;
                              };
                              all_reduce(rank.ctx, out, mine, accumulate, compute, &norm);
                              ASSERT_EQ(next, mine.shape[0]);
                            });
        }
      }
    });
  }
}

// The runs of a rank's sum that have begun, as a device with copy engines would see them.
struct BegunRuns {
  std::vector<Tensor> begun;  // oldest first
  size_t most = 0, sums = 0;
};
thread_local BegunRuns* begun_runs = nullptr;

Ops with_begun_runs(const Ops& inner) {
  static auto* const all_reduce = inner.all_reduce;
  Ops ops = inner;
  ops.all_reduce_norm = nullptr;
  ops.begin_sum = [](Queue&, Communicator&, const Tensor& x) {
    ASSERT_LE(x.bytes(), static_cast<size_t>(kRunBytes));
    begun_runs->begun.push_back(x);
    begun_runs->most = std::max(begun_runs->most, begun_runs->begun.size());
  };
  ops.all_reduce = [](Queue& queue, Communicator& ranks, Tensor out, Tensor x, bool accumulate) {
    std::vector<Tensor>& begun = begun_runs->begun;
    for (int64_t rows = 0; rows < x.shape[0]; begun.erase(begun.begin())) {
      ASSERT_FALSE(begun.empty()) << "row " << rows;
      ASSERT_EQ(begun[0].data, x.slice_rows(rows, 1).data) << "row " << rows;
      rows += begun[0].shape[0];
    }
    ++begun_runs->sums;
    all_reduce(queue, ranks, out, x, accumulate);
  };
  return ops;
}

// Every row is made before its run begins, and few sums take all runs in order.
TEST(Collectives, RunsBeginAndAreAddedInOrder) {
  constexpr int64_t kColumns = 1 << 15, kRowsOfRun = kRunBytes / (kColumns * static_cast<int64_t>(sizeof(float)));
  struct Case {
    int64_t rows;
    size_t most, sums, computed;
  };
  const Case cases[] = {{2 * kRowsOfRun + 5, 3, 1, 2},  // the last rows are computed with the run before them
                        {4 * kRowsOfRun, 4, 1, 4},
                        {5 * kRowsOfRun + 3, 4, 2, 5}};
  static_assert(kMostRunsBegun == 4);
  const Backend& backend = select_backend("reference");
  on_ranks(backend, 2, 1, [&](const Rank& rank) {
    const Ops ops = with_begun_runs(backend.open(0).ops());
    Ctx ctx(ops, rank.ctx.queue, rank.ctx.arena);
    ctx.communicator = &rank.communicator;
    for (const auto& [rows, most, sums, computed] : cases) {
      BegunRuns runs;
      begun_runs = &runs;
      Owned x(&kFloat32, {rows, kColumns});
      std::memset(x->data, 0, x.bytes());
      size_t calls = 0;
      all_reduce(ctx, x, x, false, [&](int64_t first, int64_t count) {
        ++calls;
        for (int64_t i = first; i < first + count; ++i) x.row(i)[i % kColumns] = static_cast<float>(i + 1);
      });
      for (int64_t i = 0; i < rows; ++i) {
        ASSERT_EQ(x.row(i)[i % kColumns], static_cast<float>(2 * (i + 1))) << "row " << i << " of " << rows;
      }
      EXPECT_TRUE(runs.begun.empty());
      EXPECT_EQ(runs.most, most) << rows;
      EXPECT_EQ(runs.sums, sums) << rows;
      EXPECT_EQ(calls, computed) << rows;
    }
  });
}

// NaN stays NaN whatever its bits are; the exchange marks absent words with one of them.
TEST(Collectives, EveryNanIsSummed) {
  for (const Backend* backend : backends()) {
    on_ranks(*backend, 2, 1, [&](const Rank& rank) {
      for (DType type : {&kFloat32, &kBFloat16}) {
        if (type != &kFloat32 && backend->open(0).ops().all_reduce_norm == nullptr) continue;
        for (const int64_t rows : {1, 90}) {
          Owned x(type, {rows, 1024}), out(&kFloat32, {rows, 1024}), normed(&kFloat32, {rows, 1024});
          std::mt19937 random(3);
          x.fill(random);
          const auto bytes = static_cast<size_t>(8 * type->block_bytes);
          if (rank.communicator.rank() == 1) std::memset(x->data, 0xff, bytes);
          const RowNorm norm{.out = normed, .eps = 1e-5f};
          for (const RowNorm* then : {static_cast<const RowNorm*>(nullptr), &norm}) {
            all_reduce(rank.ctx, out, x, false, then);
            for (int64_t j = 0; j < 1024; ++j) ASSERT_EQ(std::isnan(out.row(0)[j]), j < 8) << j;
            ASSERT_FALSE(std::isnan(out.row(rows - 1)[rows > 1 ? 0 : 1023]));
          }
          for (int64_t j = 0; j < 1024; ++j) ASSERT_TRUE(std::isnan(normed.row(0)[j])) << j;
        }
      }
    });
  }
}

// A captured graph with sums runs several times.
TEST(Collectives, GraphsRepeatSumsAndNorms) {
  for (const Backend* backend : backends()) {
    if (!backend->can.captures) continue;
    for (const int size : {2, 3}) {
      on_ranks(*backend, size, 1, [&](const Rank& rank) {
        constexpr int64_t kRows = 6, kColumns = 1024;
        Owned x(&kFloat32, {kRows, kColumns}), out(&kFloat32, {kRows, kColumns}), normed(&kFloat32, {kRows, kColumns});
        for (int64_t j = 0; j < kRows * kColumns; ++j) {
          x->f32()[j] = static_cast<float>(j % 13 + rank.communicator.rank()), out->f32()[j] = 0.0f;
        }
        Owned warm(x);
        all_reduce(rank.ctx, warm, warm, false);  // the first sum sets up the exchange
        rank.ctx.queue.wait();
        const RowNorm norm{.out = normed, .eps = 1e-5f};
        const auto graph = rank.ctx.queue.capture([&] {
          all_reduce(rank.ctx, out, x, true, &norm);
          all_reduce(rank.ctx, out, x, true);
          all_reduce(rank.ctx, out, x, true, &norm);
        });
        for (int i = 0; i < 5; ++i) graph->launch();
        rank.ctx.queue.wait();
        Checked reference(select_backend("reference"), 1);
        Owned want(out), want_normed(out);
        for (int64_t j = 0; j < kRows * kColumns; ++j) {
          want->f32()[j] = 15.0f * static_cast<float>(j % 13 * size + size * (size - 1) / 2);
        }
        rms_norm(reference.ctx, want_normed, want, nullptr, 1e-5f);
        for (int64_t i = 0; i < kRows; ++i) ASSERT_TRUE(same_bits(out.row(i), want.row(i), kColumns)) << i;
        expect_close(normed, want_normed, 2e-6f);
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

// Ops of several kinds and sizes share the memory between ranks. None may read what another one left there.
TEST(Collectives, OpsOfAllKindsFollowEachOther) {
  for (const Backend* backend : backends()) {
    for (const int size : {2, 3}) {
      on_ranks(*backend, size, 1, [&](const Rank& rank) {
        const int mine = rank.communicator.rank();
        for (int turn = 0; turn < 3; ++turn) {
          for (const auto& [rows, columns, gap] : kSizes) {
            if (rows * columns > 1'000'000) continue;
            Owned x = matrix_of(turn + mine, rows, columns, 0);
            broadcast(rank.ctx, x);
            const Owned want = matrix_of(turn, rows, columns, 0);
            for (int64_t i = 0; i < rows; ++i) ASSERT_TRUE(same_bits(x.row(i), want.row(i), columns)) << columns;
            Owned gathered(&kFloat32, {rows, columns}, gap);
            const Share share = share_of(columns, mine, size);
            all_gather(rank.ctx, gathered, want->slice_columns(share.begin, share.count));
            for (int64_t i = 0; i < rows; ++i) {
              ASSERT_TRUE(same_bits(gathered.row(i), want.row(i), columns)) << columns;
            }
            Owned sum(&kFloat32, {rows, columns}, gap), ones(&kFloat32, {rows, columns}, gap);
            for (int64_t i = 0; i < rows; ++i) std::fill_n(ones.row(i), columns, static_cast<float>(turn + mine));
            all_reduce(rank.ctx, sum, ones, false);
            const auto total = static_cast<float>(turn * size + size * (size - 1) / 2);
            for (int64_t i = 0; i < rows; ++i) {
              ASSERT_TRUE(std::all_of(sum.row(i), sum.row(i) + columns, [&](float v) { return v == total; }))
                  << columns;
            }
          }
        }
      });
    }
  }
}

// Each rank sends to the next one; the last one answers the first.
TEST(Collectives, MessagesGoToOneRank) {
  for (const Backend* backend : backends()) {
    on_ranks(*backend, 3, 1, [&](const Rank& rank) {
      const int mine = rank.communicator.rank(), next = (mine + 1) % 3, previous = (mine + 2) % 3;
      for (const auto& [rows, columns, gap] : kSizes) {
        Owned out(&kFloat32, {rows, columns}, 0);
        const Owned want = matrix_of(0, rows, columns, 0);
        if (mine == 0) send(rank.ctx, next, want);
        receive(rank.ctx, previous, out);
        for (int64_t i = 0; i < rows; ++i) ASSERT_TRUE(same_bits(out.row(i), want.row(i), columns)) << columns;
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
