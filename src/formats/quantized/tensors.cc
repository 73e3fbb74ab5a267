// Accesses the tensors of quantized checkpoints, with code that several methods share: packed fields, scales, 8-bit
// floats.
#include "formats/quantized/tensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "sluice/error.h"

namespace sluice {

void refuse(const TensorEntry& entry, const std::string& message) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("tensor '{}' {}: {}", entry.name, entry.shape.str(), message));
}

void check_read(const Config& config) {
  const std::vector<std::string> unread = config.unread();
  if (!unread.empty()) config.refuse(unread.front(), "is not understood");
}

void ignore(const Config& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) config.ignore(key);
}

namespace {

// GCC vector extension.
using Words = uint32_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(16)));

// Moves nibble i of word j to byte j of rows[i] (Warren, Hacker's Delight, 7-3).
void transpose_nibbles(const uint32_t (&words)[8], uint64_t (&rows)[8]) {
  const auto exchange = [](Words& a, Words& b, int shift, uint32_t mask) {
    const Words exchanged = (a >> shift ^ b) & mask;
    b ^= exchanged;
    a ^= exchanged << shift;
  };
  Words a = {words[0], words[1], words[2], words[3]}, b = {words[4], words[5], words[6], words[7]};
  exchange(a, b, 16, 0x0000ffff);
  Words c = __builtin_shufflevector(a, b, 0, 1, 4, 5), d = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  exchange(c, d, 8, 0x00ff00ff);
  Words even = __builtin_shufflevector(c, d, 0, 4, 2, 6), odd = __builtin_shufflevector(c, d, 1, 5, 3, 7);
  exchange(even, odd, 4, 0x0f0f0f0f);
  // Separates words 0, 2, 4, 6 and 1, 3, 5, 7.
  const auto spread = [](const Words& four, uint64_t& r0, uint64_t& r1, uint64_t& r2, uint64_t& r3) {
    const auto low = std::bit_cast<Bytes>(four & 0x0f0f0f0f), high = std::bit_cast<Bytes>(four >> 4 & 0x0f0f0f0f);
    const auto begin = std::bit_cast<std::array<uint64_t, 2>>(
        __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    const auto end = std::bit_cast<std::array<uint64_t, 2>>(
        __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
    r0 = begin[0], r1 = begin[1], r2 = end[0], r3 = end[1];
  };
  spread(even, rows[0], rows[2], rows[4], rows[6]);
  spread(odd, rows[1], rows[3], rows[5], rows[7]);
}

}  // namespace

int PackedFields::at(int64_t row, int64_t field) const {
  const int64_t bit = field * bits;
  uint64_t window = word(row, bit / 32);
  if (bit % 32 + bits > 32) window |= static_cast<uint64_t>(word(row, bit / 32 + 1)) << 32;
  return static_cast<int>(window >> (bit % 32) & ((1u << bits) - 1));
}

void PackedFields::read(const MatrixTile& tile, uint8_t* to) const {
  const int64_t first = tile.input * bits / 32, whole = bits == 4 ? tile.inputs / 8 : 0;
  // Rows may be adjacent in memory, so one word of each row is read before the next words.
  for (int64_t w = 0; w < whole; ++w) {
    for (int64_t r = 0; r < tile.outputs; ++r) {
      const uint64_t eight = spread_nibbles(word(tile.output + r, first + w));
      std::memcpy(to + r * tile.inputs + w * 8, &eight, sizeof eight);
    }
  }
  for (int64_t r = 0; r < tile.outputs; ++r) {
    uint64_t window = 0;
    int64_t next = first + whole;
    int held = 0;
    for (int64_t i = whole * 8; i < tile.inputs; ++i) {
      if (held < bits) {
        window |= static_cast<uint64_t>(word(tile.output + r, next++)) << held;
        held += 32;
      }
      to[r * tile.inputs + i] = static_cast<uint8_t>(window & ((1u << bits) - 1));
      window >>= bits;
      held -= bits;
    }
  }
}

int AwqFields::at(int64_t input, int64_t output) const {
  return static_cast<int>(word(input, output / 8) >> 4 * kFields[output % 8] & 15);
}

void AwqFields::read(const MatrixTile& tile, uint8_t* to) const {
  constexpr int64_t kSide = 8;  // inputs and outputs processed together
  const int64_t end = tile.output + tile.outputs;
  for (int64_t i = 0; i < tile.inputs; i += kSide) {
    const int64_t inputs = std::min(kSide, tile.inputs - i);
    for (int64_t first = tile.output / kSide * kSide; first < end; first += kSide) {
      uint32_t words[kSide] = {};
      for (int64_t j = 0; j < inputs; ++j) words[j] = word(tile.input + i + j, first / kSide);
      uint64_t rows[kSide];
      transpose_nibbles(words, rows);
      uint8_t* const place = to + (first - tile.output) * tile.inputs + i;  // output `first` may be outside the tile
      if (inputs == kSide && first >= tile.output && first + kSide <= end) {
        for (int64_t o = 0; o < kSide; ++o) std::memcpy(place + o * tile.inputs, &rows[kFields[o]], kSide);
        continue;
      }
      for (int64_t o = std::max(first, tile.output) - first; o < std::min(kSide, end - first); ++o) {
        std::memcpy(place + o * tile.inputs, &rows[kFields[o]], static_cast<size_t>(inputs));
      }
    }
  }
}

namespace {

// Powers of two, stored as exponents with a bias.
void decode_exponents(const std::byte* from, std::vector<float>& to) {
  constexpr int kBias = 127, kNan = 255;
  for (float& value : to) {
    const auto exponent = std::to_integer<int>(*from++);
    value = exponent == kNan ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - kBias);
  }
}

}  // namespace

Scales::Scales(const TensorEntry& entry, int64_t outputs, bool transposed)
    : values_(static_cast<size_t>(entry.shape.elements())), transposed_(transposed) {
  const bool exponents = entry.dtype == &kFloat8E8M0;
  if (entry.dtype != &kFloat32 && entry.dtype != &kBFloat16 && entry.dtype != &kFloat16 && !exponents) {
    refuse(entry, fmt::format("scales of type {} are not supported (expected a float type)", entry.dtype->name));
  }
  int64_t rows = 1;
  if (values_.size() > 1) rows = entry.shape.rank() < 1 ? 0 : transposed ? entry.shape[-1] : entry.shape[0];
  if (entry.shape.rank() > 2 || values_.empty() || (rows != 1 && rows != outputs)) {
    refuse(entry, fmt::format("does not match {} outputs", outputs));
  }
  by_output_ = rows == 1 ? 0 : 1;
  rows_ = rows;
  count_ = static_cast<int64_t>(values_.size()) / rows;
  if (exponents) {
    decode_exponents(entry.data, values_);
  } else {
    to_float(entry.dtype, entry.data, values_.data(), values_.size());
  }
}

int64_t group_size(const TensorEntry& entry, int64_t inputs, int64_t groups) {
  if (groups < 1 || inputs % groups != 0) {
    refuse(entry, fmt::format("{} groups do not divide {} inputs", groups, inputs));
  }
  return inputs / groups;
}

std::vector<int32_t> order_of(const TensorEntry& entry, int64_t inputs, int64_t groups) {
  if (entry.dtype != &kInt32 || entry.shape.elements() != inputs) {
    refuse(entry, fmt::format("expected {} int32 numbers", inputs));
  }
  std::vector<int32_t> group_of(static_cast<size_t>(inputs));
  std::memcpy(group_of.data(), entry.data, group_of.size() * sizeof(int32_t));
  bool in_order = inputs % groups == 0;
  for (int64_t i = 0; i < inputs; ++i) {
    const int32_t g = group_of[static_cast<size_t>(i)];
    if (g < 0 || g >= groups) {
      refuse(entry, fmt::format("input {} has group {}, which is out of range for {} groups", i, g, groups));
    }
    in_order = in_order && g == i / (inputs / groups);
  }
  return in_order ? std::vector<int32_t>{} : group_of;
}

const TensorEntry* QuantizedTensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> QuantizedTensors::modules(std::string_view ending) const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : tensors_) {
    if (name.ends_with(ending)) out.push_back(name.substr(0, name.size() - ending.size()));
  }
  return out;
}

void QuantizedTensors::drop(std::initializer_list<const char*> endings) {
  for (const char* ending : endings) {
    for (const std::string& name : modules(ending)) tensors_.erase(name + ending);
  }
}

TensorEntry QuantizedTensors::take(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: tensor '{}' is missing", config.origin(), name));
  }
  TensorEntry entry = std::move(found->second);
  tensors_.erase(found);
  return entry;
}

TensorEntry QuantizedTensors::take(const std::string& name, DType type, int64_t rows, int64_t columns) {
  TensorEntry entry = take(name);
  if (entry.dtype != type) refuse(entry, fmt::format("is {}, expected {}", entry.dtype->name, type->name));
  if (entry.shape.rank() != 2 || entry.shape.elements() == 0 || (rows > 0 && entry.shape[0] != rows) ||
      (columns > 0 && entry.shape[1] != columns)) {
    refuse(entry, fmt::format("expected [{}, {}]", rows > 0 ? std::to_string(rows) : "any",
                              columns > 0 ? std::to_string(columns) : "any"));
  }
  return entry;
}

float QuantizedTensors::take_number(const std::string& name) {
  const TensorEntry entry = take(name);
  if (entry.shape.elements() != 1) refuse(entry, "expected one number");
  return Scales(entry, 1).at(0, 0);
}

void QuantizedTensors::add(TensorEntry entry) {
  std::string name = entry.name;
  if (has(name)) refuse(entry, "exists both quantized and unquantized");
  tensors_.emplace(std::move(name), std::move(entry));
}

void QuantizedTensors::check_block(const char* key, const Config& where) const {
  if (block.empty()) return;
  if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[1] % 128 != 0) {
    where.refuse(key, "expected a number of outputs and a multiple of 128 inputs");
  }
}

void QuantizedTensors::floats() {
  for (const std::string& name : modules(".weight")) {
    if (find(name + ".weight")->dtype == &kFloat8E4M3) float_matrix(name);
  }
}

void QuantizedTensors::mxfp8_matrix(const TensorEntry& weight, TensorEntry scale) {
  constexpr int64_t kGroup = 32;
  const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
  const Shape expected{outputs, inputs / kGroup};
  if (inputs % kGroup != 0 || !(scale.shape == expected)) {
    refuse(scale, fmt::format("does not match [{}, {}] with a scale per {} inputs", outputs, inputs, kGroup));
  }
  scale.dtype = &kFloat8E8M0;
  const Scales scales(scale, outputs);
  add(entry_of(weight.name, Fp8Matrix{.data = weight.data,
                                      .outputs = outputs,
                                      .inputs = inputs,
                                      .group = kGroup,
                                      .scale = [scales](int64_t output, int64_t input) {
                                        return scales.at(output, input / kGroup);
                                      }}));
}

void QuantizedTensors::float_matrix(const std::string& name) {
  const TensorEntry weight = take(name + ".weight", &kFloat8E4M3, 0, 0);
  std::string ending = ".weight_scale";
  for (const char* other : {".weight_scale_inv", ".scale"}) {
    if (has(name + other)) ending = other;
  }
  const TensorEntry scale = take(name + ending);
  if (scale.dtype == &kUInt8) return mxfp8_matrix(weight, scale);
  const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
  int64_t block_outputs = 1, block_inputs = inputs;
  const int64_t parts = name.ends_with(".qkv_proj") ? qkv_parts : 1;
  if (outputs % parts != 0) refuse(weight, fmt::format("{} outputs are not {} equal parts", outputs, parts));
  const int64_t part = outputs / parts;
  const bool in_blocks = !block.empty() && scale.shape.rank() == 2 && scale.shape[1] > 1;
  if (!block.empty() && scale.shape.rank() == 2 && (in_blocks || scale.shape[0] != outputs)) {
    block_outputs = block[0], block_inputs = block[1];
    const Shape expected{parts * ((part + block_outputs - 1) / block_outputs),
                         (inputs + block_inputs - 1) / block_inputs};
    if (!(scale.shape == expected)) refuse(scale, fmt::format("expected shape {}", expected.str()));
  } else if (scale.shape.elements() != 1 && scale.shape.elements() != outputs) {
    refuse(scale, fmt::format("does not match {} outputs, and the configuration has no block size", outputs));
  }
  const int64_t blocks = (part + block_outputs - 1) / block_outputs;
  const Scales scales(scale, parts * blocks);
  add(entry_of(name + ".weight", Fp8Matrix{.data = weight.data,
                                           .outputs = outputs,
                                           .inputs = inputs,
                                           .row_scales = block_inputs >= inputs,
                                           .scale = [=](int64_t output, int64_t input) {
                                             const int64_t row = output / part * blocks + output % part / block_outputs;
                                             return scales.at(row, input / block_inputs);
                                           }}));
}

}  // namespace sluice
