// The tensors and settings of a quantized checkpoint, as the readers of the methods access them.
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

// Throws for a key that nobody has read, since any key may change the numbers.
void check_read(const Config& config);
void ignore(const Config& config, std::initializer_list<const char*> keys);

// Rows of unsigned numbers of 2, 3, 4 or 8 bits, packed consecutively in int32 words from the lowest bit on.
struct PackedFields {
  const std::byte* data;
  int64_t word_stride, row_stride;  // distance in words between words of a row, and between rows
  int bits;
  int at(int64_t row, int64_t field) const;
  // Fields are inputs if rows are outputs, and the other way round.
  void read(const MatrixTile& tile, uint8_t* to) const;
  uint32_t word(int64_t row, int64_t i) const {
    uint32_t value;
    std::memcpy(&value, data + (row * row_stride + i * word_stride) * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  }
};
// Expands eight 4-bit numbers to bytes, the lowest first.
inline uint64_t spread_nibbles(uint32_t word) {
  uint64_t x = (word | uint64_t{word} << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}
// 4-bit numbers in int32 words [inputs, words]. A word holds eight outputs, in the order of AWQ's kernels.
struct AwqFields {
  static constexpr int kFields[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // field of each of the eight outputs in a word
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
// Returns the number of words that hold `fields` fields.
inline int64_t words_of(int64_t fields, int bits) { return (fields * bits + 31) / 32; }

// Scales of outputs in any float type: [], [1], [outputs], [outputs, count] or transposed [count, outputs].
class Scales {
 public:
  Scales(const TensorEntry& entry, int64_t outputs, bool transposed = false);
  int64_t count() const { return count_; }  // scales per output
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
  std::vector<int> block{};      // outputs and inputs that share a scale of 8-bit floats; empty: no shared scales
  int64_t qkv_parts = 1;         // blocks begin anew in each of this many equal parts of NAME.qkv_proj's outputs

  bool has(const std::string& name) const { return find(name) != nullptr; }
  const TensorEntry* find(const std::string& name) const;
  // Returns the names with this ending, without the ending.
  std::vector<std::string> modules(std::string_view ending) const;
  void drop(std::initializer_list<const char*> endings);

  TensorEntry take(const std::string& name);
  // Takes a matrix with `rows` rows and `columns` columns; 0 accepts any number.
  TensorEntry take(const std::string& name, DType type, int64_t rows, int64_t columns);
  float take_number(const std::string& name);  // takes a tensor of one element
  void add(TensorEntry entry);

  // Throws when floats() does not support the block size.
  void check_block(const char* key, const Config& where) const;
  // Adds every matrix of 8-bit floats: NAME.weight with NAME.weight_scale, NAME.weight_scale_inv or NAME.scale. In
  // MXFP8 the scales are exponents of two in bytes, one per 32 inputs.
  void floats();

 private:
  void float_matrix(const std::string& name);
  void mxfp8_matrix(const TensorEntry& weight, TensorEntry scale);

  TensorMap& tensors_;
};

// Returns the inputs per group when `groups` equal runs cover all inputs.
int64_t group_size(const TensorEntry& entry, int64_t inputs, int64_t groups);
// Reads the group of every input from the entry. Returns an empty list when groups are runs of inputs.
std::vector<int32_t> order_of(const TensorEntry& entry, int64_t inputs, int64_t groups);

// The readers of the methods, one per "quant_method".
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
