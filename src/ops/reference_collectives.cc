// The ops between ranks on host memory. All host backends use them. Results do not depend on how rows and columns are
// cut into pieces, because every element is summed on its own.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "ops/reference.h"
#include "parallel/communicator.h"
#include "parallel/share.h"

namespace sluice::ops::reference {
namespace {

constexpr int64_t kOutboxFloats = Communicator::kOutboxBytes / sizeof(float);
constexpr int64_t kGrain = 1 << 14;  // floats that are worth another thread

// A part of a matrix that fits into an outbox.
struct Piece {
  int64_t row = 0, rows = 0;
  int64_t column = 0, columns = 0;
  size_t bytes() const { return static_cast<size_t>(rows * columns) * sizeof(float); }
  Tensor of(const Tensor& matrix) const { return matrix.slice_rows(row, rows).slice_columns(column, columns); }
};

// Calls body(piece) for the pieces of a matrix in turn.
template <class F>
void each_piece(int64_t rows, int64_t columns, F&& body) {
  const int64_t wide = std::min(columns, kOutboxFloats), high = std::max<int64_t>(1, kOutboxFloats / wide);
  for (int64_t row = 0; row < rows; row += high) {
    for (int64_t column = 0; column < columns; column += wide) {
      body(Piece{row, std::min(high, rows - row), column, std::min(wide, columns - column)});
    }
  }
}

void copy_rows_to(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(columns) * sizeof(float));
  }
}

// out = (accumulate ? out : 0) + the sum of the ranks' rows; `at` is where the row is in an outbox.
void sum_row(const Communicator& ranks, float* out, int64_t at, int64_t columns, bool accumulate) {
  constexpr int64_t kBlock = 256;
  float sum[kBlock];
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t count = std::min(kBlock, columns - begin);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const float* from = reinterpret_cast<const float*>(ranks.inbox(rank)) + at + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] = rank == 0 ? from[i] : sum[i] + from[i];
    }
    for (int64_t i = 0; i < count; ++i) out[begin + i] = accumulate ? out[begin + i] + sum[i] : sum[i];
  }
}

// Tells a collective from others: all ranks must be at the same one.
uint64_t tag(uint64_t op, const Piece& piece) {
  return op << 56 | static_cast<uint64_t>(piece.rows) << 28 | static_cast<uint64_t>(piece.columns);
}

}  // namespace

void all_reduce(Queue& queue, Communicator& ranks, Tensor out, Tensor x, bool accumulate) {
  each_piece(x.shape[0], x.shape[1], [&](const Piece& piece) {
    const Tensor from = piece.of(x), to = piece.of(out);
    const int64_t grain = std::max<int64_t>(1, kGrain / piece.columns);
    auto* box = reinterpret_cast<float*>(ranks.outbox());
    queue.threads().parallel_for(piece.rows, grain, [&](int64_t begin, int64_t end) {
      copy_rows_to(box + begin * piece.columns, piece.columns, from.f32() + begin * from.row_stride, from.row_stride,
                   end - begin, piece.columns);
    });
    ranks.publish(tag(5, piece), piece.bytes());
    queue.threads().parallel_for(piece.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sum_row(ranks, to.f32() + i * to.row_stride, i * piece.columns, piece.columns, accumulate);
      }
    });
  });
}

void all_gather(Queue& queue, Communicator& ranks, Tensor out, Tensor x) {
  const int64_t total = out.shape[1], widest = (total + ranks.size() - 1) / ranks.size();
  each_piece(out.shape[0], widest, [&](const Piece& piece) {
    // The part of a rank's columns that this piece has; shares differ by a column, so the last one may be missing.
    const auto part_of = [&](int64_t columns) {
      Piece part = piece;
      part.columns = std::clamp<int64_t>(columns - piece.column, 0, piece.columns);
      return part;
    };
    const Piece mine = part_of(x.shape[1]);
    const Tensor from = mine.columns > 0 ? mine.of(x) : Tensor();
    if (mine.columns > 0) {
      copy_rows_to(reinterpret_cast<float*>(ranks.outbox()), piece.columns, from.f32(), from.row_stride, piece.rows,
                   mine.columns);
    }
    ranks.publish(tag(6, piece), mine.columns > 0 ? piece.bytes() : 0);
    queue.threads().parallel_for(ranks.size(), 1, [&](int64_t first, int64_t last) {
      for (int64_t rank = first; rank < last; ++rank) {
        const Share share = share_of(total, static_cast<int>(rank), ranks.size());
        const Piece theirs = part_of(share.count);
        if (theirs.columns == 0) continue;
        const Tensor to = theirs.of(out.slice_columns(share.begin, share.count));
        copy_rows_to(to.f32(), to.row_stride, reinterpret_cast<const float*>(ranks.inbox(static_cast<int>(rank))),
                     piece.columns, piece.rows, theirs.columns);
      }
    });
  });
}

void all_to_all(Queue& queue, Communicator& ranks, Tensor out, Tensor x) {
  const int64_t columns = x.shape[1] / ranks.size();  // for each rank
  // The outbox has the piece for each rank, one after another.
  const int64_t wide = std::min(columns, kOutboxFloats / ranks.size());
  const int64_t high = std::max<int64_t>(1, kOutboxFloats / (wide * ranks.size()));
  for (int64_t row = 0; row < x.shape[0]; row += high) {
    for (int64_t column = 0; column < columns; column += wide) {
      const Piece piece{row, std::min(high, x.shape[0] - row), column, std::min(wide, columns - column)};
      const int64_t floats = piece.rows * piece.columns;
      auto* box = reinterpret_cast<float*>(ranks.outbox());
      queue.threads().parallel_for(ranks.size(), 1, [&](int64_t first, int64_t last) {
        for (int64_t rank = first; rank < last; ++rank) {
          const Tensor from = piece.of(x.slice_columns(rank * columns, columns));
          copy_rows_to(box + rank * floats, piece.columns, from.f32(), from.row_stride, piece.rows, piece.columns);
        }
      });
      ranks.publish(tag(7, piece), piece.bytes() * static_cast<size_t>(ranks.size()));
      queue.threads().parallel_for(ranks.size(), 1, [&](int64_t first, int64_t last) {
        for (int64_t rank = first; rank < last; ++rank) {
          const Tensor to = piece.of(out.slice_columns(rank * columns, columns));
          const auto* theirs = reinterpret_cast<const float*>(ranks.inbox(static_cast<int>(rank)));
          copy_rows_to(to.f32(), to.row_stride, theirs + ranks.rank() * floats, piece.columns, piece.rows,
                       piece.columns);
        }
      });
    }
  }
}

void broadcast(Queue&, Communicator& ranks, Tensor x) {
  std::vector<std::byte> message;
  if (ranks.rank() == 0) message.assign(x.data, x.data + x.bytes());
  ranks.broadcast(message, 0);
  CHECK(message.size() == x.bytes(), "a message of {} bytes, expected {}", message.size(), x.bytes());
  std::memcpy(x.data, message.data(), message.size());
}

void send(Queue&, Communicator& ranks, int rank, Tensor x) { ranks.send(rank, {x.data, x.bytes()}); }

void receive(Queue&, Communicator& ranks, int rank, Tensor x) { ranks.receive(rank, {x.data, x.bytes()}); }

}  // namespace sluice::ops::reference
