// Slices of tensor views, and the buffers and arenas that own tensor memory.
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
  CHECK(begin >= 0 && count >= 0 && begin + count <= rows(),
        "row slice starts at {} and has {} rows, but the tensor has {} rows", begin, count, rows());
  Tensor out = *this;
  Shape shape;
  shape.append(count);
  for (int i = 1; i < this->shape.rank(); ++i) shape.append(this->shape[i]);
  out.shape = shape;
  out.data += begin * row_stride / dtype->block_size * dtype->block_bytes;
  return out;
}

Tensor Tensor::slice_columns(int64_t begin, int64_t count) const {
  const auto block = static_cast<int64_t>(dtype->block_size);
  CHECK(shape.rank() == 2 && begin % block == 0 && count % block == 0, "{} columns from {} in blocks of {}", count,
        begin, block);
  CHECK(begin >= 0 && count >= 0 && begin + count <= shape[1],
        "column slice starts at {} and has {} columns, but the tensor has {} columns", begin, count, shape[1]);
  Tensor out = *this;
  out.shape = {shape[0], count};
  out.data += begin / block * static_cast<int64_t>(dtype->block_bytes);
  return out;
}

Buffer::Buffer(size_t bytes, Memory& memory) : size_(bytes), memory_(&memory) {
  if (bytes > 0) data_ = memory.allocate(bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) memory_->release(data_, size_);
}

Buffer moved_to(Buffer buffer, Memory& memory) {
  if (memory.host_accessible() || buffer.size() == 0) return buffer;
  Buffer copy(buffer.size(), memory);
  memory.copy(copy.data(), buffer.data(), buffer.size());
  return copy;
}

Tensor Arena::take(DType dtype, Shape shape) {
  Tensor out(nullptr, dtype, shape);
  const size_t at = (used_ + 63) / 64 * 64;
  CHECK(at + out.bytes() <= memory_.size(),
        "arena of {} bytes is too small: {} bytes are needed for a tensor of shape {}", memory_.size(), out.bytes(),
        shape.str());
  out.data = memory_.data() + at;
  used_ = at + out.bytes();
  return out;
}

}  // namespace sluice
