// The tensors of a quantized checkpoint and what its configuration says of them, as the readers of each method see
// them.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/quantized/group_matrix.h"
#include "formats/quantized/quantized.h"

namespace sluice {

// Throws Error(kUnsupportedModel) that names the tensor.
[[noreturn]] void refuse(const TensorEntry& entry, const std::string& message);

// Nothing may be left unsaid of what changes the numbers: throws for a key that nobody has read.
void check_read(const Config& config);
void ignore(const Config& config, std::initializer_list<const char*> keys);

// Rows of unsigned numbers of 2, 3, 4 or 8 bits, one after the other in int32 words, from the lowest bit on.
struct PackedFields {
  const std::byte* data;
  int64_t word_stride, row_stride;  // from a row's word to its next, from a row to the next, in words
  int bits;
  int at(int64_t row, int64_t field) const;
  // Rows are outputs, or the other way round, and fields inputs.
  void read(const MatrixTile& tile, uint8_t* to) const;
  uint32_t word(int64_t row, int64_t i) const {
    uint32_t value;
    std::memcpy(&value, data + (row * row_stride + i * word_stride) * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  }
};
// Eight numbers of 4 bits as bytes, the lowest first.
inline uint64_t spread_nibbles(uint32_t word) {
  uint64_t x = (word | uint64_t{word} << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}
// Numbers of 4 bits in int32 words [inputs, words], those of eight outputs in each, in the order of AWQ's kernels.
struct AwqFields {
  static constexpr int kFields[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of the outputs of a word
  const std::byte* data;
  int64_t words;
  int at(int64_t input, int64_t output) const;
  void read(const MatrixTile& tile, uint8_t* to) const;
  uint32_t word(int64_t input, int64_t i) const {
    uint32_t value;
    std::memcpy(&value, data + (input * words + i) * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  }
};
// How many words hold so many fields.
inline int64_t words_of(int64_t fields, int bits) { return (fields * bits + 31) / 32; }

// Scales of outputs by something, in any float type: [], [1], [outputs], [outputs, count] or, transposed, [count,
// outputs].
class Scales {
 public:
  Scales(const TensorEntry& entry, int64_t outputs, bool transposed = false);
  int64_t count() const { return count_; }  // of an output
  float at(int64_t output, int64_t i) const {
    output *= by_output_;
    return values_[static_cast<size_t>(transposed_ ? i * rows_ + output : output * count_ + i)];
  }

 private:
  std::vector<float> values_;
  bool transposed_;
  int64_t rows_ = 1, count_ = 1, by_output_ = 0;
};

class QuantizedTensors {
 public:
  QuantizedTensors(const Config& config, TensorMap& tensors) : config(config), tensors_(tensors) {}

  const Config& config;          // quantization_config
  bool fp8_activations = false;  // see read_quantized
  std::vector<int> block{};      // outputs and inputs that share a scale of 8-bit floats; empty: none do

  bool has(const std::string& name) const { return find(name) != nullptr; }
  const TensorEntry* find(const std::string& name) const;
  // Names that end so, without the ending.
  std::vector<std::string> modules(std::string_view ending) const;
  void drop(std::initializer_list<const char*> endings);

  TensorEntry take(const std::string& name);
  // A matrix of `rows` rows (0: any) and `columns` columns (0: any).
  TensorEntry take(const std::string& name, DType type, int64_t rows, int64_t columns);
  float take_number(const std::string& name);  // of one element
  void add(TensorEntry entry);

  // Throws for a block that floats() cannot read.
  void check_block(const char* key, const Config& where) const;
  // Every matrix of 8-bit floats, NAME.weight with NAME.weight_scale or NAME.weight_scale_inv.
  void floats();

 private:
  void float_matrix(const std::string& name);

  TensorMap& tensors_;
};

// Inputs of a group, where `groups` runs of them make all.
int64_t group_size(const TensorEntry& entry, int64_t inputs, int64_t groups);
// The group of every input, as the entry says it; empty if groups are runs of inputs.
std::vector<int32_t> order_of(const TensorEntry& entry, int64_t inputs, int64_t groups);

// The methods, by the names of "quant_method".
void read_gptq(QuantizedTensors& t);
void read_awq(QuantizedTensors& t);
void read_auto_round(QuantizedTensors& t);
void read_fp8(QuantizedTensors& t);
void read_fbgemm_fp8(QuantizedTensors& t);
void read_mxfp4(QuantizedTensors& t);
void read_modelopt(QuantizedTensors& t);
void read_quark(QuantizedTensors& t);
void read_compressed_tensors(QuantizedTensors& t);
void read_bitsandbytes(QuantizedTensors& t);

}  // namespace sluice
