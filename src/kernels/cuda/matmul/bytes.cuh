// int8 matmuls of few rows with integers and levels of up to 8 bits, for compute capability 9.0 (sm_90a). Tiles and
// launch shape are those of tiles.cuh, but the tensor cores multiply int8. Bound by reading the weights. Four weights
// become operands by one mask or permutation. Inputs are integers of 15 bits with a scale per row (bytes.h). Their high
// and low bytes are separate rows, so sums over inputs that share a scale are exact. These sums are multiplied by the
// scale in fp32. Offsets and minima add the sum of the inputs times a factor.
#pragma once

#include <tuple>

#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/matmul/bytes.h"
#include "kernels/cuda/matmul/tiles.cuh"

namespace sluice::cuda {

namespace bytes {

using tiles::kThreads;

struct Arguments : tiles::Arguments {
  int64_t plane_bytes;  // from the high bytes to the low ones
  const float *x_scales, *x_sums;
};

// The most rows for which these matmuls took less time than those of 16 bits on an H200
// (bench/results/2026-11-cuda-kernels.md). The sums of every set take registers.
template <class Codec>
constexpr int most_rows() {
  if constexpr (Codec::kBytes) return Codec::kSetsOfPair <= 2 ? 16 : Codec::kSetsOfPair == 4 ? 8 : 0;
  return 0;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The factors of a pair of slices for outputs g and g + 8: `scales` multiply the sums, `shifts` the sums of inputs.
template <class Codec>
struct PairFactors {
  static constexpr int kSets = Codec::kSetsOfPair;
  static constexpr bool kShifted = Codec::kGroup || Codec::kMinima || Codec::kBase != Codec::kBytesBelow;
  float scales[kSets][2], shifts[kSets][2];

  // Fills in sets `first` and so on from a slice.
  template <int first>
  __device__ void take(const typename Codec::Slice& slice) {
    constexpr int kOfSlice = kSets == 1 ? 1 : kSets / 2;
#pragma unroll
    for (int i = 0; i < kOfSlice; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Factors f = Codec::factors(slice, r, i);
        scales[first + i][r] = f.scale, shifts[first + i][r] = f.minimum - f.scale * (f.base - Codec::kBytesBelow);
      }
    }
  }
};

template <int used, class Codec, class Slices, class Shared>
__device__ void multiply(Slices& weights, const Arguments& a, const RowTile& tile, const Part& part,
                         const Shared& shared) {
  using Inputs = tiles::InputStages<used, 2, Shared>;
  using Pair = PairFactors<Codec>;
  constexpr int kSets = Pair::kSets, kSteps = 2 * kPanelSlice / 32, kStages = Inputs::kStages;
  static_assert(Slices::kSlices % 2 == 0 && kSets <= kSteps);
  const int first_pair = part.begin / 2;
  const Inputs inputs(shared, a.x, a.x_rows, tile, first_pair, (part.count + 1) / 2, a.plane_bytes);
  inputs.begin();
  const bool first_lane = threadIdx.x % kWarp == 0;
  const int t2 = 2 * (static_cast<int>(threadIdx.x) % 4);
  const int64_t place = tiles::tile_place_of(tile);
  float sums[used / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  int32_t parts[kSets][used];  // for the high bytes, then for the low ones
#pragma unroll
  for (auto& some : parts) {
#pragma unroll
    for (int32_t& one : some) one = 0;
  }
  Pair factors{};
  float2 x_sums[kSets][used / 8] = {};
  const auto add_parts = [&] {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      wgmma_fence_operands(parts[set]);
#pragma unroll
      for (int i = 0; i < used / 2; ++i) {
        const int number = parts[set][i] * kByteUnit + parts[set][used / 2 + i];
        sums[i] = fmaf(factors.scales[set][i / 2 % 2], static_cast<float>(number), sums[i]);
        if constexpr (Pair::kShifted) {
          const float2& x = x_sums[set][i / 4];
          sums[i] = fmaf(factors.shifts[set][i / 2 % 2], i % 2 == 0 ? x.x : x.y, sums[i]);
        }
      }
    }
  };
  const uint64_t stages = matrix(inputs.stage(0));
  int stage = 0, round = 0, last_stage = 0;
  int slice = 0;
  do {  // do-while: in a loop that may have no turns, the compiler would make the matmuls wait for each other
    const int i = slice % Slices::kSlices, now = slice / 2;
    typename Codec::Slice slices[2];
    weights.read(slices[0], i), weights.read(slices[1], i + 1);
    wgmma_wait<0>();
    if (now > 0 && first_lane) arrive(shared.empty(last_stage));
    add_parts();
    factors.template take<0>(slices[0]);
    if constexpr (kSets > 1) {
      factors.template take<kSets / 2>(slices[1]);
      if (slice + 1 == part.count) {  // there is no second slice
#pragma unroll
        for (int set = kSets / 2; set < kSets; ++set) {
#pragma unroll
          for (int r = 0; r < 2; ++r) factors.scales[set][r] = factors.shifts[set][r] = 0.0f;
        }
      }
    }
    if constexpr (Pair::kShifted) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        const float* from = a.x_sums + (int64_t{first_pair + now} * kSets + set) * a.x_rows + place + t2;
#pragma unroll
        for (int j = 0; j < used / 8; ++j) x_sums[set][j] = *reinterpret_cast<const float2*>(from + 8 * j);
      }
    }
    uint32_t operands[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Codec::bytes(slices[step / 2], step % 2, operands[step]);
      wgmma_fence_operands(operands[step]);
    }
    if (i == Slices::kSlices - 2 && slice + 2 < part.count) weights.go_on();
    inputs.go_on(now);
    wait_barrier(shared.full(stage), round);
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      using Mma = Wgmma<int8_t, 2 * used>;
      const uint64_t x = stages + (stage * Inputs::kStageBytes + step * 32) / 16;
      constexpr int kStepsOfSet = kSteps / kSets;
      if (step % kStepsOfSet == 0) {
        Mma::template by_rows<0>(parts[step / kStepsOfSet], operands[step], x);
      } else {
        Mma::template by_rows<1>(parts[step / kStepsOfSet], operands[step], x);
      }
    }
    wgmma_commit();
    last_stage = stage;
    if (++stage == kStages) stage = 0, round ^= 1;
    slice += 2;
  } while (slice < part.count);
  wgmma_wait<0>();
  add_parts();
#pragma unroll
  for (int j = 0; j < used / 8; ++j) {
    const float2 scales = *reinterpret_cast<const float2*>(a.x_scales + place + t2 + 8 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[4 * j + i] *= i % 2 == 0 ? scales.x : scales.y;
  }
  __syncthreads();  // no warp reads the stages any more
  tiles::store_group_sums<used>(shared, sums, 0);
}
#endif

template <class Codec>
__global__ void __launch_bounds__(kThreads, 2) matmul_bytes(const __grid_constant__ Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kMost = most_rows<Codec>();
  tiles::with_tile<tiles::SharedSlices<Codec>, kMost>(
      a, [&](auto& weights, const RowTile& tile, const Part& part, const auto& shared) {
        if (kMost == 8 || tile.count <= 8) return multiply<8, Codec>(weights, a, tile, part, shared);
        if constexpr (kMost > 8) multiply<16, Codec>(weights, a, tile, part, shared);
      });
#endif
}

}  // namespace bytes

// Defined here for the instances in tiles_*.cu. Returns false, having done nothing, if it cannot or if there are too
// many rows.
template <class Codec>
bool matmul_by_bytes([[maybe_unused]] const Launch& l, [[maybe_unused]] const MatmulProblem& p,
                     [[maybe_unused]] int64_t panel_bytes) {
#ifdef SLUICE_SM90A
  constexpr int kMost = bytes::most_rows<Codec>();
  if constexpr (kMost > 0) {
    const int64_t rows = p.x.rows(), likely = p.starts != nullptr ? pieces(2 * rows, p.matrices) : rows;
    if (l.compute_capability != 90 || likely > kMost || (p.starts == nullptr && p.matrices != 1)) return false;
    constexpr int kSets = Codec::kSetsOfPair;
    // Tiles are read in whole eights of rows, also behind the last row.
    const int64_t x_rows = tile_rows(rows, p.starts != nullptr ? p.matrices : 0) + 64;
    const int64_t pairs = byte_pairs(p.k), plane_bytes = pairs * x_rows * kPairBytes;
    const int64_t floats = x_rows * (1 + pairs * kSets);
    if (2 * plane_bytes + floats * 4 > static_cast<int64_t>(l.workspace_bytes)) return false;
    if (rows == 0) return true;
    std::byte* memory = l.workspace;
    auto* scales = reinterpret_cast<float*>(memory + 2 * plane_bytes);
    const ByteInputs inputs{memory, memory + plane_bytes, scales, scales + x_rows, x_rows};
    round_to_bytes(l, inputs, kSets, p);
    const bytes::Arguments a{tiles::arguments(p, memory, x_rows, panel_bytes), plane_bytes, inputs.scales, inputs.sums};
    tiles::launch<bytes::matmul_bytes<Codec>, tiles::SharedSlices<Codec>, kMost, 2>(l, a);
    return true;
  }
#endif
  return false;
}

template <class Format>
bool matmul_panels_by_tiles(const Launch& l, const MatmulProblem& p) {
  using Codec = PanelCodec<Format>;
  return matmul_by_bytes<Codec>(l, p, panel_bytes<Format>(p.k)) ||
         matmul_by_tiles<Codec>(l, p, panel_bytes<Format>(p.k));
}

// Names that function for every format of a list: `template struct CompiledTiles<List>;` compiles it.
template <class List>
struct CompiledTiles;
template <class... Codecs>
struct CompiledTiles<quant::CodecList<Codecs...>> {
  static auto functions() { return std::make_tuple(matmul_panels_by_tiles<typename PanelsOf<Codecs>::Type>...); }
};

}  // namespace sluice::cuda
