// Packs weights into panels. Each thread fills whole panels and converts to the stored type where the source differs.
#include "kernels/cpu/dispatch/pack.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/cpu/panels.h"

namespace sluice::kernels {
namespace {

// Number of inputs stored side by side.
template <const TypeInfo& Type>
constexpr int64_t kGroup = 1;
template <>
constexpr int64_t kGroup<kBFloat16> = 2;

// Copies `lanes` rows of k elements (`stride` bytes apart) into a panel, starting at column `lane`. T holds one group
// of inputs.
template <class T, int64_t Group>
void interleave(const std::byte* rows, int64_t stride, int64_t lanes, int64_t begin, int64_t k, std::byte* panel,
                int64_t lane) {
  constexpr int64_t kElement = sizeof(T) / Group;
  const int64_t groups = k / Group;
  for (int64_t g = 0; g < groups; ++g) {
    std::byte* to = panel + ((begin / Group + g) * kPanel + lane) * sizeof(T);
    for (int64_t i = 0; i < lanes; ++i) std::memcpy(to + i * sizeof(T), rows + i * stride + g * sizeof(T), sizeof(T));
  }
  if (k % Group == 0) return;
  std::byte* to = panel + ((begin / Group + groups) * kPanel + lane) * sizeof(T);
  for (int64_t i = 0; i < lanes; ++i) std::memcpy(to + i * sizeof(T), rows + i * stride + groups * sizeof(T), kElement);
}

template <const TypeInfo& Type>
void fill(std::byte* panel, int64_t lane, int64_t lanes, const Tensor& from, int64_t row) {
  using Group = std::conditional_t<Type.block_bytes * kGroup<Type> == 4, uint32_t, uint16_t>;
  constexpr int64_t kBlock = 256;  // inputs converted at a time: whole blocks, and 16 rows stay in L1
  const int64_t k = from.shape[1];
  const auto bytes_of = [&](int64_t elements) { return elements / from.dtype->block_size * from.dtype->block_bytes; };
  const std::byte* source = from.data + row * bytes_of(from.row_stride);
  if (from.dtype == &Type) {
    return interleave<Group, kGroup<Type>>(source, bytes_of(from.row_stride), lanes, 0, k, panel, lane);
  }
  float values[kBlock];
  alignas(64) std::byte converted[kPanel][kBlock * Type.block_bytes];
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t count = std::min(kBlock, k - begin);
    for (int64_t i = 0; i < lanes; ++i) {
      to_float(from.dtype, source + bytes_of(i * from.row_stride + begin), values, count);
      from_float(&Type, values, converted[i], count);
    }
    interleave<Group, kGroup<Type>>(converted[0], sizeof converted[0], lanes, begin, count, panel, lane);
  }
}

}  // namespace

template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>((n + kPanel - 1) / kPanel * panel_bytes(k, kGroup<Type>, Type.block_bytes));
}

template <const TypeInfo& Type>
void pack(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) {
  CHECK(from.shape.rank() == 2 && from.shape[1] == into.k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, into.k);
  const int64_t bytes = panel_bytes(into.k, kGroup<Type>, Type.block_bytes), last = row + from.rows();
  queue.threads().parallel_for((last + kPanel - 1) / kPanel - row / kPanel, 4, [&](int64_t begin, int64_t end) {
    for (int64_t panel = row / kPanel + begin; panel < row / kPanel + end; ++panel) {
      const int64_t first = std::max(row, panel * kPanel), stop = std::min(last, (panel + 1) * kPanel);
      fill<Type>(into.data + panel * bytes, first % kPanel, stop - first, from, first - row);
    }
  });
}

template size_t packed_bytes<kFloat32>(int64_t, int64_t);
template size_t packed_bytes<kBFloat16>(int64_t, int64_t);
template size_t packed_bytes<kFloat16>(int64_t, int64_t);
template void pack<kFloat32>(ops::Queue&, const ops::Weight&, int64_t, const Tensor&);
template void pack<kBFloat16>(ops::Queue&, const ops::Weight&, int64_t, const Tensor&);
template void pack<kFloat16>(ops::Queue&, const ops::Weight&, int64_t, const Tensor&);

}  // namespace sluice::kernels
