// Rows cut into tiles: those of one matrix, or of experts, whose numbers only the device knows.
#pragma once

#include "kernels/cuda/device/scan.cuh"

namespace sluice::cuda {

// `count` rows of a matrix from `row` on; the matrix's own begin at `start`.
struct RowTile {
  int matrix, row, count, start;
};

// Tile `number` of all tiles of up to `size` rows: of rows 0 .. rows - 1 where `starts` is null, else of every matrix m
// with rows starts[m] .. starts[m + 1]. None has rows where there are fewer tiles. Called by whole warps.
__device__ inline RowTile find_row_tile(const int32_t* starts, int matrices, int rows, int number, int size) {
  if (starts == nullptr) return {0, number * size, min(size, rows - number * size), 0};
  for (int first = 0; first < matrices; first += kWarp) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, matrix = first + lane;
    const int begin = matrix < matrices ? starts[matrix] : 0, end = matrix < matrices ? starts[matrix + 1] : 0;
    const int own = (end - begin + size - 1) / size;
    const int upto = sum_upto(own);
    const unsigned found = __ballot_sync(kFullWarp, number >= upto - own && number < upto);
    if (found != 0) {
      const int source = __ffs(static_cast<int>(found)) - 1;
      const int start = __shfl_sync(kFullWarp, begin, source), stop = __shfl_sync(kFullWarp, end, source);
      const int row = start + (number - __shfl_sync(kFullWarp, upto - own, source)) * size;
      return {first + source, row, min(size, stop - row), start};
    }
    number -= __shfl_sync(kFullWarp, upto, kWarp - 1);
  }
  return {0, 0, 0, 0};
}

// As many tiles as there may be.
inline unsigned most_row_tiles(bool grouped, int matrices, int rows, int size) {
  return static_cast<unsigned>(grouped ? rows / size + (matrices < rows ? matrices : rows) : (rows + size - 1) / size);
}

}  // namespace sluice::cuda
