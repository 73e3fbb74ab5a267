// Writes the results of a warp group that multiplies 64 outputs by the rows of a tile (Wgmma, device/warpgroup.cuh). A
// lane has sums of two outputs and many rows. They pass through shared memory, a part of the rows at a time, from where
// TMA tiles are copied to device memory, or added there (PTX ISA: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor).
#pragma once

#include "kernels/cuda/device/chain_results.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {

// Where the results of a tile go, which begins at an output and a row and has `count` rows.
struct ResultTile {
  int matrix, output, row, count;
};

// Stores four 8x8 matrices of 16-bit elements transposed: lane l holds elements 2t and 2t + 1 of column g of each, and
// gives the address of row l % 8 of matrix l / 8 (compute capability 9.0).
__device__ inline void stmatrix4_transposed(uint32_t address, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// T: float, __nv_bfloat16 or __half. `outputs`: results of a row, 64, or 32 if each is made of two sums. All threads of
// the warp group call the functions.
template <class T, int outputs>
class TileResults {
  static constexpr int kThreads = 128, kSize = sizeof(T);
  static constexpr int kRowBytes = outputs * kSize, kPitch = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kPartBytes = 8 << 10, kPartRows = kPartBytes / kRowBytes;
  static constexpr int kPanels = kRowBytes / kPitch, kPanelBytes = kPartRows * kPitch;  // side by side in a part
  static constexpr int kPack = 16 / kSize, kPacks = kRowBytes / 16, kPanelPacks = kPitch / 16;  // packs of 16 bytes
  static constexpr int kRowsAtOnce = kThreads / kPacks;

 public:
  static constexpr uint32_t kBytes = 2 * kPartBytes;  // of shared memory: two parts, which take turns

  // The results of all rows and outputs, for the TMA tiles of a panel.
  static CUtensorMap map(const ChainResults& to, int64_t rows) {
    const auto type = kSize == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
    const auto width = static_cast<cuuint64_t>(to.n);
    return tensor_map<2>(type, static_cast<const std::byte*>(to.out), {width, static_cast<cuuint64_t>(rows)},
                         {static_cast<cuuint64_t>(to.stride) * kSize}, {kPitch / kSize, kPartRows},
                         kPitch == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
  }
  // Whether the results can be written so: in rows of whole packs.
  static bool takes(const ChainResults& to) {
    return reinterpret_cast<uintptr_t>(to.out) % 16 == 0 && to.stride % kPack == 0 && to.n % kPack == 0;
  }

  // `base` is a multiple of 1024. `barrier` is the number of a named barrier of the warp group. `alone`: there is one
  // matrix, so that no other rows lie behind the last tile.
  __device__ TileResults(uint32_t base, int barrier, const ChainResults& to, const CUtensorMap& map, bool alone)
      : base_(base), barrier_(barrier), to_(to), map_(map), alone_(alone) {}

  // Writes sums * scale(row) with their biases, or adds them to what lies there. The tile may have fewer rows than
  // there are sums for.
  template <int count, class Scale>
  __device__ void write(const float (&sums)[count], const ResultTile& tile, const Scale& scale) {
    const int output = tile.output + warp() * 16 + lane() / 4;
    const float bias[2] = {to_.bias_of(output, tile.matrix), to_.bias_of(output + 8, tile.matrix)};
    each_part<count>(tile, [&](int part, uint32_t buffer) {
      if constexpr (kSize == 4) {
#pragma unroll
        for (int i = 0; i < kPartRows / 8; ++i) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int row = 8 * i + lane() % 4 * 2 + k % 2, place = warp() * 16 + lane() / 4 + k / 2 * 8;
            const float sum = sums[(part * kPartRows / 8 + i) * 4 + k] * scale(part * kPartRows + row);
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(at_pack(buffer, row, place / 4) + place % 4 * 4),
                         "f"(__fadd_rn(sum, bias[k / 2]))
                         : "memory");
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < kPartRows / 8; i += 2) {  // 16 rows and 16 outputs
          uint32_t results[4];
#pragma unroll
          for (int m = 0; m < 4; ++m) {
            const float* pair = sums + (part * kPartRows / 8 + i + m / 2) * 4 + m % 2 * 2;
            results[m] = pack2<T>(__fadd_rn(pair[0], bias[m % 2]), __fadd_rn(pair[1], bias[m % 2]));
          }
          const int row = 8 * (i + lane() / 16) + lane() % 8, pack = warp() * 2 + lane() / 8 % 2;
          stmatrix4_transposed(at_pack(buffer, row, pack), results);
        }
      }
    });
  }

  // Writes product(a, b) of the sums of output g and output g + 8 of every 16.
  template <int count, class Product>
  __device__ void write_products(const float (&sums)[count], const ResultTile& tile, const Product& product) {
    static_assert(kSize == 2 && outputs == 32);
    each_part<count>(tile, [&](int part, uint32_t buffer) {
#pragma unroll
      for (int i = 0; i < kPartRows / 8; i += 4) {  // 32 rows and 8 outputs
        uint32_t results[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float* of = sums + (part * kPartRows / 8 + i + m) * 4;
          results[m] = pack2<T>(product(of[0], of[2]), product(of[1], of[3]));
        }
        stmatrix4_transposed(at_pack(buffer, 8 * i + lane(), warp()), results);
      }
    });
  }

  // Waits until the copies have read the shared memory.
  __device__ void finish() const {
    if (thread() == 0) wait_copies();
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return thread() / kWarp; }
  // Packs are swizzled as TMA tiles have them, so that lanes meet all banks.
  __device__ static uint32_t at_pack(uint32_t buffer, int row, int pack) {
    return buffer + pack / kPanelPacks * kPanelBytes + row * kPitch +
           (pack % kPanelPacks ^ row * kPitch / 128 % kPanelPacks) * 16;
  }
  __device__ static void wait_copies() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

  // Calls put(part, buffer) for the parts that have rows, and writes what it put there. A buffer is free again when its
  // second successor is written: by then all threads have met at the barrier of the one between, in front of which the
  // thread that copies has waited for its copies.
  template <int count, class Put>
  __device__ void each_part(const ResultTile& tile, const Put& put) {
    constexpr int kParts = (2 * count + kPartRows - 1) / kPartRows;
    const int whole = alone_ ? tile.count : tile.count / kPartRows * kPartRows;  // rows that are copied
    uint32_t buffer = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part * kPartRows >= tile.count) continue;
      buffer = base_ + buffer_ * kPartBytes;
      buffer_ ^= 1;
      put(part, buffer);
      if (thread() == 0) wait_copies();
      fence_proxy_async();
      sync_threads(barrier_, kThreads);
      if (part * kPartRows < whole && thread() == 0) copy(tile, part, buffer);
    }
    if (whole < tile.count) write_rows(tile, whole, buffer);
  }

  __device__ void copy(const ResultTile& tile, int part, uint32_t buffer) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int output = tile.output + panel * (kPitch / kSize), row = tile.row + part * kPartRows;
      const uint32_t from = buffer + panel * kPanelBytes;
      if (kSize == 4 && to_.accumulate) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map_),
            "r"(output), "r"(row), "r"(from)
            : "memory");
      } else {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map_),
                     "r"(output), "r"(row), "r"(from)
                     : "memory");
      }
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  // Writes the last part of a tile behind which the rows of another matrix follow.
  __device__ void write_rows(const ResultTile& tile, int first, uint32_t buffer) const {
    const int pack = thread() % kPacks, output = tile.output + pack * kPack;
    if (output >= to_.n) return;
#pragma unroll 1
    for (int row = thread() / kPacks; first + row < tile.count; row += kRowsAtOnce) {
      uint4 v;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(at_pack(buffer, row, pack))
                   : "memory");
      *reinterpret_cast<uint4*>(static_cast<T*>(to_.out) + (tile.row + first + row) * to_.stride + output) = v;
    }
  }

  const uint32_t base_;
  const int barrier_;
  const ChainResults& to_;
  const CUtensorMap& map_;
  const bool alone_;
  uint32_t buffer_ = 0;
};

}  // namespace sluice::cuda
