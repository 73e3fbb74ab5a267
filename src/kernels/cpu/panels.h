// Layout of packed weights, the same for every instruction set. A packed panel is 16 outputs (columns of the matmul)
// with all k inputs. float32 and float16: [n / 16][k][16]. bfloat16: [n / 16][k / 2][16][2], where pairs of inputs lie
// side by side as vdpbf16ps reads them. n and an odd k are padded with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace sluice::kernels {

inline constexpr int64_t kPanel = 16;
static_assert(ops::kWeightPanel % kPanel == 0);

// Returns the bytes of one panel of a type with `bytes` per element, stored `group` inputs at a time.
constexpr int64_t panel_bytes(int64_t k, int64_t group, int64_t bytes) {
  return (k + group - 1) / group * group * kPanel * bytes;
}

}  // namespace sluice::kernels
