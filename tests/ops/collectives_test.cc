// The ops between ranks, on threads: exact results, equal bits on all ranks, odd sizes, strided views, and matrices
// that are larger than an outbox.
#include <thread>

#include "ops/testing.h"
#include "parallel/communicator.h"
#include "parallel/share.h"

namespace sluice::ops::collectives_test {
namespace {

struct Rank {
  Communicator& communicator;
  Ctx& ctx;
};

// Runs body(rank) on `size` threads, each with its own queue and pool of `threads` threads.
template <class F>
void on_ranks(const Backend& backend, int size, int threads, F&& body) {
  std::vector<std::thread> running;
  for (std::unique_ptr<Communicator>& rank : Communicator::of_threads(size)) {
    running.emplace_back([&, mine = std::move(rank)] {
      ThreadPool pool(threads, /*pin=*/false);
      const std::unique_ptr<Queue> queue = backend.open(0).make_queue(pool);
      Arena arena(0);
      Ctx ctx(*queue, arena);
      ctx.communicator = ctx.pipeline = mine.get();
      body(Rank{*mine, ctx});
    });
  }
  for (std::thread& thread : running) thread.join();
}

Owned matrix_of(int rank, int64_t rows, int64_t columns, int64_t gap) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  Owned matrix(&kFloat32, {rows, columns}, gap);
  matrix.fill(random, static_cast<float>(1 + 100 * rank));
  return matrix;
}

std::vector<const Backend*> backends() {
  std::vector<const Backend*> found;
  for (const Backend* backend : Registry<Backend>::all()) {
    if (backend->usable() && backend->can.collectives) found.push_back(backend);
  }
  return found;
}

struct Size {
  int64_t rows, columns, gap;
};
const std::vector<Size> kSizes = {{1, 1, 0}, {1, 256, 0}, {3, 257, 5}, {70, 4099, 1}, {2, 300'000, 0}, {5, 2, 7}};

TEST(Collectives, AllReduceSumsInTheOrderOfTheRanks) {
  for (const Backend* backend : backends()) {
    for (const int size : {1, 2, 3}) {
      for (const bool accumulate : {false, true}) {
        on_ranks(*backend, size, 2, [&](const Rank& rank) {
          for (const auto& [rows, columns, gap] : kSizes) {
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
        });
      }
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
