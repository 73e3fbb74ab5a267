// Rounds the inputs of matmuls of many rows to the layout that tiles read (tiles.h). A thread writes 32 bytes of a
// K-slice of a row. Bound by memory traffic.
#include <algorithm>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/tile_rows.cuh"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
namespace {

struct TileRows {
  std::byte* to;
  const float* x;
  const int32_t *starts, *x_rows;
  int64_t x_stride, to_rows;
  int rows, k, slices, matrices;
  bool aligned;
  TileOrder order;
};

// A thread writes the two packs of a step of a slice of a row, with zeros beyond k.
template <class T>
__global__ void tile_rows_kernel(const __grid_constant__ TileRows a) {
  wait_for_earlier();
  const int64_t count = int64_t{a.rows} * a.slices * 4, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int part = static_cast<int>(i % 4);
    const auto slice = static_cast<int>(i / 4 % a.slices), row = static_cast<int>(i / 4 / a.slices);
    const int64_t place = place_of_row(a.starts, a.matrices, row);
    const float* x = a.x + row_of_x(a.x_rows, row) * a.x_stride;
    const int quad = part == 0   ? a.order.quad[0]
                     : part == 1 ? a.order.quad[1]
                     : part == 2 ? a.order.quad[2]
                                 : a.order.quad[3];
    uint32_t first[4], second[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int at = slice * static_cast<int>(kSliceElements) + 4 * (quad + t * a.order.next);
      const float4 v = inputs_at(x, at, a.k, a.aligned);
      first[t] = pack2<T>(v.x, v.y), second[t] = pack2<T>(v.z, v.w);
    }
    std::byte* to = a.to + (slice * a.to_rows + place) * kTileRowBytes;
    const int exchange = static_cast<int>(place % 8);
    *reinterpret_cast<uint4*>(to + ((2 * part) ^ exchange) * 16) = {first[0], first[1], first[2], first[3]};
    *reinterpret_cast<uint4*>(to + ((2 * part + 1) ^ exchange) * 16) = {second[0], second[1], second[2], second[3]};
  }
}

}  // namespace

void round_to_tiles(const Launch& l, std::byte* to, DType type, const TileOrder& order, const MatmulProblem& p) {
  const int64_t rows = p.x.rows(), slices = padded_k(p.k) / kSliceElements;
  const TileRows a{.to = to,
                   .x = p.x.f32(),
                   .starts = p.starts,
                   .x_rows = p.x_rows,
                   .x_stride = p.x.row_stride,
                   .to_rows = tile_rows(rows, p.starts != nullptr ? p.matrices : 0),
                   .rows = static_cast<int>(rows),
                   .k = static_cast<int>(p.k),
                   .slices = static_cast<int>(slices),
                   .matrices = p.matrices,
                   .aligned = reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 && p.x.row_stride % 4 == 0,
                   .order = order};
  constexpr int kThreads = 256;
  const dim3 grid(blocks_for(l, rows * slices * 4, kThreads));
  if (type == &kBFloat16) {
    launch_pdl(l, "rounding for tiles", tile_rows_kernel<__nv_bfloat16>, grid, kThreads, 0, a);
  } else {
    CHECK(type == &kFloat16, "rounding rows to {} is not supported (expected one of: bfloat16, float16)", type->name);
    launch_pdl(l, "rounding for tiles", tile_rows_kernel<__half>, grid, kThreads, 0, a);
  }
}

}  // namespace sluice::cuda
