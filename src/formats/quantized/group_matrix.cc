// Converts rows of quantized matrices to blocks, or to plain numbers when no block format fits.
#include "formats/quantized/group_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/quantized/tensors.h"
#include "quant/fp4.h"
#include "quant/groups.h"
#include "quant/nf4.h"

namespace sluice {
namespace {

using quant::Fp8;

// Packs 4-bit numbers as blocks store them: element i of 32 next to element i + 16.
template <int elements>
void join_halves(const uint8_t* from, uint8_t* to) {
  for (int begin = 0; begin < elements; begin += 32, from += 32, to += 16) {
    for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(from[i] | from[i + 16] << 4);
  }
}

TensorEntry entry(std::string name, DType type, int64_t outputs, int64_t inputs) {
  TensorEntry out;
  out.name = std::move(name);
  out.dtype = type;
  out.shape = {outputs, inputs};
  out.bytes = static_cast<size_t>(outputs * inputs) / static_cast<size_t>(type->block_size) *
              static_cast<size_t>(type->block_bytes);
  return out;
}

// Writes a row of a tile as blocks of Codec. Each block lies within one group.
template <class Codec>
void write_blocks(const GroupMatrix& m, int64_t output, int64_t input, int64_t inputs, const uint8_t* quants,
                  std::byte* to) {
  static_assert(kTileInputs % Codec::kElements == 0);
  for (int64_t i = input; i < input + inputs; i += Codec::kElements, quants += Codec::kElements) {
    typename Codec::Block block;
    block.scale_zero = Codec::scale_zero(m.scale(output, i / m.group), m.zero(output, i / m.group));
    if constexpr (Codec::kBits == 8) {
      std::copy_n(quants, Codec::kElements, block.qs);
    } else {
      join_halves<Codec::kElements>(quants, block.qs);
    }
    std::memcpy(to + i / Codec::kElements * static_cast<int64_t>(sizeof block), &block, sizeof block);
  }
}

void write_plain(const GroupMatrix& m, int64_t output, int64_t input, int64_t inputs, const uint8_t* quants,
                 std::byte* to) {
  to += input * static_cast<int64_t>(sizeof(float));
  for (int64_t i = input; i < input + inputs; ++i, to += sizeof(float)) {
    const int64_t g = m.group_of.empty() ? i / m.group : m.group_of[static_cast<size_t>(i)];
    const float value = m.scale(output, g) * static_cast<float>(*quants++ - m.zero(output, g));
    std::memcpy(to, &value, sizeof value);
  }
}

// `to` points at the start of the row.
using WriteRow = void (*)(const GroupMatrix&, int64_t output, int64_t input, int64_t inputs, const uint8_t* quants,
                          std::byte* to);

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

bool is_nf4(const LevelMatrix& m) {
  if (m.group % quant::NF4::kElements != 0 || m.inputs % quant::NF4::kElements != 0) return false;
  return std::ranges::equal(m.levels, quant::kNf4Levels);
}

// Unpacks the table indices of `count` elements from `first` on.
void unpack_places(const LevelMatrix& m, int64_t first, int64_t count, uint8_t* to) {
  const auto pair = [&](int64_t e) { return std::to_integer<uint8_t>(m.data[e / 2]); };
  int64_t e = first;
  if (e % 2 != 0 && e < first + count) *to++ = pair(e++) & 15;
  for (; e + 1 < first + count; e += 2, to += 2) to[0] = pair(e) >> 4, to[1] = pair(e) & 15;
  if (e < first + count) *to = pair(e) >> 4;
}

void write_nf4(const LevelMatrix& m, int64_t row, const uint8_t* places, std::byte* to) {
  for (int64_t i = 0; i < m.inputs; i += quant::NF4::kElements, to += sizeof(quant::NF4::Block)) {
    quant::NF4::Block block;
    block.scale = m.scales[static_cast<size_t>((row * m.inputs + i) / m.group)];
    join_halves<quant::NF4::kElements>(places + i, block.qs);
    std::memcpy(to, &block, sizeof block);
  }
}

void write_levels(const LevelMatrix& m, int64_t row, const uint8_t* places, std::byte* to) {
  for (int64_t i = 0; i < m.inputs; ++i, to += sizeof(float)) {
    const float value = m.scales[static_cast<size_t>((row * m.inputs + i) / m.group)] * m.levels[places[i]];
    std::memcpy(to, &value, sizeof value);
  }
}

// Reorders one group of 4-bit floats for GGUF's blocks: the first half of the group in the low halves of bytes.
template <int elements>
void reorder_fp4(const std::byte* from, uint8_t* to) {
  static_assert(elements == 16 || elements == 32);
  using Bytes = uint8_t __attribute__((vector_size(16)));  // GCC vector extension
  Bytes pairs{};
  std::memcpy(&pairs, from, elements / 2);
  const Bytes even = pairs & 15, odd = pairs >> 4;
  const Bytes begin = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const Bytes end =
      elements == 32 ? __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
                     : __builtin_shufflevector(begin, begin, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  const Bytes both = begin | end << 4;
  std::memcpy(to, &both, elements / 2);
}

// Writes rows as the blocks that `write` makes of a run of inputs. Uses fp32 when the inputs are not a multiple of a
// block.
template <class Codec, class Write>
TensorEntry fp4_rows(std::string name, int64_t outputs, int64_t inputs, const Write& write) {
  using Block = typename Codec::Block;
  const bool blocks = inputs % Codec::kElements == 0;
  TensorEntry out = entry(std::move(name), blocks ? &Codec::kType : &kFloat32, outputs, inputs);
  const size_t row_bytes = out.bytes / static_cast<size_t>(outputs);
  out.compute = [=](int64_t begin, int64_t count, std::byte* to) {
    for (int64_t row = begin; row < begin + count; ++row, to += row_bytes) {
      for (int64_t i = 0; i < inputs; i += Codec::kElements) {
        const int64_t width = std::min<int64_t>(Codec::kElements, inputs - i);
        Block block{};
        write(row, i, width, block);
        if (blocks) {
          std::memcpy(to + i / Codec::kElements * sizeof block, &block, sizeof block);
        } else {
          std::array<float, Codec::kElements> values;
          Codec::dequantize(block, values.data());
          std::memcpy(to + static_cast<size_t>(i) * sizeof(float), values.data(),
                      static_cast<size_t>(width) * sizeof(float));
        }
      }
    }
  };
  return out;
}

}  // namespace

TensorEntry entry_of(std::string name, GroupMatrix matrix) {
  const auto [type, write] = form_of(matrix);
  TensorEntry out = entry(std::move(name), type, matrix.outputs, matrix.inputs);
  const size_t row_bytes = out.bytes / static_cast<size_t>(matrix.outputs);
  out.compute = [matrix = std::move(matrix), write = write, row_bytes](int64_t begin, int64_t count, std::byte* to) {
    constexpr int64_t kRows = 64;  // rows at a time; matrices stored inputs first have these side by side
    std::vector<uint8_t> quants(static_cast<size_t>(kRows * kTileInputs));
    for (int64_t row = begin; row < begin + count; row += kRows) {
      const int64_t rows = std::min(kRows, begin + count - row);
      for (int64_t input = 0; input < matrix.inputs; input += kTileInputs) {
        const int64_t inputs = std::min(kTileInputs, matrix.inputs - input);
        matrix.quants({.output = row, .outputs = rows, .input = input, .inputs = inputs}, quants.data());
        for (int64_t i = 0; i < rows; ++i) {
          write(matrix, row + i, input, inputs, quants.data() + i * inputs,
                to + static_cast<size_t>(row - begin + i) * row_bytes);
        }
      }
    }
  };
  return out;
}

TensorEntry entry_of(std::string name, Fp8Matrix matrix) {
  const bool blocks = matrix.inputs % Fp8::kElements == 0 && matrix.group % Fp8::kElements == 0;
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

GroupMatrix int8_rows(const TensorEntry& weight) {
  constexpr int kOffset = 128;
  const int64_t inputs = weight.shape[1];
  GroupMatrix m{.bits = 8, .outputs = weight.shape[0], .inputs = inputs};
  m.quants = [data = weight.data, inputs](const MatrixTile& tile, uint8_t* to) {
    for (int64_t row = tile.output; row < tile.output + tile.outputs; ++row, to += tile.inputs) {
      const std::byte* from = data + row * inputs + tile.input;
      for (int64_t i = 0; i < tile.inputs; ++i) to[i] = static_cast<uint8_t>(from[i]) ^ kOffset;
    }
  };
  m.zero = [](int64_t, int64_t) { return kOffset; };
  return m;
}

TensorEntry entry_of(std::string name, LevelMatrix matrix) {
  const bool blocks = is_nf4(matrix);
  TensorEntry out = entry(std::move(name), blocks ? &quant::NF4::kType : &kFloat32, matrix.outputs, matrix.inputs);
  const size_t row_bytes = out.bytes / static_cast<size_t>(matrix.outputs);
  out.compute = [matrix = std::move(matrix), blocks, row_bytes](int64_t begin, int64_t count, std::byte* to) {
    std::vector<uint8_t> places(static_cast<size_t>(matrix.inputs));
    for (int64_t row = begin; row < begin + count; ++row, to += row_bytes) {
      unpack_places(matrix, row * matrix.inputs, matrix.inputs, places.data());
      (blocks ? write_nf4 : write_levels)(matrix, row, places.data(), to);
    }
  };
  return out;
}

TensorEntry fp4_entry(std::string name, const TensorEntry& packed, const TensorEntry& scales, float factor) {
  const int64_t outputs = packed.shape[0], inputs = packed.shape[1] * 2;
  const bool nvidia = scales.dtype == &kFloat8E4M3;
  if (!nvidia && scales.dtype != &kUInt8 && scales.dtype != &kFloat8E8M0) {
    refuse(scales, fmt::format("is {}, expected 8-bit floats", scales.dtype->name));
  }
  const int64_t group = nvidia ? 16 : 32, groups = inputs / group;
  if (inputs % group != 0 || !(scales.shape == Shape{outputs, groups})) {
    refuse(scales, fmt::format(" {}]/ {}]", outputs, inputs, group));
  }
  const std::byte *from = packed.data, *scale = scales.data;
  if (!nvidia) {
    if (factor != 1.0f) refuse(scales, "scales that are powers of two cannot be combined with a scale per tensor");
    return fp4_rows<quant::MXFP4>(std::move(name), outputs, inputs,
                                  [=](int64_t row, int64_t i, int64_t, quant::MXFP4::Block& block) {
                                    block.e = std::to_integer<uint8_t>(scale[row * groups + i / group]);
                                    reorder_fp4<quant::MXFP4::kElements>(from + (row * inputs + i) / 2, block.qs);
                                  });
  }
  return fp4_rows<quant::ScaledNVFP4>(
      std::move(name), outputs, inputs, [=](int64_t row, int64_t i, int64_t width, quant::ScaledNVFP4::Block& block) {
        block.scale = factor;
        for (int64_t g = 0; g < width / group; ++g) {
          block.groups.d[g] = std::to_integer<uint8_t>(scale[row * groups + i / group + g]);
          reorder_fp4<16>(from + (row * inputs + i + g * group) / 2, block.groups.qs + g * 8);
        }
      });
}

TensorEntry mxfp4_experts(std::string name, const TensorEntry& blocks, const TensorEntry& scales, bool in_turn) {
  for (const TensorEntry* entry : {&blocks, &scales}) {
    if (entry->dtype != &kUInt8) refuse(*entry, fmt::format("is {}, expected uint8", entry->dtype->name));
  }
  const Shape& s = scales.shape;
  if (s.rank() != 3 || s.elements() == 0 || !(blocks.shape == Shape{s[0], s[1], s[2], 16})) {
    refuse(blocks, fmt::format("does not match scales of shape {}", s.str()));
  }
  const int64_t experts = s[0], rows = s[1], groups = s[2];
  if (in_turn && rows % 2 != 0) refuse(blocks, "expected an even number of rows, because gate and up rows alternate");
  const auto stored = [=](int64_t row) {
    const int64_t i = row % rows;
    return in_turn ? row - i + (i < rows / 2 ? 2 * i : 2 * i - rows + 1) : row;
  };
  TensorEntry out = fp4_rows<quant::MXFP4>(
      std::move(name), experts * rows, groups * 32,
      [=, from = blocks.data, scale = scales.data](int64_t row, int64_t i, int64_t, quant::MXFP4::Block& block) {
        const int64_t b = stored(row) * groups + i / 32;
        block.e = std::to_integer<uint8_t>(scale[b]);
        reorder_fp4<quant::MXFP4::kElements>(from + b * 16, block.qs);
      });
  out.shape = {experts, rows, groups * 32};
  return out;
}

}  // namespace sluice
