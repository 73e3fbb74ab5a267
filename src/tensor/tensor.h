// Shapes, tensor views and the memory behind them. Views own nothing; Buffer and Arena own their memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/memory.h"

namespace sluice {

// A shape of up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    CHECK(dims.size() <= kMaxRank);
    int i = 0;
    for (int64_t d : dims) dims_[i++] = d;
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i < 0 ? rank_ + i : i]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  void append(int64_t d) {
    CHECK(rank_ < kMaxRank);
    dims_[rank_++] = d;
  }
  bool operator==(const Shape& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (dims_[i] != o.dims_[i]) return false;
    }
    return true;
  }
  std::string str() const;  // "[2, 64]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// A view of memory. All dimensions after the first are dense. `row_stride` counts the elements between consecutive
// indices of dimension 0. It may exceed the dense row, so a view can select the q columns of a fused
// [tokens, q + k + v] result.
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = &kFloat32;
  Shape shape;
  int64_t row_stride = 0;  // elements between consecutive indices of dimension 0

  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape)
      : data(static_cast<std::byte*>(data)), dtype(dtype), shape(shape), row_stride(row_elements()) {}

  int64_t rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
  int64_t row_elements() const { return rows() == 0 ? 0 : shape.elements() / rows(); }
  bool dense() const { return row_stride == row_elements() || rows() <= 1; }
  size_t bytes() const { return static_cast<size_t>(shape.elements()) / dtype->block_size * dtype->block_bytes; }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  float* f32() const {
    CHECK(dtype == &kFloat32, "tensor is {}", dtype->name);
    return as<float>();
  }

  // Returns rows [begin, begin + count) of dimension 0.
  Tensor slice_rows(int64_t begin, int64_t count) const;
  // Returns columns [begin, begin + count) of a two-dimensional view. The row_stride stays. Columns of a block type are
  // cut between blocks only.
  Tensor slice_columns(int64_t begin, int64_t count) const;
};

// Zeroed memory that the buffer owns, on the host or on a device. Movable.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, Memory& memory = host_memory());  // throws Error(kOutOfMemory)
  ~Buffer();
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  void swap(Buffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(memory_, o.memory_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Memory* memory_ = nullptr;
};

// Returns the bytes of `buffer` in `memory`: `buffer` itself where the host can write there, otherwise a copy.
Buffer moved_to(Buffer buffer, Memory& memory);

// Bump allocator for the activations of one step: sized once, reset at the start of every step, never grows.
class Arena {
 public:
  explicit Arena(size_t bytes, Memory& memory = host_memory()) : memory_(bytes, memory), where_(memory) {}
  void reset() { used_ = 0; }
  Tensor take(DType dtype, Shape shape);  // CHECKs that the tensor fits in the planned size
  size_t used() const { return used_; }
  size_t size() const { return memory_.size(); }
  Memory& memory() const { return where_; }

  // A scope frees, when it ends, everything taken inside it.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  Buffer memory_;
  Memory& where_;
  size_t used_ = 0;
};

}  // namespace sluice
