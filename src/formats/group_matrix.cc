// Rows of quantized matrices as blocks, or as plain numbers where there is no such block.
#include "formats/group_matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "quant/groups.h"

namespace sluice {
namespace {

using quant::Fp8;

TensorEntry entry(std::string name, DType type, int64_t outputs, int64_t inputs) {
  TensorEntry out;
  out.name = std::move(name);
  out.dtype = type;
  out.shape = {outputs, inputs};
  out.bytes = static_cast<size_t>(outputs * inputs) / static_cast<size_t>(type->block_size) *
              static_cast<size_t>(type->block_bytes);
  return out;
}

// One row as blocks of Codec, a part of a group each.
template <class Codec>
void write_blocks(const GroupMatrix& m, int64_t output, const uint8_t* quants, std::byte* to) {
  for (int64_t i = 0; i < m.inputs; i += Codec::kElements, quants += Codec::kElements) {
    typename Codec::Block block;
    block.scale_zero = Codec::scale_zero(m.scale(output, i / m.group), m.zero(output, i / m.group));
    if constexpr (Codec::kBits == 8) {
      std::copy_n(quants, Codec::kElements, block.qs);
    } else {
      for (int j = 0; j < Codec::kElements / 2; ++j) {
        const uint8_t* pair = quants + j / 16 * 32 + j % 16;
        block.qs[j] = static_cast<uint8_t>(pair[0] | pair[16] << 4);
      }
    }
    std::memcpy(to, &block, sizeof block);
    to += sizeof block;
  }
}

void write_plain(const GroupMatrix& m, int64_t output, const uint8_t* quants, std::byte* to) {
  std::vector<float> values(static_cast<size_t>(m.inputs));
  for (int64_t i = 0; i < m.inputs; ++i) {
    const int64_t g = m.group_of.empty() ? i / m.group : m.group_of[static_cast<size_t>(i)];
    values[static_cast<size_t>(i)] = m.scale(output, g) * static_cast<float>(quants[i] - m.zero(output, g));
  }
  std::memcpy(to, values.data(), values.size() * sizeof(float));
}

using WriteRow = void (*)(const GroupMatrix&, int64_t output, const uint8_t* quants, std::byte* to);

template <class Codec>
bool fits(const GroupMatrix& m) {
  return m.group_of.empty() && m.bits == Codec::kBits && m.group % Codec::kElements == 0 &&
         m.inputs % Codec::kElements == 0;
}

std::pair<DType, WriteRow> form_of(const GroupMatrix& m) {
  if (fits<quant::Int4G128>(m)) return {&quant::Int4G128::kType, write_blocks<quant::Int4G128>};
  if (fits<quant::Int4G64>(m)) return {&quant::Int4G64::kType, write_blocks<quant::Int4G64>};
  if (fits<quant::Int4G32>(m)) return {&quant::Int4G32::kType, write_blocks<quant::Int4G32>};
  if (fits<quant::Int8G128>(m)) return {&quant::Int8G128::kType, write_blocks<quant::Int8G128>};
  return {&kFloat32, write_plain};
}

}  // namespace

TensorEntry entry_of(std::string name, GroupMatrix matrix) {
  const auto [type, write] = form_of(matrix);
  TensorEntry out = entry(std::move(name), type, matrix.outputs, matrix.inputs);
  const size_t row_bytes = out.bytes / static_cast<size_t>(matrix.outputs);
  out.compute = [matrix = std::move(matrix), write = write, row_bytes](int64_t begin, int64_t count, std::byte* to) {
    constexpr int64_t kRows = 16;  // at a time: what lies side by side in matrices that are stored inputs first
    std::vector<uint8_t> quants(static_cast<size_t>(kRows * matrix.inputs));
    for (int64_t row = begin; row < begin + count; row += kRows) {
      const int64_t rows = std::min(kRows, begin + count - row);
      matrix.quants(row, rows, quants.data());
      for (int64_t i = 0; i < rows; ++i, to += row_bytes) write(matrix, row + i, quants.data() + i * matrix.inputs, to);
    }
  };
  return out;
}

TensorEntry entry_of(std::string name, Fp8Matrix matrix) {
  const bool blocks = matrix.inputs % Fp8::kElements == 0;
  TensorEntry out = entry(std::move(name), blocks ? &Fp8::kType : &kFloat32, matrix.outputs, matrix.inputs);
  out.row_scales = matrix.row_scales;
  out.compute = [matrix = std::move(matrix), blocks](int64_t begin, int64_t count, std::byte* to) {
    std::vector<float> values(static_cast<size_t>(matrix.inputs));
    for (int64_t row = begin; row < begin + count; ++row) {
      const std::byte* from = matrix.data + row * matrix.inputs;
      if (!blocks) {
        for (int64_t i = 0; i < matrix.inputs; ++i) {
          values[static_cast<size_t>(i)] = matrix.scale(row, i) * Fp8::value(static_cast<uint8_t>(from[i]));
        }
        std::memcpy(to, values.data(), values.size() * sizeof(float));
        to += values.size() * sizeof(float);
        continue;
      }
      for (int64_t i = 0; i < matrix.inputs; i += Fp8::kElements, to += sizeof(Fp8::Block)) {
        Fp8::Block block;
        block.scale = matrix.scale(row, i);
        std::memcpy(block.qs, from + i, sizeof block.qs);
        std::memcpy(to, &block, sizeof block);
      }
    }
  };
  return out;
}

}  // namespace sluice
