// Quantized types on the device: packing, the table of kernels for each type, and matmuls of many rows by unpacking the
// weights.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/pack_panels.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/upload.h"
#include "sluice/error.h"

namespace sluice::cuda {
namespace {

template <class Codec>
using Rows = std::array<const typename Codec::Block*, kPanelOutputs>;  // of a panel; null: no such row

template <class Codec>
void pack_panel(const Rows<Codec>& rows, int64_t k, std::byte* panel) {
  pack_rows<Codec>(rows, k, panel);
}
// Rows of 8-bit floats: their weights, then their scales.
template <>
void pack_panel<quant::Fp8>(const Rows<quant::Fp8>& rows, int64_t k, std::byte* panel) {
  bool numbers = true;
  for (int output = 0; output < kPanelOutputs; ++output) {
    const quant::Fp8::Block* blocks = rows[output];
    if (blocks == nullptr) continue;
    std::byte* row = panel + output * fp8_row_bytes(k);
    for (int64_t i = 0; i < k / quant::Fp8::kElements; ++i) {
      for (const uint8_t q : blocks[i].qs) numbers &= (q & 0x7f) != 0x7f;
      std::memcpy(row + i * quant::Fp8::kElements, blocks[i].qs, quant::Fp8::kElements);
      std::memcpy(row + k + i * static_cast<int64_t>(sizeof(float)), &blocks[i].scale, sizeof(float));
    }
  }
  // The kernels read this code as 480.
  if (!numbers) throw Error(ErrorCode::kCorruptFile, "weights of type fp8_e4m3: a weight is NaN");
}

// Rows of `from` for one panel, as blocks of type `type`.
class BlockRows {
 public:
  BlockRows(const Tensor& from, DType type, int64_t k)
      : from_(from), type_(type), values_(from.dtype == type ? 0 : static_cast<size_t>(k)) {
    if (from.dtype == type) return;
    if (from.dtype->decode == nullptr || type->encode == nullptr) {
      throw Error(ErrorCode::kUnsupportedModel,
                  fmt::format("weights of type {} cannot be converted to {}", from.dtype->name, type->name));
    }
    row_bytes_ = values_.size() / static_cast<size_t>(type->block_size) * static_cast<size_t>(type->block_bytes);
    blocks_.resize(kPanelOutputs * row_bytes_);
  }
  // Row i, which becomes output `output` of the panel.
  const std::byte* row(int64_t i, int output) {
    const std::byte* source = from_.data + i * from_.row_stride / from_.dtype->block_size * from_.dtype->block_bytes;
    if (from_.dtype == type_) return source;
    std::byte* blocks = blocks_.data() + static_cast<size_t>(output) * row_bytes_;
    to_float(from_.dtype, source, values_.data(), values_.size());
    from_float(type_, values_.data(), blocks, values_.size());
    return blocks;
  }

 private:
  const Tensor& from_;
  DType type_;
  size_t row_bytes_ = 0;
  std::vector<float> values_;
  std::vector<std::byte> blocks_;
};

template <class Codec>
size_t packed_bytes(int64_t n, int64_t k) {
  using Form = typename PanelsOf<Codec>::Type;
  const int64_t panels = pieces(n, kPanelOutputs);
  const int64_t tail = std::is_same_v<Codec, quant::Fp8> ? panels * kPanelOutputs * int64_t{sizeof(float)} : 0;
  return static_cast<size_t>(panels * panel_bytes<Form>(k) + tail);
}

// Packs panel by panel. The first and the last panel may hold rows that were packed before; those are read back first.
template <class Codec>
void pack(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) {
  const int64_t k = into.k, last = row + from.rows();
  CHECK(from.shape.rank() == 2 && from.shape[1] == k && row >= 0 && last <= into.n,
        "packing rows from {} on of shape {} into a matrix [{}, {}]", row, from.shape.str(), into.n, k);
  CHECK(k % Codec::kElements == 0, "packing: {} inputs are not a multiple of the block size {}", k, Codec::kElements);
  if (from.rows() == 0) return;
  const int64_t begin = row / kPanelOutputs, end = pieces(last, kPanelOutputs);
  const auto bytes = static_cast<size_t>(panel_bytes<typename PanelsOf<Codec>::Type>(k));
  const auto at = [&](int64_t panel) { return into.data + static_cast<size_t>(panel) * bytes; };
  const auto copy = [&queue](std::byte* to, const void* data, size_t count) {
    check_cuda(cudaMemcpyAsync(to, data, count, cudaMemcpyDefault, current(queue).launch().stream), "weights");
    queue.wait();
  };
  std::map<int64_t, std::vector<std::byte>> before;
  for (const int64_t edge : {begin, end - 1}) {
    if (edge * kPanelOutputs >= row && (edge + 1) * kPanelOutputs <= last) continue;
    copy((before[edge] = std::vector<std::byte>(bytes)).data(), at(edge), bytes);
  }
  std::vector<float> row_scales(std::is_same_v<Codec, quant::Fp8> ? static_cast<size_t>(from.rows()) : 0);
  const auto pack_one = [&](int64_t at_panel, BlockRows& blocks, std::byte* panel) {
    const int64_t start = at_panel * kPanelOutputs;
    if (const auto found = before.find(at_panel); found != before.end()) {
      std::ranges::copy(found->second, panel);
    } else {
      std::fill_n(panel, bytes, std::byte{0});
    }
    Rows<Codec> rows{};
    for (int64_t r = std::max(row, start); r < std::min(last, start + kPanelOutputs); ++r) {
      const auto output = static_cast<int>(r - start);
      rows[output] = reinterpret_cast<const typename Codec::Block*>(blocks.row(r - row, output));
      if constexpr (std::is_same_v<Codec, quant::Fp8>) row_scales[static_cast<size_t>(r - row)] = rows[output]->scale;
    }
    pack_panel<Codec>(rows, k, panel);
  };
  upload_rows(queue, at(begin), bytes, bytes, end - begin, [&](int64_t first, int64_t stop, std::byte* panels) {
    BlockRows blocks(from, into.dtype, k);
    for (int64_t i = first; i < stop; ++i, panels += bytes) pack_one(begin + i, blocks, panels);
  });
  if (row_scales.empty()) return;
  std::byte* const scales = into.data + fp8_panels_bytes(into.n, k) + row * int64_t{sizeof(float)};
  upload_rows(queue, scales, sizeof(float), sizeof(float), from.rows(),
              [&](int64_t first, int64_t stop, std::byte* to) {
                std::copy_n(reinterpret_cast<const std::byte*>(row_scales.data() + first),
                            static_cast<size_t>(stop - first) * sizeof(float), to);
              });
}

// The fewest rows for which tiles are faster. It depends on whether few rows are multiplied as int8 (bytes.cuh) and on
// how many inputs share a scale.
template <class Form>
constexpr int64_t least_tiled_rows(int64_t few_sets, int64_t four_sets, int64_t other) {
  if constexpr (kPanelFormat<Form>.low != 0 && !std::is_same_v<Form, quant::NF4> && !kFp4Panels<Form>) {
    if (sets_of_pair<Form>() <= 2) return few_sets;
    if (sets_of_pair<Form>() == 4) return four_sets;
  }
  return other;
}

template <class Codec, class Form = typename PanelsOf<Codec>::Type>
constexpr PanelKernels kPanels{.packed_bytes = packed_bytes<Codec>,
                               .panel_bytes = panel_bytes<Form>,
                               .pack = pack<Codec>,
                               .tiled_rows = least_tiled_rows<Form>(1, 5, 9),
                               .tiled_expert_rows = least_tiled_rows<Form>(0, 8, 8),
                               .multiply = matmul_panels<Form>,
                               .matmul_by_tiles = matmul_panels_by_tiles<Form>,
                               .unpack = unpack_panels<Form>};

template <class... Codecs>
const PanelKernels* find(DType type, quant::CodecList<Codecs...>) {
  const PanelKernels* found = nullptr;
  const auto look_at = [&]<class Codec>(const Codec*) {
    if constexpr (kHasPanels<Codec>) {
      if (type == &Codec::kType) found = &kPanels<Codec>;
    }
  };
  (look_at(static_cast<const Codecs*>(nullptr)), ...);
  return found;
}

// The fewest rows for which unpacking the weights for cuBLASLt took less time on an H200, for most matrices of an 8B
// model (bench/results/2026-11-cuda-kernels.md).
constexpr int64_t kUnpackedRows = 64;
// The same for matrices of heads.
constexpr int64_t kUnpackedRowsOfHeads = 16;
// The most rows for which tiles are used instead; fewer for matrices of at most kSmallMatrix elements.
constexpr int64_t kMostTiledRows = 512, kMostTiledRowsSmall = 128, kSmallMatrix = int64_t{4096} * 4096;

bool wants_tiles(const Launch& l, const PanelKernels& kernels, const MatmulProblem& p) {
  const int64_t rows = p.x.rows();
  if (p.starts != nullptr) {
    return rows >= p.matrices * (l.compute_capability == 90 ? kernels.tiled_expert_rows : kTiledExpertRows);
  }
  const int64_t most = p.n * p.k <= kSmallMatrix ? kMostTiledRowsSmall : kMostTiledRows;
  return p.matrices == 1 && rows >= kernels.tiled_rows && rows <= most;
}

// Matrix `m` of a matmul with several.
MatmulProblem matrix_of(const MatmulProblem& p, int m, int64_t matrix_bytes) {
  MatmulProblem one = p;
  one.weight += m * matrix_bytes;
  if (p.bias != nullptr) one.bias += m * p.bias_step;
  if (p.starts != nullptr) one.starts += m;
  one.x.data += m * p.x_columns * static_cast<int64_t>(sizeof(float));
  one.out.data += m * p.out_columns * static_cast<int64_t>(sizeof(float));
  one.matrices = 1;
  return one;
}

// Multiplies with weights unpacked to `type`, some of the outputs at a time. False if `multiply` refuses.
template <class F>
bool matmul_unpacked(const Launch& l, const MatmulProblem& p, const PanelKernels& kernels, DType type, F&& multiply) {
  const int64_t row_bytes = padded_k(p.k) * type->block_bytes;
  const int64_t most = static_cast<int64_t>(kUnpackedBytes) / row_bytes / kPanelOutputs * kPanelOutputs;
  CHECK(most > 0 && l.workspace_bytes >= kUnpackedBytes,
        "unpacking weights: a workspace of {} bytes is too small for {} inputs", l.workspace_bytes, p.k);
  Launch rest = l;
  rest.workspace += kUnpackedBytes;
  rest.workspace_bytes -= kUnpackedBytes;
  for (int64_t begin = 0; begin < p.n; begin += most) {
    const int64_t count = std::min(most, p.n - begin);
    kernels.unpack(l, l.workspace, type, p.weight, begin, count, p.k);
    MatmulProblem part = p;
    part.type = type;
    part.weight = l.workspace;
    part.n = count;
    part.out.data += begin * static_cast<int64_t>(sizeof(float));
    if (p.bias != nullptr) part.bias += begin;
    if (!multiply(rest, part)) return false;
  }
  return true;
}

// Multiplies heads with weights unpacked to bf16, as many heads at a time as there is room for.
bool matmul_heads_by_unpacking(const Launch& l, const MatmulProblem& p, const PanelKernels& kernels) {
  const int64_t matrix_bytes = p.weight_rows * padded_k(p.k) * kBFloat16.block_bytes;
  const auto most = static_cast<int>(static_cast<int64_t>(kUnpackedBytes) / matrix_bytes);
  if (most == 0 || l.workspace_bytes < kUnpackedBytes) return false;
  Launch rest = l;
  rest.workspace += kUnpackedBytes;
  rest.workspace_bytes -= kUnpackedBytes;
  for (int first = 0; first < p.matrices; first += most) {
    MatmulProblem part = p;
    part.matrices = std::min(most, p.matrices - first);
    part.type = &kBFloat16, part.weight = l.workspace;
    part.x = p.x.slice_columns(first * p.x_columns, (part.matrices - 1) * p.x_columns + p.k);
    part.out = p.out.slice_columns(first * p.out_columns, (part.matrices - 1) * p.out_columns + p.n);
    kernels.unpack(l, l.workspace, &kBFloat16, p.weight, first * p.weight_rows, part.matrices * p.weight_rows, p.k);
    if (!matmul_dense_heads(rest, part)) return false;
  }
  return true;
}

}  // namespace

const PanelKernels* panel_kernels(DType type) { return find(type, quant::AllCodecs{}); }

bool matmul_by_unpacking(const Launch& l, const MatmulProblem& p) {
  return matmul_unpacked(l, p, *panel_kernels(p.type), &kBFloat16, matmul_dense);
}

bool matmul_quantized(const Launch& l, const MatmulProblem& p, Arithmetic arithmetic) {
  const PanelKernels* kernels = panel_kernels(p.type);
  if (kernels == nullptr) return false;
  if (arithmetic == Arithmetic::kExact) {
    const int64_t matrix_bytes = pieces(p.weight_rows, kPanelOutputs) * kernels->panel_bytes(p.k);
    for (int m = 0; m < p.matrices; ++m) {
      matmul_unpacked(l, matrix_of(p, m, matrix_bytes), *kernels, &kFloat32,
                      [](const Launch& rest, const MatmulProblem& part) {
                        matmul_exact(rest, part);
                        return true;
                      });
    }
    return true;
  }
  if (matmul_fp8(l, p)) return true;
  if (wants_tiles(l, *kernels, p) && kernels->matmul_by_tiles(l, p)) return true;
  if (p.matrices == 1 && p.x.rows() >= kUnpackedRows && matmul_by_unpacking(l, p)) return true;
  const bool heads = p.matrices > 1 && p.starts == nullptr;
  if (heads && p.x.rows() >= kUnpackedRowsOfHeads && matmul_heads_by_unpacking(l, p, *kernels)) return true;
  kernels->multiply(l, p);
  return true;
}

}  // namespace sluice::cuda
