// Memory behind tensors.
#include "tensor/tensor.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "sluice/error.h"

namespace sluice {

std::string Shape::str() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += fmt::format("{}{}", i ? ", " : "", dims_[i]);
  return out + "]";
}

Tensor Tensor::slice_rows(int64_t begin, int64_t count) const {
  CHECK(begin >= 0 && count >= 0 && begin + count <= rows(), "rows {}+{} of {}", begin, count, rows());
  Tensor out = *this;
  Shape shape;
  shape.append(count);
  for (int i = 1; i < this->shape.rank(); ++i) shape.append(this->shape[i]);
  out.shape = shape;
  out.data += begin * row_stride / dtype->block_size * dtype->block_bytes;
  return out;
}

Tensor Tensor::slice_columns(int64_t begin, int64_t count) const {
  CHECK(shape.rank() == 2 && dtype->block_size == 1);
  CHECK(begin >= 0 && count >= 0 && begin + count <= shape[1], "columns {}+{} of {}", begin, count, shape[1]);
  Tensor out = *this;
  out.shape = {shape[0], count};
  out.data += begin * dtype->block_bytes;
  return out;
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes > PTRDIFF_MAX) throw Error(ErrorCode::kOutOfMemory, fmt::format("{} bytes of memory", bytes));
  constexpr size_t kHuge = 2u << 20;
  const bool huge = bytes >= kHuge;
  mapped_ = huge ? (bytes + 2 * kHuge - 1) / kHuge * kHuge : (bytes + 4095) / 4096 * 4096;
  void* mapped = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("{} bytes of memory: {}", bytes, std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(mapped);
  if (!huge) return;
  // Give back the ends so that the block starts at a huge page.
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  const size_t head = (kHuge - address % kHuge) % kHuge;
  if (head > 0) ::munmap(data_, head);
  data_ += head;
  mapped_ -= head;
  ::madvise(data_, mapped_, MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, mapped_);
}

Tensor Arena::take(DType dtype, Shape shape) {
  Tensor out(nullptr, dtype, shape);
  const size_t at = (used_ + 63) / 64 * 64;
  CHECK(at + out.bytes() <= memory_.size(), "arena of {} bytes is short of {} for {}", memory_.size(), out.bytes(),
        shape.str());
  out.data = memory_.data() + at;
  used_ = at + out.bytes();
  return out;
}

}  // namespace sluice
