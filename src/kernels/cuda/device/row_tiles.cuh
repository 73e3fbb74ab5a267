// Rows cut into tiles: those of one matrix, or of experts, whose numbers only the device knows.
#pragma once

#include "kernels/cuda/device/scan.cuh"

namespace sluice::cuda {

// Where x has a row of a product (Product::x_rows).
__device__ inline int64_t row_of_x(const int32_t* x_rows, int64_t row) { return x_rows != nullptr ? x_rows[row] : row; }

// `count` rows of a matrix from `row` on; the matrix's own begin at `start`.
struct RowTile {
  int matrix, row, count, start;
};

// Tile `number` of all tiles of up to `size` rows: of rows 0 .. rows - 1 where `starts` is null, else of every matrix m
// with rows starts[m] .. starts[m + 1]. None has rows where there are fewer tiles. Called by whole warps. A lane counts
// the tiles of its share of the matrices, so that all of `starts` is on its way at once.
__device__ inline RowTile find_row_tile(const int32_t* starts, int matrices, int rows, int number, int size) {
  if (starts == nullptr) return {0, number * size, min(size, rows - number * size), 0};
  const int share = (matrices + kWarp - 1) / kWarp, first = static_cast<int>(threadIdx.x) % kWarp * share;
  const auto start_of = [&](int matrix) { return starts[min(matrix, matrices)]; };
  const auto tiles_of = [&](int begin, int end) { return (end - begin + size - 1) / size; };
  int own = 0;
#pragma unroll 4
  for (int m = first; m < first + share; ++m) own += tiles_of(start_of(m), start_of(m + 1));
  const int upto = sum_upto(own);
  RowTile tile{0, 0, 0, 0};
  const unsigned found = __ballot_sync(kFullWarp, number >= upto - own && number < upto);
  if (found == 0) return tile;
  if (number >= upto - own && number < upto) {
    int matrix = first, left = number - (upto - own);
    for (int tiles; left >= (tiles = tiles_of(start_of(matrix), start_of(matrix + 1))); ++matrix) left -= tiles;
    const int start = starts[matrix], row = start + left * size;
    tile = {matrix, row, min(size, starts[matrix + 1] - row), start};
  }
  const int source = __ffs(static_cast<int>(found)) - 1;
  return {__shfl_sync(kFullWarp, tile.matrix, source), __shfl_sync(kFullWarp, tile.row, source),
          __shfl_sync(kFullWarp, tile.count, source), __shfl_sync(kFullWarp, tile.start, source)};
}

// As many tiles as there may be.
inline unsigned most_row_tiles(bool grouped, int matrices, int rows, int size) {
  return static_cast<unsigned>(grouped ? rows / size + (matrices < rows ? matrices : rows) : (rows + size - 1) / size);
}

}  // namespace sluice::cuda
