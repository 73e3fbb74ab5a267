#include "kernels/cuda/collectives/sums_begun.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/wide_rows.cuh"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;

// The landing of a run and the number that is stored behind it.
struct Run {
  uint32_t landing, number;
  explicit Run(uint32_t index) : landing(index % kLandings), number(index % kRunNumbers) {}
  size_t offset() const { return RegionLayout::kLanding + landing * kLandingBytes; }
};

// out = (accumulate ? out : 0) + x of rank 0 + x of rank 1, where `theirs` is the other rank's x, as dense as x.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_landed(const __grid_constant__ PeerMemory m, WideRows<float> out, WideRows<T> x, WideRows<T> theirs,
               int64_t rows, const uint32_t* landed, uint32_t number, bool accumulate) {
  if (threadIdx.x == 0) {
    uint32_t seen = 0, looks = 0;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(landed) : "memory");
    } while (seen != number && !given_up(m, looks));
  }
  __syncthreads();
  const int per_row = (x.columns + 3) / 4;
  const int64_t total = rows * per_row, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t row = i / per_row;
    const int column = static_cast<int>(i % per_row) * 4;
    const float4 mine = to_floats(x.load(row, column)), other = to_floats(theirs.load(row, column));
    const float4 v = m.rank == 0 ? sum(mine, other) : sum(other, mine);
    out.store(row, column, out.columns, accumulate ? sum(out.load(row, column), v) : v);
  }
}

template <class T>
void launch_add(const Launch& l, const PeerMemory& m, const Run& run, const Tensor& out, const Tensor& x,
                bool accumulate) {
  std::byte* region = m.regions[m.rank];
  const Tensor theirs(region + run.offset(), x.dtype, x.shape);
  const uint32_t* landed = &reinterpret_cast<RegionHeader*>(region)->landed[run.landing];
  const int64_t units = x.shape[0] * pieces(x.shape[1], 4);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(pieces(units, kThreads), 8 * l.sm_count));
  add_landed<<<blocks, kThreads, 0, l.stream>>>(m, WideRows<float>(out), WideRows<T>(x), WideRows<T>(theirs),
                                                x.shape[0], landed, run.number + 1, accumulate);
  check_launch("sum of ranks");
}

}  // namespace

SumsBegun::SumsBegun(const PeerMemory& memory) : memory_(memory) {
  std::vector<uint32_t> numbers(kRunNumbers);
  std::iota(numbers.begin(), numbers.end(), 1u);
  auto* header = reinterpret_cast<RegionHeader*>(memory.regions[memory.rank]);
  check_cuda(cudaMemcpy(header->numbers, numbers.data(), sizeof header->numbers, cudaMemcpyDefault), "memory of ranks");
  check_cuda(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "stream between ranks");
  for (auto* events : {&computed_, &copied_}) {
    for (cudaEvent_t& event : *events) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
}

SumsBegun::~SumsBegun() {
  cudaStreamSynchronize(copies_);
  for (auto* events : {&computed_, &copied_}) {
    for (const cudaEvent_t event : *events) cudaEventDestroy(event);
  }
  cudaStreamDestroy(copies_);
}

void SumsBegun::begin(const Launch& l, const Tensor& x) {
  CHECK(!l.captured && x.dense() && x.bytes() <= kLandingBytes, "a sum of {} {} begins", x.shape.str(), x.dtype->name);
  CHECK(begun_ - finished_ < kUnderWay, "{} sums have begun", begun_ - finished_);
  const Run run(begun_);
  const int other = 1 - memory_.rank;
  auto *mine = reinterpret_cast<RegionHeader*>(memory_.regions[memory_.rank]),
       *theirs = reinterpret_cast<RegionHeader*>(memory_.regions[other]);
  const cudaEvent_t computed = computed_[begun_ % kUnderWay], copied = copied_[begun_ % kUnderWay];
  check_cuda(cudaEventRecord(computed, l.stream), "event");
  check_cuda(cudaStreamWaitEvent(copies_, computed), "waiting for a matmul");
  check_cuda(cudaMemcpyAsync(memory_.regions[other] + run.offset(), x.data, x.bytes(), cudaMemcpyDefault, copies_),
             "copy to another rank");
  check_cuda(cudaMemcpyAsync(&theirs->landed[run.landing], &mine->numbers[run.number], sizeof(uint32_t),
                             cudaMemcpyDefault, copies_),
             "copy to another rank");
  check_cuda(cudaEventRecord(copied, copies_), "event");
  runs_[begun_ % kUnderWay] = x.data;
  ++begun_;
}

void SumsBegun::finish(const Launch& l, const Tensor& out, const Tensor& x, bool accumulate) {
  const uint32_t turn = finished_ % kUnderWay;
  const Run run(finished_++);
  check_cuda(cudaStreamWaitEvent(l.stream, copied_[turn]), "waiting for a copy");  // out may be x
  if (x.dtype == &kBFloat16) {
    launch_add<__nv_bfloat16>(l, memory_, run, out, x, accumulate);
  } else {
    launch_add<float>(l, memory_, run, out, x, accumulate);
  }
}

}  // namespace sluice::cuda
