// Matmuls of many rows by tiles: what tiles.cuh shares with the kernel that prepares its inputs.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Which inputs a step of 16 of a K-slice of 64 takes: lane t of four has the quad of inputs quad[step] + t * next. The
// tensor cores expect the first two inputs of each quad in front, then the second two.
struct TileOrder {
  int quad[4], next;
};

// Inputs as tiles read them: rounded to 16 bits, K-slices of 64 one after the other. Each slice has all rows of 128
// bytes, whose packs of 16 bytes are swizzled (device/warpgroup.cuh).
inline constexpr int64_t kTileRowBytes = 128;

// Where the rows of matrix number `matrix` begin that begin at row `start` of x: at a multiple of eight. tile_rows() is
// the number of rows with this padding.
__host__ __device__ constexpr int64_t tile_place(int64_t start, int64_t matrix) {
  return (start + 7) / 8 * 8 + 8 * matrix;
}
constexpr int64_t tile_rows(int64_t rows, int64_t matrices) { return tile_place(rows, matrices); }

// Rounds p.x, fp32, into `to`: padded_k(k) / 64 slices of tile_rows(rows, p.starts != nullptr ? p.matrices : 0) rows.
void round_to_tiles(const Launch&, std::byte* to, DType type, const TileOrder&, const MatmulProblem& p);

}  // namespace sluice::cuda
