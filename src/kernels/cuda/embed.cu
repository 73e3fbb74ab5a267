// Gathers rows of embedding tables in block formats, as the file stores them. A thread decodes one block.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {
namespace {

template <class Codec>
__global__ void embed_kernel(float* out, int64_t out_stride, const typename Codec::Block* table, int64_t row_blocks,
                             const int32_t* ids, int64_t count) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int64_t row = at / row_blocks, block = at % row_blocks;
  Codec::dequantize(table[ids[row] * row_blocks + block], out + row * out_stride + block * Codec::kElements);
}

template <class... Codecs>
bool embed_any(const Launch& l, const Tensor& out, const Tensor& table, const int32_t* ids,
               quant::CodecList<Codecs...>) {
  bool found = false;
  const auto look_at = [&]<class Codec>(const Codec*) {
    if constexpr (kHasPanels<Codec>) {
      if (table.dtype != &Codec::kType) return;
      found = true;
      CHECK(table.row_stride == table.shape[1],
            "embed: rows of a block table must be contiguous, but the row stride is {}", table.row_stride);
      const int64_t row_blocks = table.shape[1] / Codec::kElements, count = out.rows() * row_blocks;
      if (count == 0) return;
      constexpr int kThreads = 64;
      embed_kernel<Codec><<<static_cast<unsigned>(pieces(count, kThreads)), kThreads, 0, l.stream>>>(
          out.f32(), out.row_stride, reinterpret_cast<const typename Codec::Block*>(table.data), row_blocks, ids,
          count);
      check_launch("embed");
    }
  };
  (look_at(static_cast<const Codecs*>(nullptr)), ...);
  return found;
}

}  // namespace

bool embed_blocks(const Launch& l, const Tensor& out, const Tensor& table, const int32_t* ids) {
  return embed_any(l, out, table, ids, quant::AllCodecs{});
}

}  // namespace sluice::cuda
