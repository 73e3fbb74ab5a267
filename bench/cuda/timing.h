// What the parts of cuda_bench share: device memory of random values, timing, errors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/queue.h"

namespace sluice::cuda {

inline constexpr size_t kRotated = size_t{512} << 20;  // bytes of weights that calls walk through, several times the
                                                       // size of L2

// The queue that everything is measured on, of GPU 0.
Queue& bench_queue();
inline const Launch& launch() { return bench_queue().launch(); }
inline Memory& device_memory() { return bench_queue().device().memory(); }

// Device memory of scaled normal values in any plain type: one block of them, repeated.
class Random {
 public:
  Random(DType type, int64_t count, float scale = 1.0f, unsigned seed = 1)
      : memory_(static_cast<size_t>(count) * type->block_bytes, device_memory()) {
    constexpr int64_t kBlock = 1 << 20;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(static_cast<size_t>(std::min(count, kBlock)));
    for (float& v : values) v = normal(random);
    std::vector<std::byte> stored(values.size() * type->block_bytes);
    from_float(type, values.data(), stored.data(), values.size());
    for (size_t at = 0; at < memory_.size(); at += stored.size()) {
      device_memory().copy(memory_.data() + at, stored.data(), std::min(stored.size(), memory_.size() - at));
    }
  }
  std::byte* data() const { return memory_.data(); }

 private:
  Buffer memory_;
};

// Indices in device memory.
struct DeviceIndices {
  Buffer memory;
  explicit DeviceIndices(const std::vector<int32_t>& values) : memory(values.size() * 4, device_memory()) {
    device_memory().copy(memory.data(), values.data(), memory.size());
  }
  const int32_t* data() const { return reinterpret_cast<const int32_t*>(memory.data()); }
};

// The median time in seconds of the work that body() puts on the stream.
double seconds(const std::function<void()>& body, cudaStream_t stream = launch().stream);
// The median time in seconds of one call of body(i) for i = 0 .. calls - 1, replayed from a CUDA graph.
double seconds_per_call(int calls, const std::function<void(int)>& body);
// ||a - b|| / ||b||, or infinity if it is NaN.
double relative_error(const Tensor& a, const Tensor& b);

}  // namespace sluice::cuda
