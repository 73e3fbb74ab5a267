// Cuts rows into tiles: the rows of one matrix, or of experts, whose row counts only the device knows.
#pragma once

#include "kernels/cuda/device/scan.cuh"

namespace sluice::cuda {

// The row of x that is multiplied as row `row` of a matmul (MatmulProblem::x_rows).
__device__ inline int64_t row_of_x(const int32_t* x_rows, int64_t row) { return x_rows != nullptr ? x_rows[row] : row; }

// `count` rows of a matrix from `row` on. The rows of the matrix begin at `start`.
struct RowTile {
  int matrix, row, count, start;
};

// All tiles of up to `size` rows. Where `starts` is null they cover rows 0 .. rows - 1, else rows starts[m] .. starts[m
// + 1] of every matrix m. Used by whole warps. Each lane counts the tiles of its share of the matrices, so that all of
// `starts` is loaded at once.
class RowTiles {
 public:
  __device__ RowTiles(const int32_t* starts, int matrices, int rows, int size)
      : starts_(starts), matrices_(matrices), rows_(rows), size_(size) {
    if (starts == nullptr) return;
    share_ = (matrices + kWarp - 1) / kWarp, first_ = static_cast<int>(threadIdx.x) % kWarp * share_;
#pragma unroll 4
    for (int m = first_; m < first_ + share_; ++m) own_ += tiles_of(start_of(m), start_of(m + 1));
    upto_ = sum_upto(own_);
  }

  __device__ int count() const {
    return starts_ == nullptr ? (rows_ + size_ - 1) / size_ : __shfl_sync(kFullWarp, upto_, kWarp - 1);
  }

  // A tile of no rows if `number` is beyond the last tile.
  __device__ RowTile operator[](int number) const {
    if (starts_ == nullptr) return {0, number * size_, min(size_, rows_ - number * size_), 0};
    RowTile tile{0, 0, 0, 0};
    const bool mine = number >= upto_ - own_ && number < upto_;
    const unsigned found = __ballot_sync(kFullWarp, mine);
    if (found == 0) return tile;
    if (mine) {
      int matrix = first_, left = number - (upto_ - own_);
      for (int tiles; left >= (tiles = tiles_of(start_of(matrix), start_of(matrix + 1))); ++matrix) left -= tiles;
      const int start = starts_[matrix], row = start + left * size_;
      tile = {matrix, row, min(size_, starts_[matrix + 1] - row), start};
    }
    const int source = __ffs(static_cast<int>(found)) - 1;
    return {__shfl_sync(kFullWarp, tile.matrix, source), __shfl_sync(kFullWarp, tile.row, source),
            __shfl_sync(kFullWarp, tile.count, source), __shfl_sync(kFullWarp, tile.start, source)};
  }

 private:
  __device__ int start_of(int matrix) const { return starts_[min(matrix, matrices_)]; }
  __device__ int tiles_of(int begin, int end) const { return (end - begin + size_ - 1) / size_; }

  const int32_t* starts_;
  const int matrices_, rows_, size_;
  int share_ = 0, first_ = 0, own_ = 0, upto_ = 0;  // of this lane's matrices
};

__device__ inline RowTile find_row_tile(const int32_t* starts, int matrices, int rows, int number, int size) {
  return RowTiles(starts, matrices, rows, size)[number];
}

// The most tiles there can be.
inline unsigned most_row_tiles(bool grouped, int matrices, int rows, int size) {
  return static_cast<unsigned>(grouped ? rows / size + (matrices < rows ? matrices : rows) : (rows + size - 1) / size);
}

}  // namespace sluice::cuda
