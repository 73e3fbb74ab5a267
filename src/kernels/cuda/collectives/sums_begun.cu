#include "kernels/cuda/collectives/sums_begun.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/cuda/collectives/norm_behind.cuh"
#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/row_stream.cuh"
#include "kernels/cuda/device/wide_rows.cuh"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kUnits = 2;  // of four columns, which a thread has of a row

__host__ __device__ uint32_t landing_of(uint32_t run) { return run % kLandings; }
__host__ __device__ std::byte* landing_in(std::byte* region, uint32_t landing) {
  return region + RegionLayout::kLanding + landing * kLandingBytes;
}

// Runs that come from the other rank one after another, as rows.
struct Landed {
  std::byte* region;
  uint32_t first;   // index of the first run
  int rows_of_run;  // of all but the last one

  __device__ int run_of(int row) const { return row / rows_of_run; }
  __device__ uint32_t landing(int run) const { return landing_of(first + static_cast<unsigned>(run)); }
  // Waits until a run has come. One thread of a block calls it, and a barrier follows.
  __device__ void wait(const PeerMemory& m, int run) const {
    const uint32_t number = (first + static_cast<unsigned>(run)) % kRunNumbers + 1;
    const uint32_t* landed = &reinterpret_cast<const RegionHeader*>(region)->landed[landing(run)];
    uint32_t seen = 0, looks = 0;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(landed) : "memory");
    } while (seen != number && !given_up(m, looks));
  }
  // The rows of a run, which are as those of x.
  template <class T>
  __device__ WideRows<T> rows(int run, WideRows<T> x) const {
    x.data = reinterpret_cast<T*>(landing_in(region, landing(run)));
    return x;
  }
};

// What follows a sum: nothing, or a norm.
struct NoNorm {
  static constexpr bool kWholeUnits = false;
  struct OfRows {
    __device__ OfRows(const NoNorm&, int) {}
    __device__ void operator()(int, const float4 (&)[kUnits]) {}
  };
};

// Rows are whole units, and a block has a whole row.
template <bool Centred, class Out>
struct Norm {
  static constexpr bool kWholeUnits = true;
  NormFactors factors;
  Out to;

  class OfRows {
   public:
    __device__ OfRows(const Norm& norm, int columns) : norm_(norm), columns_(columns) {
      each([&](int j, int unit) { weight_[j] = norm.factors.weights(unit); });
    }
    __device__ void operator()(int row, float4 (&v)[kUnits]) {
      SumAndLargest own{0.0f, 0.0f};
      if constexpr (Centred) {
        each([&](int j, int) { own.sum += sum_of(v[j]); });
        const float mean = total(own).sum / static_cast<float>(columns_);
        each([&](int j, int) { v[j] = minus(v[j], mean); });
        own.sum = 0.0f;
      }
      each([&](int j, int) {
        own.sum += squares_of(v[j]);
        v[j] = times(v[j], weight_[j]);
        if constexpr (Out::kScaled && !Centred) own.largest = fmaxf(own.largest, largest_of(v[j]));
      });
      own = total(own);
      const float scale = rsqrtf(own.sum / static_cast<float>(columns_) + norm_.factors.eps);
      own.largest *= scale;
      each([&](int j, int unit) {
        v[j] = times(v[j], scale);
        if (Centred && norm_.factors.bias != nullptr) v[j] = sum(v[j], load_four(norm_.factors.bias + 4 * unit));
      });
      float inverse = 1.0f;
      if constexpr (Out::kScaled) {
        if constexpr (Centred) {  // only here may a bias change the largest magnitude
          own.largest = 0.0f;
          each([&](int j, int) { own.largest = fmaxf(own.largest, largest_of(v[j])); });
          own = total(own);
        }
        inverse = norm_.to.begin_row(row, own.largest, threadIdx.x == 0);
      }
      each([&](int j, int unit) { norm_.to.put(row, unit, v[j], inverse); });
    }

   private:
    // Calls f(j, unit) for this thread's units of a row.
    template <class F>
    __device__ void each(F&& f) const {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        if (const int unit = static_cast<int>(threadIdx.x + j * blockDim.x); 4 * unit < columns_) f(j, unit);
      }
    }
    __device__ SumAndLargest total(const SumAndLargest& own) {
      __shared__ SumAndLargest scratch[2][kWarp];
      turn_ ^= 1;
      return block_sum_and_max(own, scratch[turn_]);
    }

    const Norm& norm_;
    const int columns_;
    float4 weight_[kUnits];
    int turn_ = 0;
  };
};

// out = (accumulate ? out : 0) + x of rank 0 + x of rank 1, then the norm. A block has a part of a row at a time. Bound
// by memory traffic. `parts`: those of a row; 1 with a norm.
template <class T, class Then>
__global__ void __launch_bounds__(kMostThreads)
    add_landed(const __grid_constant__ PeerMemory m, const __grid_constant__ Landed landed, WideRows<float> out,
               WideRows<T> x, int rows, int parts, bool accumulate, const __grid_constant__ Then then) {
  const auto load_unit = [](const auto& from, int row, int column) {
    if constexpr (Then::kWholeUnits) return from.unit(row, column);
    return from.load(row, column);
  };
  int come = -1;  // the last run that is known to have come
  typename Then::OfRows norm(then, x.columns);
  const int items = rows * parts, step = static_cast<int>(gridDim.x);
  for (int item = static_cast<int>(blockIdx.x); item < items; item += step) {
    const int row = item / parts, first = item % parts * kUnits, run = landed.run_of(row);
    // Calls f(j, column) for this thread's units.
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        const int column = 4 * ((first + j) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x));
        if (column < x.columns) f(j, column);
      }
    };
    typename WideRows<T>::Unit own[kUnits], theirs[kUnits];
    float4 v[kUnits];
    each([&](int j, int column) {
      own[j] = load_unit(x, row, column);
      if (accumulate) v[j] = load_unit(out, row, column);
    });
    if (run != come) {
      if (threadIdx.x == 0) landed.wait(m, run);
      __syncthreads();
      come = run;
    }
    const WideRows<T> from = landed.rows(run, x);
    each([&](int j, int column) { theirs[j] = load_unit(from, row - run * landed.rows_of_run, column); });
    each([&](int j, int column) {
      const float4 mine = to_floats(own[j]), other = to_floats(theirs[j]);
      const float4 both = m.rank == 0 ? sum(mine, other) : sum(other, mine);
      v[j] = accumulate ? sum(v[j], both) : both;
      if constexpr (Then::kWholeUnits) {
        out.unit(row, column) = v[j];
      } else {
        out.store(row, column, out.columns, v[j]);
      }
    });
    norm(row, v);
  }
}

template <class T, class Then>
void launch_add(const Launch& l, const PeerMemory& m, const Landed& landed, const Tensor& out, const Tensor& x,
                bool accumulate, const Then& then) {
  const int64_t units = pieces(x.shape[1], 4);
  const int64_t threads = std::min<int64_t>(pieces(units, kUnits * kWarp) * kWarp, kMostThreads);
  const int64_t parts = pieces(units, kUnits * threads);
  int together = 0;  // blocks of an SM
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&together, add_landed<T, Then>, static_cast<int>(threads), 0),
      "sum of ranks");
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(x.shape[0] * parts, int64_t{together} * l.sm_count));
  add_landed<<<blocks, static_cast<unsigned>(threads), 0, l.stream>>>(m, landed, WideRows<float>(out), WideRows<T>(x),
                                                                      static_cast<int>(x.shape[0]),
                                                                      static_cast<int>(parts), accumulate, then);
  check_launch("sum of ranks");
}

}  // namespace

SumsBegun::SumsBegun(const PeerMemory& memory, bool one_device) : memory_(memory), one_device_(one_device) {
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
  const int other = 1 - memory_.rank;
  auto *mine = reinterpret_cast<RegionHeader*>(memory_.regions[memory_.rank]),
       *theirs = reinterpret_cast<RegionHeader*>(memory_.regions[other]);
  const cudaEvent_t computed = computed_[begun_ % kUnderWay], copied = copied_[begun_ % kUnderWay];
  check_cuda(cudaEventRecord(computed, l.stream), "event");
  check_cuda(cudaStreamWaitEvent(copies_, computed), "waiting for a matmul");
  const uint32_t landing = landing_of(begun_);
  check_cuda(
      cudaMemcpyAsync(landing_in(memory_.regions[other], landing), x.data, x.bytes(), cudaMemcpyDefault, copies_),
      "copy to another rank");
  check_cuda(cudaMemcpyAsync(&theirs->landed[landing], &mine->numbers[begun_ % kRunNumbers], sizeof(uint32_t),
                             cudaMemcpyDefault, copies_),
             "copy to another rank");
  check_cuda(cudaEventRecord(copied, copies_), "event");
  runs_[begun_ % kUnderWay] = {x.data, x.shape[0]};
  ++begun_;
}

template <class F>
void SumsBegun::finish_runs(const Launch& l, const Tensor& out, const Tensor& x, F&& launch) {
  const Landed landed{memory_.regions[memory_.rank], finished_, static_cast<int>(runs_[finished_ % kUnderWay].rows)};
  uint32_t last = finished_;
  for (int64_t rows = 0; rows < x.shape[0]; ++finished_) {
    CHECK(finished_ != begun_, "a sum of {} rows ends, but only {} have begun", x.shape[0], rows);
    const Run& run = runs_[finished_ % kUnderWay];
    const bool follows = run.data == x.slice_rows(rows, run.rows).data;
    CHECK(follows && rows == int64_t{finished_ - landed.first} * landed.rows_of_run, "a sum of rows that lie apart");
    rows += run.rows, last = finished_;
  }
  // The copies read x, so nothing may overwrite it before they have ended. Else the last one travels during the sum.
  // Within one device a copy may need SMs, which the sum's kernel holds while it waits.
  const auto wait_for_copies = [&] {
    check_cuda(cudaStreamWaitEvent(l.stream, copied_[last % kUnderWay]), "waiting for a copy");
  };
  const bool copies_first = one_device_ || out.data == x.data;
  if (copies_first) wait_for_copies();
  launch(landed);
  if (!copies_first) wait_for_copies();
}

void SumsBegun::finish(const Launch& l, const Tensor& out, const Tensor& x, bool accumulate) {
  finish_runs(l, out, x, [&](const Landed& landed) {
    if (x.dtype == &kBFloat16) return launch_add<__nv_bfloat16>(l, memory_, landed, out, x, accumulate, NoNorm());
    launch_add<float>(l, memory_, landed, out, x, accumulate, NoNorm());
  });
}

bool SumsBegun::finish(const Launch& l, const Tensor& out, const Tensor& x, bool accumulate, const ops::RowNorm& norm) {
  if (!in_units(out, x, norm) || x.shape[1] > int64_t{4} * kUnits * kMostThreads) return false;
  finish_runs(l, out, x, [&](const Landed& landed) {
    with_norm_types(x, norm, [&]<class T, bool Centred, class Out>(T, std::bool_constant<Centred>, const Out& to) {
      launch_add<T>(l, memory_, landed, out, x, accumulate, Norm<Centred, Out>{NormFactors(norm), to});
    });
  });
  return true;
}

}  // namespace sluice::cuda
