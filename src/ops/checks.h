// Checks of tensor arguments, for the checked calls of the op table.
#pragma once

#include "ops/ops.h"

namespace sluice::ops {

inline void check_f32(const Tensor& tensor, const char* name) {
  CHECK(tensor.dtype == &kFloat32, "{} is {}", name, tensor.dtype->name);
}

// Checks that the tensor is a [rows, columns] view; -1 accepts any extent.
inline void check_extents(const Tensor& tensor, const char* name, int64_t rows, int64_t columns) {
  CHECK(
      tensor.shape.rank() == 2 && (rows < 0 || tensor.shape[0] == rows) && (columns < 0 || tensor.shape[1] == columns),
      "{} is {}, expected [{}, {}]", name, tensor.shape.str(), rows, columns);
  CHECK(tensor.row_stride >= tensor.shape[1] || tensor.shape[0] <= 1, "{} has overlapping rows", name);
}

// Checks that the tensor is an fp32 [rows, columns] view.
inline void check_matrix(const Tensor& tensor, const char* name, int64_t rows, int64_t columns) {
  check_f32(tensor, name);
  check_extents(tensor, name, rows, columns);
}

// Checks for a type that matmuls read: fp32, a 16-bit float, or dense rows of 8-bit floats with their scales.
inline void check_rows(const Tensor& tensor, const char* name, int64_t rows, int64_t columns) {
  const DType type = tensor.dtype;
  const bool plain = type == &kFloat32 || type == &kBFloat16 || type == &kFloat16;
  CHECK(plain || (type == &kFloat8E4M3 && tensor.dense()), "{} is {}", name, type->name);
  check_extents(tensor, name, rows, columns);
}

// Checks that the tensor is a dense list of `count` int32.
inline void check_list(const Tensor& tensor, const char* name, int64_t count) {
  CHECK(tensor.dtype == &kInt32 && tensor.dense() && tensor.shape.elements() == count, "{} is {} {}, expected {} int32",
        name, tensor.dtype->name, tensor.shape.str(), count);
}

}  // namespace sluice::ops
