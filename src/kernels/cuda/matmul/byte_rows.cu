// Rounds the inputs of int8 matmuls (bytes.h) to integers of 15 bits, each a high and a low byte. One block of 512
// threads per row. Bound by latency.
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/tile_rows.cuh"
#include "kernels/cuda/matmul/bytes.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512, kPackInputs = 16;

struct Rows {
  ByteInputs to;
  const float* x;
  const int32_t *starts, *x_rows;
  int64_t x_stride;
  int k, packs, matrices, sets;
  bool aligned;
};

// Rounds sixteen inputs to integers and packs their high and low bytes, every four in the order 0, 2, 1, 3. Returns the
// sum of the integers.
__device__ int to_bytes(const float4 (&x)[4], float inverse, uint32_t (&high)[4], uint32_t (&low)[4]) {
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float inputs[4] = {x[i].x, x[i].z, x[i].y, x[i].w};
    high[i] = low[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int number = __float2int_rn(inputs[j] * inverse), upper = (number + kByteUnit / 2) >> kByteBits;
      sum += number;
      high[i] |= static_cast<uint32_t>(upper & 0xff) << (8 * j);
      low[i] |= static_cast<uint32_t>((number - upper * kByteUnit) & 0xff) << (8 * j);
    }
  }
  return sum;
}

// One block per row. Inputs beyond k are zeros. A row with an infinity or NaN gets the scale NaN.
__global__ void __launch_bounds__(kThreads) byte_rows(const __grid_constant__ Rows a) {
  __shared__ float scratch[kWarp + 1];
  wait_for_earlier();
  const auto row = static_cast<int>(blockIdx.x);
  const float* x = a.x + row_of_x(a.x_rows, row) * a.x_stride;
  const auto pack_of = [&](int pack, float4(&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = inputs_at(x, pack * kPackInputs + 4 * i, a.k, a.aligned);
  };
  float largest = 0.0f;
  for (int pack = static_cast<int>(threadIdx.x); pack < a.packs; pack += kThreads) {
    float4 v[4];
    pack_of(pack, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (float f : {v[i].x, v[i].y, v[i].z, v[i].w}) largest = isfinite(f) ? fmaxf(largest, fabsf(f)) : INFINITY;
    }
  }
  largest = block_max(largest, scratch);
  const bool finite = largest < INFINITY;
  const int64_t place = place_of_row(a.starts, a.matrices, row);
  if (threadIdx.x == 0) a.to.scales[place] = finite ? largest / kLargestByteNumber : NAN;
  const float inverse = finite && largest > 0.0f ? kLargestByteNumber / largest : 0.0f;
  const int packs_of_set = kPairBytes / kPackInputs / a.sets;
  for (int first = 0; first < a.packs; first += kThreads) {  // whole warps take part
    const int pack = first + static_cast<int>(threadIdx.x), at = pack % (kPairBytes / kPackInputs);
    float4 v[4];
    pack_of(pack, v);
    uint32_t high[4], low[4];
    int sum = to_bytes(v, finite ? inverse : 0.0f, high, low);
    for (int lanes = 1; lanes < packs_of_set; lanes *= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
    if (pack >= a.packs) continue;
    const int64_t pair = pack / (kPairBytes / kPackInputs),
                  to = (pair * a.to.rows + place) * kPairBytes + (at ^ place % 8) * kPackInputs;
    *reinterpret_cast<uint4*>(a.to.high + to) = {high[0], high[1], high[2], high[3]};
    *reinterpret_cast<uint4*>(a.to.low + to) = {low[0], low[1], low[2], low[3]};
    if (at % packs_of_set == 0)
      a.to.sums[(pair * a.sets + at / packs_of_set) * a.to.rows + place] = static_cast<float>(sum);
  }
}

}  // namespace

void round_to_bytes(const Launch& l, const ByteInputs& to, int sets, const MatmulProblem& p) {
  const Rows a{.to = to,
               .x = p.x.f32(),
               .starts = p.starts,
               .x_rows = p.x_rows,
               .x_stride = p.x.row_stride,
               .k = static_cast<int>(p.k),
               .packs = static_cast<int>(byte_pairs(p.k) * (kPairBytes / kPackInputs)),
               .matrices = p.matrices,
               .sets = sets,
               .aligned = reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 && p.x.row_stride % 4 == 0};
  launch_pdl(l, "rounding to int8", byte_rows, dim3(static_cast<unsigned>(p.x.rows())), kThreads, 0, a);
}

}  // namespace sluice::cuda
