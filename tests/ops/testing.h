// Helpers for the op tests: random data, tensors that own their memory, backends as test parameters, comparisons.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>
#include <ranges>
#include <string>
#include <vector>

#include "base/registry.h"
#include "base/thread_pool.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "support/sanitized.h"

namespace sluice::ops {

// Memory that every usable backend and the host can access.
inline Memory& test_memory() {
  for (const Backend* backend : Registry<Backend>::all()) {
    if (backend->usable() && &backend->open(0).shared_memory() != &host_memory()) {
      return backend->open(0).shared_memory();
    }
  }
  return host_memory();
}

// An allocator for vectors that ops read.
template <class T>
struct TestAllocator {
  using value_type = T;
  T* allocate(size_t count) { return reinterpret_cast<T*>(test_memory().allocate(count * sizeof(T))); }
  void deallocate(T* data, size_t count) {
    test_memory().release(reinterpret_cast<std::byte*>(data), count * sizeof(T));
  }
  bool operator==(const TestAllocator&) const { return true; }
};
using Floats = std::vector<float, TestAllocator<float>>;

// Normally distributed numbers, several times as fast as std::normal_distribution: the inverse of the distribution
// function at a random place, linear between points of equal distance. Numbers are within +-4.2.
class Normals {
 public:
  explicit Normals(uint64_t seed) : state_(seed) {}
  explicit Normals(std::mt19937& random) : Normals(random()) {}
  float operator()() {
    state_ += 0x9e3779b97f4a7c15;  // splitmix64
    uint64_t bits = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    const float* point = points().data() + (bits >> (64 - kBits));
    return point[0] + (point[1] - point[0]) * static_cast<float>(bits >> 16 & 0xffffff) * 0x1p-24f;
  }

 private:
  static constexpr int kBits = 12;
  using Points = std::array<float, (1 << kBits) + 1>;

  static const Points& points() {
    static const Points all = [] {
      Points points{};
      points.front() = -4.2f, points.back() = 4.2f;
      double x = -3.6;
      for (size_t i = 1; i + 1 < points.size(); ++i) {
        const double target = static_cast<double>(i) / (points.size() - 1);
        for (int step = 0; step < 6; ++step) {  // of Newton's method
          const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
          x -= (std::erfc(-x / std::numbers::sqrt2) / 2 - target) / density;
        }
        points[i] = static_cast<float>(x);
      }
      return points;
    }();
    return all;
  }

  uint64_t state_;
};

// A tensor that owns its memory, with `gap` extra elements between rows.
class Owned {
 public:
  Owned(DType dtype, Shape shape, int64_t gap = 0)
      : tensor_(nullptr, dtype, shape), gap_(gap), buffer_(bytes() + 64, test_memory()) {
    tensor_.data = buffer_.data();
    tensor_.row_stride += gap;
  }
  Owned(const Owned& o) : Owned(o.tensor_.dtype, o.tensor_.shape, o.gap_) {
    std::memcpy(buffer_.data(), o.buffer_.data(), bytes());
  }
  operator Tensor() const { return tensor_; }
  operator Tensor() { return tensor_; }  // for ops that write to it
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }
  size_t bytes() const {
    return static_cast<size_t>(tensor_.rows() * (tensor_.row_elements() + gap_)) * tensor_.dtype->block_bytes;
  }
  float* row(int64_t i) const { return tensor_.f32() + i * tensor_.row_stride; }
  float* row(int64_t i) { return tensor_.f32() + i * tensor_.row_stride; }

  // Fills the tensor and its gaps with normally distributed values, rounded to its type.
  Owned& fill(std::mt19937& random, float scale = 1.0f) {
    Normals normal(random);
    std::vector<float> values(bytes() / tensor_.dtype->block_bytes);
    for (float& v : values) v = scale * normal();
    from_float(tensor_.dtype, values.data(), tensor_.data, values.size());
    return *this;
  }

 private:
  Tensor tensor_;
  int64_t gap_;
  Buffer buffer_;
};

// Keys or values in the paged cache; int8 caches have scales.
class OwnedCache : public Owned {
 public:
  OwnedCache(DType type, Shape shape) : Owned(type, shape), scales_(&kFloat32, {vectors()}) {}
  operator CacheTensor() const { return {**this, scales()}; }
  float* scales() const { return (*this)->dtype == &kInt8 ? scales_->f32() : nullptr; }
  int64_t vectors() const { return (*this)->shape.elements() / (*this)->shape[-1]; }

  OwnedCache& fill(std::mt19937& random) {
    if ((*this)->dtype != &kInt8) {
      Owned::fill(random);
      return *this;
    }
    Normals normal(random);
    std::vector<float> values(static_cast<size_t>((*this)->shape[-1]));
    for (int64_t i = 0; i < vectors(); ++i) {
      for (float& v : values) v = normal();
      put(i, values);
    }
    return *this;
  }
  void put(int64_t vector, const std::vector<float>& values) {
    std::byte* to = (*this)->data + vector * (*this)->shape[-1] * (*this)->dtype->block_bytes;
    if ((*this)->dtype != &kInt8) return from_float((*this)->dtype, values.data(), to, values.size());
    scales()[vector] =
        reference::encode_int8(values.data(), reinterpret_cast<int8_t*>(to), static_cast<int64_t>(values.size()));
  }
  // Returns all elements.
  std::vector<float> numbers() const {
    const auto elements = static_cast<size_t>((*this)->shape.elements());
    std::vector<float> values(elements);
    if ((*this)->dtype != &kInt8) {
      to_float((*this)->dtype, (*this)->data, values.data(), elements);
      return values;
    }
    for (size_t i = 0; i < elements; ++i) {
      values[i] = static_cast<float>((*this)->as<int8_t>()[i]) * scales()[i / static_cast<size_t>((*this)->shape[-1])];
    }
    return values;
  }

 private:
  Owned scales_;
};

inline std::vector<const Backend*> usable_backends() {
  std::vector<const Backend*> usable;
  for (const Backend* backend : Registry<Backend>::all()) {
    if (backend->usable()) usable.push_back(backend);
  }
  return usable;
}

// Whether two backends have the same kernels in these slots.
template <auto... kSlots>
bool same_kernels(const Backend* a, const Backend* b) {
  const OpTable &x = a->open(0).ops(), &y = b->open(0).ops();
  return ((x.*kSlots == y.*kSlots) && ...);
}

// The usable backends, but of those with the same kernels in these slots only the first.
template <auto... kSlots>
std::vector<const Backend*> backends_of_kernels() {
  std::vector<const Backend*> kept;
  for (const Backend* backend : usable_backends()) {
    if (std::ranges::none_of(kept, [&](const Backend* k) { return same_kernels<kSlots...>(k, backend); })) {
      kept.push_back(backend);
    }
  }
  return kept;
}

// The number of kernels in these slots before the backend's.
template <auto... kSlots>
size_t kernels_before(const Backend* backend) {
  const auto all = backends_of_kernels<kSlots...>();
  return std::ranges::find_if(all, [&](const Backend* k) { return same_kernels<kSlots...>(k, backend); }) - all.begin();
}

inline std::string name_of(const Backend* backend) {
  std::string name(backend->name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Contexts for the checked calls, on a backend and on the reference.
class Checked {
 public:
  explicit Checked(const Backend& backend, int threads = 2)
      : threads_(threads, false), arena_(0), queue_(backend.open(0).make_queue(threads_)), ctx(*queue_, arena_) {}

 private:
  ThreadPool threads_;
  Arena arena_;
  std::unique_ptr<Queue> queue_;

 public:
  Ctx ctx;
};

class OpsTest : public testing::TestWithParam<const Backend*> {
 protected:
  // Whether matmuls and attention of 16 bits round their inputs to those.
  static bool on_tensor_cores() { return GetParam()->name == "cuda" || GetParam()->name == "cuda-invariant"; }
  // Returns the tolerance of attention over a cache of `type`, relative to a row's largest value.
  static float attention_tolerance(DType type) {
    // For backends that also round queries and softmax weights.
    if (type != &kFloat32 && type != &kFloat16 && GetParam()->can.rounds_attention) return 2e-2f;
    return type == &kFloat16 && on_tensor_cores() ? 3e-3f : 5e-6f;
  }
  // Returns the tolerance of a matmul with k inputs. Kernels may round x to bf16 if the weights are bf16 (2^-9 per
  // element, averaging out over k), and some also to fp16. Others only sum in another order.
  static float tolerance(DType stored, int64_t k) {
    const float each = stored == &kBFloat16 ? 6e-3f : stored == &kFloat16 && on_tensor_cores() ? 1e-3f : 1e-6f;
    return each * std::sqrt(static_cast<float>(k)) + 1e-6f;
  }
  // Returns the cases that the backend under test runs: all, or under a sanitizer every third. Backends with different
  // kernels start at different cases, so that together they still run all of them. The reference, which would be
  // compared with itself, runs one.
  template <class Cases>
  static auto share(const Cases& cases) {
    std::vector<std::ranges::range_value_t<Cases>> chosen;
    if (GetParam()->name == "reference") return chosen.assign(1, *std::ranges::begin(cases)), chosen;
    const size_t step = kSanitized ? 3 : 1;
    size_t i = kSanitized ? kernels_before<&OpTable::attention>(GetParam()) : 0;
    for (const auto& one : cases) {
      if (i++ % step == 0) chosen.push_back(one);
    }
    return chosen;
  }

  std::mt19937 random{42};
  Checked device{*GetParam()};
  Checked reference{select_backend("reference"), 1};
};

#define SLUICE_FOR_BACKENDS(suite, ...)                                     \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(__VA_ARGS__), \
                           [](const testing::TestParamInfo<const Backend*>& info) { return name_of(info.param); })
#define SLUICE_FOR_EVERY_BACKEND(suite) SLUICE_FOR_BACKENDS(suite, usable_backends())
// For a suite that runs only the named slots: each of their kernels once.
#define SLUICE_FOR_EVERY_KERNEL(suite, ...) SLUICE_FOR_BACKENDS(suite, backends_of_kernels<__VA_ARGS__>())

// Compares what two kernels stored. They may differ by one step of the cache's type, relative to the number, plus
// `least`; for 8-bit types `least` is a step of its own. NaN must be NaN in both.
inline void expect_cached(const OwnedCache& actual, const OwnedCache& expected, float least) {
  const DType type = expected->dtype;
  const float step = type == &kFloat32 || type == &kInt8 ? 1e-6f
                     : type == &kFloat16                 ? 1e-3f
                     : type == &kBFloat16                ? 8e-3f
                                                         : 0.125f;
  const std::vector<float> a = actual.numbers(), b = expected.numbers();
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t vector = i / static_cast<size_t>(expected->shape[3]);
    const float floor = type == &kInt8 ? expected.scales()[vector] * 1.001f : type == &kFloat8E4M3 ? 0x1p-9f : least;
    ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i])) << i;
    if (std::isnan(b[i])) continue;
    ASSERT_LE(std::abs(a[i] - b[i]), step * std::abs(b[i]) + floor) << i;
  }
}

// Expects every element to be within `relative` times the expected row's largest magnitude (at least `floor`).
inline void expect_close(const Tensor& actual, const Tensor& expected, float relative, float floor = 1e-3f) {
  ASSERT_EQ(actual.shape, expected.shape);
  const int64_t columns = expected.row_elements();
  for (int64_t row = 0; row < expected.rows(); ++row) {
    const float* a = actual.f32() + row * actual.row_stride;
    const float* e = expected.f32() + row * expected.row_stride;
    float top = floor;
    for (int64_t i = 0; i < columns; ++i) top = std::max(top, std::abs(e[i]));
    for (int64_t i = 0; i < columns; ++i) {
      ASSERT_LE(std::abs(a[i] - e[i]), relative * top)
          << "row " << row << " column " << i << ": " << a[i] << " for " << e[i];
    }
  }
}

// Applies RMSNorm to each head's vector, see ops::HeadNorm.
inline void normalize_heads(Ctx& ctx, const Tensor& x, int64_t dim, const HeadNorm& norm) {
  Tensor heads = x;
  heads.shape = {x.shape[0], x.shape[1] / dim, dim};
  rms_norm(ctx, heads, heads, norm.weight, norm.eps);
}

inline bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

}  // namespace sluice::ops
