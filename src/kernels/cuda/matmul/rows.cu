// Matmuls with weights and inputs of one type, of up to 128 rows or of experts, on compute capability 9.0 (sm_90a):
// 8-bit floats with a scale per row of each, or 16 bits. Bound by memory traffic: the weights are read once, the inputs
// once per 128 outputs from L2. Measured on one H200: 128 bf16 experts [1536, 2048] with two rows each on average take
// 177 us, 4.01 TB/s of weights.
//
// A block of three warp groups takes 128 outputs and a part of k. One warp group copies weights and inputs, 128 bytes
// per row, into shared memory. The other two multiply 64 outputs each: out^T = weight * x^T, so the outputs fill the 64
// rows of an instruction however few rows x has. The blocks that share outputs form a cluster. They add up their sums,
// in order, from each other's shared memory. The tensor cores add up 8-bit floats with fewer bits than fp32 has, as in
// dense.cc.
#include "kernels/cuda/matmul/rows.h"

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/matmul/rows.cuh"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

using namespace row_matmul;

// Grid: (128 outputs, parts of k, tiles of rows); the parts of k form a cluster.
template <class T, int rows, class Out>
__global__ void __launch_bounds__(kThreads, RowsLayout<rows>::kTogether)
    matmul_rows(const __grid_constant__ RowsParams p, const __grid_constant__ CUtensorMap weights,
                const RowsOut<Out> out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint4 memory[];
  const RowsLayout<rows> shared{shared_address(memory)};
  const Part part = part_of(p.chunks);
  init_stages(shared, kGroupThreads + 1);
  const int consumer = static_cast<int>(threadIdx.x) / kGroupThreads - 1,
            output = static_cast<int>(blockIdx.x) * kOutputs;
  float sums[rows / 2];
  if (consumer < 0) {
    produce(p, weights, part, output, shared);
    wait_for_all_copies();
  } else {
    wait_for_earlier();
  }
  const RowTile tile = find_row_tile(p.starts, p.matrices, p.rows, static_cast<int>(blockIdx.z), rows);
  if (tile.count == 0) return;
  if (consumer >= 0) consume<T, rows>(part.count, shared, consumer, sums);
  __syncthreads();  // no warp reads the stages any more
  if (consumer >= 0) share<rows>(shared, consumer, sums);
  write<T, rows>(p, tile, output, shared, out);
#endif
}

template <class T, int rows, class Out>
void launch_rows(const Launch& l, const RowsParams& p, int parts, const CUtensorMap& weights, const RowsOut<Out>& out) {
  constexpr int kBytes = RowsLayout<rows>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, matmul_rows<T, rows, Out>, kBytes);
  const auto outputs = static_cast<unsigned>(pieces(p.n, kOutputs));
  const unsigned tiles = most_row_tiles(p.starts != nullptr, p.matrices, p.rows, rows);
  static PerDevice<ClusterCapacity> capacities;
  const ClusterCapacity& capacity =
      capacities.get(l.device, [] { return ClusterCapacity(matmul_rows<T, rows, Out>, kThreads, kBytes); });
  const int blocks =
      parts > 0 ? parts : capacity.best(int64_t{outputs} * tiles, p.chunks, most_blocks(rows), kFixedChunks);
  launch_clusters(l, "matmul of rows", matmul_rows<T, rows, Out>,
                  columns_grid(dim3(outputs, static_cast<unsigned>(blocks), tiles), kBytes), p, weights, out);
}

// The experts of a batch have unequal numbers of rows. A tile takes four times the average, so that the weights of few
// of them are read more than once.
int rows_of_tile(const RowsParams& p) { return p.starts != nullptr ? 4 * p.rows / p.matrices : p.rows; }

template <class T, class Out>
void launch_any(const Launch& l, const RowsParams& p, int parts, const CUtensorMap& weights, const RowsOut<Out>& out) {
  const int rows = rows_of_tile(p);
  if (rows <= 16) return launch_rows<T, 16>(l, p, parts, weights, out);
  if (rows <= 32) return launch_rows<T, 32>(l, p, parts, weights, out);
  if (rows <= 64) return launch_rows<T, 64>(l, p, parts, weights, out);
  launch_rows<T, 128>(l, p, parts, weights, out);
}

template <class T>
void launch_type(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  const RowsParams params = rows_params(p, of);
  const int64_t rows = p.starts != nullptr ? p.matrices * p.weight_rows : p.n;
  const CUtensorMap weights = rows_map(p.weight, rows, of.weight_pitch, of.bytes, kOutputs);
  if (p.out.dtype == &kFloat32) {
    return launch_any<T>(l, params, of.parts, weights, RowsOut<float>{p.out.as<float>(), p.out.row_stride});
  }
  CHECK(p.out.dtype == &kBFloat16, "matmul cannot write {} (expected one of: float32, bfloat16)", p.out.dtype->name);
  launch_any<T>(l, params, of.parts, weights, RowsOut<__nv_bfloat16>{p.out.as<__nv_bfloat16>(), p.out.row_stride});
}

}  // namespace

CUtensorMap rows_map(const std::byte* rows, int64_t count, int64_t pitch, int64_t bytes, unsigned tile_rows) {
  return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, rows,
                       {static_cast<cuuint64_t>(bytes), static_cast<cuuint64_t>(count)},
                       {static_cast<cuuint64_t>(pitch)}, {kChunk, tile_rows}, CU_TENSOR_MAP_SWIZZLE_128B);
}

// The fewest rows of an expert, on average, for which the grouped GEMM is used. With equally many rows for all experts
// it is faster from 32 on, but the experts of real batches have unequally many.
constexpr int64_t kGroupedRows = 8;

void matmul_rows(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  if (p.starts != nullptr && p.x.rows() >= kGroupedRows * p.matrices && matmul_grouped(l, p, of)) return;
  if (of.type == &kFloat8E4M3) {
    launch_type<__nv_fp8_e4m3>(l, p, of);
  } else if (of.type == &kBFloat16) {
    launch_type<__nv_bfloat16>(l, p, of);
  } else {
    launch_type<__half>(l, p, of);
  }
}

bool takes_rows(const Launch& l, const MatmulProblem& p) {
  const bool bias = p.bias == nullptr || (reinterpret_cast<uintptr_t>(p.bias) % 16 == 0 && p.bias_step % 4 == 0);
  return l.compute_capability == 90 && in_quads(p.out) && bias && (p.matrices == 1 || p.starts != nullptr);
}

void matmul_fp8_rows(const Launch& l, const MatmulProblem& p, const std::byte* x, const float* x_scales) {
  const int64_t rows = p.starts != nullptr ? p.matrices * p.weight_rows : p.n;
  matmul_rows(l, p,
              {.type = &kFloat8E4M3,
               .bytes = p.k,
               .weight_pitch = fp8_row_bytes(p.k),
               .x = x,
               .x_pitch = p.k,
               .weight_scales = reinterpret_cast<const float*>(p.weight + fp8_panels_bytes(rows, p.k)),
               .x_scales = x_scales});
}

std::optional<RowOperands> plain_operands(const Launch& l, const MatmulProblem& p) {
  const int64_t rows = p.x.rows(), bytes = padded_k(p.k) * 2;
  RowOperands of{.type = p.type,
                 .bytes = bytes,
                 .weight_pitch = bytes,
                 .x = p.x.data,
                 .x_pitch = p.x.row_stride * p.x.dtype->block_bytes};
  if (p.x.dtype != p.type || p.x_rows != nullptr) {
    if (static_cast<size_t>(rows * bytes) > l.workspace_bytes) return std::nullopt;
    round_rows(l, l.workspace, p.type, p.x, p.x_rows);
    of.x = l.workspace;
    of.x_pitch = bytes;
  } else if (padded_k(p.k) != p.k || of.x_pitch % 16 != 0 || reinterpret_cast<uintptr_t>(of.x) % 16 != 0) {
    return std::nullopt;
  }
  return of;
}

bool matmul_plain_rows(const Launch& l, const MatmulProblem& p) {
  if ((p.starts == nullptr && p.x.rows() > kMostPlainRows) || !takes_rows(l, p)) return false;
  const std::optional<RowOperands> of = plain_operands(l, p);
  if (of) matmul_rows(l, p, *of);
  return of.has_value();
}
#else
bool takes_rows(const Launch&, const MatmulProblem&) { return false; }
void matmul_rows(const Launch&, const MatmulProblem&, const RowOperands&) {
  CHECK(false, "matmul_rows was not compiled: CMAKE_CUDA_ARCHITECTURES lacks 90a");
}
void matmul_fp8_rows(const Launch&, const MatmulProblem&, const std::byte*, const float*) {
  CHECK(false, "matmul_fp8_rows was not compiled: CMAKE_CUDA_ARCHITECTURES lacks 90a");
}
std::optional<RowOperands> plain_operands(const Launch&, const MatmulProblem&) { return std::nullopt; }
bool matmul_plain_rows(const Launch&, const MatmulProblem&) { return false; }
#endif

}  // namespace sluice::cuda
