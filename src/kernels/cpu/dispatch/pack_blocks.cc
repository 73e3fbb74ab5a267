// Packs block formats as whole blocks. The blocks of 16 rows lie side by side, so that a matmul reads memory in one
// direction. 8-bit floats are decoded many at a time: their inputs are stored in pairs, rows of 16 pairs after the
// scales of a block.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/dispatch/pack.h"
#include "quant/groups.h"
#include "sluice/error.h"

namespace sluice::kernels {
namespace {

// Copies one row's blocks to lane `row` % 16 of its panel.
void place(const ops::Weight& into, int64_t row, const std::byte* blocks) {
  const int64_t bytes = into.dtype->block_bytes, count = into.k / into.dtype->block_size;
  const int64_t panel = row / ops::kWeightPanel, lane = row % ops::kWeightPanel;
  if (into.dtype == &quant::Fp8::kType) {
    using Block = quant::Fp8::Block;
    std::byte* panel_block = into.data + panel * count * ops::kWeightPanel * bytes;
    for (int64_t i = 0; i < count; ++i, panel_block += ops::kWeightPanel * bytes) {
      const auto& block = reinterpret_cast<const Block*>(blocks)[i];
      std::memcpy(panel_block + lane * sizeof block.scale, &block.scale, sizeof block.scale);
      std::byte* codes = panel_block + ops::kWeightPanel * sizeof block.scale + 2 * lane;
      for (int j = 0; j < quant::Fp8::kElements; ++j) {
        codes[j / 2 * 2 * ops::kWeightPanel + j % 2] = std::byte{block.qs[j]};
      }
    }
    return;
  }
  std::byte* to = into.data + (panel * count * ops::kWeightPanel + lane) * bytes;
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * ops::kWeightPanel * bytes, blocks + i * bytes, bytes);
}

}  // namespace

void pack_blocks(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) {
  CHECK(from.shape.rank() == 2 && from.shape[1] == into.k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, into.k);
  const DType type = into.dtype;
  CHECK(into.k % type->block_size == 0, "{} inputs in blocks of {}", into.k, type->block_size);
  const bool same = from.dtype == type;
  if (!same && (from.dtype->decode == nullptr || type->encode == nullptr)) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("cannot convert weights of type {} to {}", from.dtype->name, type->name));
  }
  const size_t row_bytes = static_cast<size_t>(into.k / type->block_size) * type->block_bytes;
  const int64_t stride = from.row_stride / from.dtype->block_size * from.dtype->block_bytes;
  queue.threads().parallel_for(from.rows(), 16, [&](int64_t begin, int64_t end) {
    std::vector<float> values(same ? 0 : into.k);
    std::vector<std::byte> blocks(same ? 0 : row_bytes);
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* source = from.data + i * stride;
      if (!same) {
        to_float(from.dtype, source, values.data(), values.size());
        from_float(type, values.data(), blocks.data(), values.size());
        source = blocks.data();
      }
      place(into, row + i, source);
    }
  });
}

}  // namespace sluice::kernels
