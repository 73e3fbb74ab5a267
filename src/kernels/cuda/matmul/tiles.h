// Products of many rows, tile by tile: what matmul_tiles.cuh shares with the kernel that prepares its inputs.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Which inputs a step of 16 of a line of 64 takes: lane t of four has quad[step] + t * next, in quads of inputs. The
// tensor cores want the first two of each quad in front, then the second two.
struct TileOrder {
  int quad[4], next;
};

// Inputs as tiles read them: rounded to 16 bits, lines of 64 one after the other, each with all rows of 128 bytes whose
// packs of 16 are exchanged (device/warpgroup.cuh).
inline constexpr int64_t kTileRowBytes = 128;

// Where rows begin that begin at `start` of x, those of number `matrix`: at a multiple of eight; and how many there are
// of `matrices`.
__host__ __device__ constexpr int64_t tile_place(int64_t start, int64_t matrix) {
  return (start + 7) / 8 * 8 + 8 * matrix;
}
constexpr int64_t tile_rows(int64_t rows, int64_t matrices) { return tile_place(rows, matrices); }

// p.x, fp32, into `to`: padded_k(k) / 64 lines of tile_rows(rows, p.starts != nullptr ? p.matrices : 0).
void round_to_tiles(const Launch&, std::byte* to, DType type, const TileOrder&, const MatmulProblem& p);

}  // namespace sluice::cuda
