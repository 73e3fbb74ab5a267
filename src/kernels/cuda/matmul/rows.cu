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
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/rows_out.cuh"
#include "kernels/cuda/device/tile_stages.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

constexpr int kGroupThreads = 128;  // threads of a warp group
constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kOutputs = kConsumers * 64;  // of a block
static_assert(kOutputs == kTileOutputs);
constexpr int kChunk = 128;  // bytes of a row that are copied together

template <class T>
inline constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

struct RowsParams {
  const float* weight_scales;  // for 8-bit floats, as x_scales is
  const float* bias;           // or null
  int64_t bias_step;           // from a matrix to the next one
  const std::byte* x;
  int64_t x_pitch;  // in bytes
  const float* x_scales;
  const int32_t* starts;  // where the rows of each matrix begin, or null
  int matrices;
  int64_t weight_rows;  // from a matrix to the next one
  int n, rows, chunks;
  bool accumulate;
};

// A stage is a chunk of the weights, then one of the inputs.
inline constexpr uint32_t kWeightBytes = kOutputs * kChunk;
constexpr int stages_of(int rows) { return rows > 64 ? 6 : rows > 32 ? 4 : 5; }

template <int rows>
struct RowsLayout : TileStages<stages_of(rows), kWeightBytes + rows * kChunk, rows> {
  static constexpr int kTogether = rows > 64 ? 1 : 2;  // blocks per SM

  __device__ uint32_t weights(int stage) const { return this->stage(stage); }
  __device__ uint32_t inputs(int stage) const { return this->stage(stage) + kWeightBytes; }
};

// Copies rows of a chunk to shared memory: a thread copies a pack of 16 bytes of every 16th row.
template <int rows>
class ChunkCopy {
 public:
  // Copies from `count` rows at `from`; the last row stands in for rows beyond.
  __device__ ChunkCopy(const std::byte* from, int64_t pitch, int count, int first_chunk)
      : to_(static_cast<uint32_t>(row() * kChunk + ((pack() ^ row()) & 7) * 16)) {
#pragma unroll
    for (int i = 0; i < rows / 16; ++i) {
      from_[i] = from + min(row() + 16 * i, count - 1) * pitch + first_chunk * kChunk + pack() * 16;
    }
  }
  // Copies only the rows that are needed.
  __device__ void copy(uint32_t matrix, int chunk, int used) const {
#pragma unroll
    for (int i = 0; i < rows / 16; ++i) {
      if (16 * i < used) copy_async(matrix + to_ + i * 16 * kChunk, from_[i] + chunk * kChunk);
    }
  }

 private:
  __device__ static int pack() { return static_cast<int>(threadIdx.x) % 8; }
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 8; }

  uint32_t to_;
  const std::byte* from_[rows / 16];
};

// The producer. Weights of a single matrix are loaded before the kernel in front has written the inputs (PDL). One
// thread copies them as TMA tiles, because copies of 16 bytes cannot tell L2 to evict them first.
template <int rows>
__device__ void produce(const RowsParams& p, const CUtensorMap& weights, const Part& part,
                        const RowsLayout<rows>& shared) {
  constexpr int kStages = RowsLayout<rows>::kStages;
  const int early = p.starts == nullptr ? min(part.count, kStages) : 0,
            output = static_cast<int>(blockIdx.x) * kOutputs;
  const uint64_t policy = l2_evict_first();
  const auto copy_weights = [&](int64_t row, int i) {
    if (threadIdx.x != 0) return;
    const int stage = i % kStages;
    arrive_expecting(shared.full(stage), kWeightBytes);
    copy_tma_tile(shared.weights(stage), weights, (part.begin + i) * kChunk, static_cast<int>(row), shared.full(stage),
                  policy);
  };
  for (int i = 0; i < early; ++i) copy_weights(output, i);
  wait_for_earlier();
  const RowTile tile = find_row_tile(p.starts, p.matrices, p.rows, static_cast<int>(blockIdx.z), rows);
  if (tile.count == 0) return;
  const int64_t row = tile.matrix * p.weight_rows + output;
  const ChunkCopy<rows> inputs(p.x + tile.row * p.x_pitch, p.x_pitch, tile.count, part.begin);
  for (int i = 0; i < part.count; ++i) {
    const int stage = i % kStages;
    if (i >= early) {
      wait_barrier(shared.empty(stage), i / kStages % 2 ^ 1);
      copy_weights(row, i);
    }
    inputs.copy(shared.inputs(stage), i, tile.count);
    arrive_after_copies(shared.full(stage));
  }
  wait_for_all_copies();
}

// With g = l / 4 and t = l % 4, sums[4 * i + 2 * h + j] of lane l of warp w belongs to output 16 w + g + 8 h of the
// consumer's 64 and row 8 i + 2 t + j.
template <class T, int rows>
__device__ void consume(const Part& part, const RowsLayout<rows>& shared, int consumer, float (&sums)[rows / 2]) {
  constexpr int kStages = RowsLayout<rows>::kStages;
  const bool first_lane = threadIdx.x % kWarp == 0;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int i = 0; i < part.count; ++i) {
    const int stage = i % kStages;
    wait_barrier(shared.full(stage), i / kStages % 2);
    fence_proxy_async();
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < kChunk / 32; ++step) {
      Wgmma<T, rows>::from_shared(sums, matrix(shared.weights(stage) + consumer * 64 * kChunk + step * 32),
                                  matrix(shared.inputs(stage) + step * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && first_lane) arrive(shared.empty((i - 1) % kStages));
  }
  wgmma_wait<0>();
  wgmma_fence_operands(sums);
}

// Adds up the sums of the cluster and writes them. Rows are dealt out to the cluster's warps; a lane has four outputs.
// Whatever does not depend on the sums is loaded before all of them are there.
template <class T, int rows, class Out>
__device__ void write(const RowsParams& p, const RowTile& tile, const RowsLayout<rows>& shared,
                      const RowsOut<Out>& out) {
  const int blocks = static_cast<int>(gridDim.y), block = static_cast<int>(blockIdx.y),
            step = blocks * kThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int output = static_cast<int>(blockIdx.x) * kOutputs + 4 * lane, first = block + blocks * warp;
  const int count = output < p.n ? tile.count : 0;
  float4 scales{}, bias{};
  if (count > 0) {
    if constexpr (kScaled<T>) {
      scales = *reinterpret_cast<const float4*>(p.weight_scales + tile.matrix * p.weight_rows + output);
    }
    if (p.bias != nullptr) bias = *reinterpret_cast<const float4*>(p.bias + tile.matrix * p.bias_step + output);
  }
  const auto added_to = [&](int i) {
    float4 v = bias;
    if constexpr (sizeof(Out) == 4) {
      if (p.accumulate && i < count) {
        const float4 now = *reinterpret_cast<const float4*>(out.data + (tile.row + i) * out.stride + output);
        v = {v.x + now.x, v.y + now.y, v.z + now.z, v.w + now.w};
      }
    }
    return v;
  };
  float4 added = added_to(first);
  sync_cluster();
  for (int i = first; i < count; i += step) {
    float4 sum = shared.sums().of_blocks(blocks, i, 4 * lane);
    const int row = tile.row + i;
    if constexpr (kScaled<T>) {
      const float scale = p.x_scales[row];
      sum = {sum.x * scales.x * scale, sum.y * scales.y * scale, sum.z * scales.z * scale, sum.w * scales.w * scale};
    }
    out.put(row, output / 4, {sum.x + added.x, sum.y + added.y, sum.z + added.z, sum.w + added.w}, 1.0f);
    added = added_to(i + step);
  }
  sync_cluster();  // other blocks may still read these sums
}

// Grid: (128 outputs, parts of k, tiles of rows); the parts of k form a cluster.
template <class T, int rows, class Out>
__global__ void __launch_bounds__(kThreads, RowsLayout<rows>::kTogether)
    matmul_rows(const __grid_constant__ RowsParams p, const __grid_constant__ CUtensorMap weights,
                const RowsOut<Out> out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint4 memory[];
  const RowsLayout<rows> shared{shared_address(memory)};
  const Part part = part_of(p.chunks);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < RowsLayout<rows>::kStages; ++stage) {
      init_barrier(shared.full(stage), kGroupThreads + 1);
      init_barrier(shared.empty(stage), kConsumers * kGroupThreads / kWarp);
    }
  }
  fence_proxy_async();
  __syncthreads();
  const int consumer = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  float sums[rows / 2];
  if (consumer < 0) {
    produce<rows>(p, weights, part, shared);
  } else {
    wait_for_earlier();
  }
  const RowTile tile = find_row_tile(p.starts, p.matrices, p.rows, static_cast<int>(blockIdx.z), rows);
  if (tile.count == 0) return;
  if (consumer >= 0) consume<T, rows>(part, shared, consumer, sums);
  __syncthreads();  // no warp reads the stages any more
  if (consumer >= 0) {
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, t = thread % 4;
    const int output = consumer * 64 + thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
    for (int i = 0; i < rows / 2; ++i) {
      store_shared(shared.sums().at(i / 4 * 8 + 2 * t + i % 2, output + i / 2 % 2 * 8), sums[i]);
    }
  }
  write<T, rows>(p, tile, shared, out);
#endif
}

template <class T, int rows, class Out>
void launch_rows(const Launch& l, const RowsParams& p, const CUtensorMap& weights, const RowsOut<Out>& out) {
  constexpr int kBytes = RowsLayout<rows>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, matmul_rows<T, rows, Out>, kBytes);
  const auto outputs = static_cast<unsigned>(pieces(p.n, kOutputs));
  const unsigned tiles = most_row_tiles(p.starts != nullptr, p.matrices, p.rows, rows);
  static PerDevice<ClusterCapacity> capacities;
  const ClusterCapacity& capacity =
      capacities.get(l.device, [] { return ClusterCapacity(matmul_rows<T, rows, Out>, kThreads, kBytes); });
  // Of few rows 8 take longer, at 4096 x 4096 11.3 us instead of 7.9.
  constexpr int kFixed = 4, kMostBlocks = rows > 64 ? 8 : 4;
  const auto blocks = static_cast<unsigned>(capacity.best(int64_t{outputs} * tiles, p.chunks, kMostBlocks, kFixed));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {1, blocks, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(outputs, blocks, tiles);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = l.stream;
  config.attrs = attributes;
  config.numAttrs = l.pdl ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, matmul_rows<T, rows, Out>, p, weights, out), "matmul of rows");
}

// The experts of a batch have unequal numbers of rows. A tile takes four times the average, so that the weights of few
// of them are read more than once.
int rows_of_tile(const RowsParams& p) { return p.starts != nullptr ? 4 * p.rows / p.matrices : p.rows; }

template <class T, class Out>
void launch_any(const Launch& l, const RowsParams& p, const CUtensorMap& weights, const RowsOut<Out>& out) {
  const int rows = rows_of_tile(p);
  if (rows <= 16) return launch_rows<T, 16>(l, p, weights, out);
  if (rows <= 32) return launch_rows<T, 32>(l, p, weights, out);
  if (rows <= 64) return launch_rows<T, 64>(l, p, weights, out);
  launch_rows<T, 128>(l, p, weights, out);
}

template <class T>
void launch_type(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  const RowsParams params{.weight_scales = of.weight_scales,
                          .bias = p.bias,
                          .bias_step = p.bias_step,
                          .x = of.x,
                          .x_pitch = of.x_pitch,
                          .x_scales = of.x_scales,
                          .starts = p.starts,
                          .matrices = p.matrices,
                          .weight_rows = p.weight_rows,
                          .n = static_cast<int>(p.n),
                          .rows = static_cast<int>(p.x.rows()),
                          .chunks = static_cast<int>(of.bytes / kChunk),
                          .accumulate = p.accumulate};
  const int64_t rows = p.starts != nullptr ? p.matrices * p.weight_rows : p.n;
  const CUtensorMap weights = rows_map(p.weight, rows, of.weight_pitch, of.bytes, kOutputs);
  if (p.out.dtype == &kFloat32) {
    return launch_any<T>(l, params, weights, RowsOut<float>{p.out.as<float>(), p.out.row_stride});
  }
  CHECK(p.out.dtype == &kBFloat16, "matmul cannot write {} (expected one of: float32, bfloat16)", p.out.dtype->name);
  launch_any<T>(l, params, weights, RowsOut<__nv_bfloat16>{p.out.as<__nv_bfloat16>(), p.out.row_stride});
}

bool takes(const Launch& l, const MatmulProblem& p) {
  const bool bias = p.bias == nullptr || (reinterpret_cast<uintptr_t>(p.bias) % 16 == 0 && p.bias_step % 4 == 0);
  return l.compute_capability == 90 && in_quads(p.out) && bias && (p.matrices == 1 || p.starts != nullptr);
}

// The fewest rows of an expert, on average, for which the grouped GEMM is used. With equally many rows for all experts
// it is faster from 32 on, but the experts of real batches have unequally many.
constexpr int64_t kGroupedRows = 8;

void multiply(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  if (p.starts != nullptr && p.x.rows() >= kGroupedRows * p.matrices && matmul_grouped(l, p, of)) return;
  if (of.type == &kFloat8E4M3) {
    launch_type<__nv_fp8_e4m3>(l, p, of);
  } else if (of.type == &kBFloat16) {
    launch_type<__nv_bfloat16>(l, p, of);
  } else {
    launch_type<__half>(l, p, of);
  }
}

}  // namespace

CUtensorMap rows_map(const std::byte* rows, int64_t count, int64_t pitch, int64_t bytes, unsigned tile_rows) {
  return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, rows,
                       {static_cast<cuuint64_t>(bytes), static_cast<cuuint64_t>(count)},
                       {static_cast<cuuint64_t>(pitch)}, {kChunk, tile_rows}, CU_TENSOR_MAP_SWIZZLE_128B);
}

bool takes_fp8_rows(const Launch& l, const MatmulProblem& p) { return takes(l, p); }

void matmul_fp8_rows(const Launch& l, const MatmulProblem& p, const std::byte* x, const float* x_scales) {
  const int64_t rows = p.starts != nullptr ? p.matrices * p.weight_rows : p.n;
  multiply(l, p,
           {.type = &kFloat8E4M3,
            .bytes = p.k,
            .weight_pitch = fp8_row_bytes(p.k),
            .x = x,
            .x_pitch = p.k,
            .weight_scales = reinterpret_cast<const float*>(p.weight + fp8_panels_bytes(rows, p.k)),
            .x_scales = x_scales});
}

bool matmul_plain_rows(const Launch& l, const MatmulProblem& p) {
  const int64_t rows = p.x.rows(), bytes = padded_k(p.k) * 2;
  if ((p.starts == nullptr && rows > kMostPlainRows) || !takes(l, p)) return false;
  RowOperands of{.type = p.type,
                 .bytes = bytes,
                 .weight_pitch = bytes,
                 .x = p.x.data,
                 .x_pitch = p.x.row_stride * p.x.dtype->block_bytes};
  if (p.x.dtype != p.type) {
    if (static_cast<size_t>(rows * bytes) > l.workspace_bytes) return false;
    round_rows(l, l.workspace, p.type, p.x, p.x_rows);
    of.x = l.workspace;
    of.x_pitch = bytes;
  } else if (padded_k(p.k) != p.k || of.x_pitch % 16 != 0 || reinterpret_cast<uintptr_t>(of.x) % 16 != 0 ||
             p.x_rows != nullptr) {
    return false;
  }
  multiply(l, p, of);
  return true;
}
#else
bool takes_fp8_rows(const Launch&, const MatmulProblem&) { return false; }
void matmul_fp8_rows(const Launch&, const MatmulProblem&, const std::byte*, const float*) {
  CHECK(false, "matmul_fp8_rows was not compiled: CMAKE_CUDA_ARCHITECTURES lacks 90a");
}
bool matmul_plain_rows(const Launch&, const MatmulProblem&) { return false; }
#endif

}  // namespace sluice::cuda
