// The tensors of quantized checkpoints, method by method.
#include "formats/quantized.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "formats/group_matrix.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kWordBits = 32;
constexpr std::array<int, 8> kAwqFields = {0, 4, 1, 5, 2, 6, 3, 7};  // of each of eight outputs, in a word

[[noreturn]] void refuse(const TensorEntry& entry, const std::string& message) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("tensor '{}' {}: {}", entry.name, entry.shape.str(), message));
}

// Nothing may be left unsaid of what changes the numbers.
void check_read(const Config& config) {
  const std::vector<std::string> unread = config.unread();
  if (!unread.empty()) config.refuse(unread.front(), "is not understood");
}

void ignore(const Config& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) config.ignore(key);
}

// An int32 matrix of packed bit fields.
struct Words {
  const std::byte* data;
  int64_t columns;
  uint32_t at(int64_t row, int64_t column) const {
    uint32_t word;
    std::memcpy(&word, data + (row * columns + column) * static_cast<int64_t>(sizeof word), sizeof word);
    return word;
  }
};

// Scales of outputs by something, in any float type: [], [1], [outputs], [outputs, count] or, transposed, [count,
// outputs].
class Scales {
 public:
  Scales(const TensorEntry& entry, int64_t outputs, bool transposed = false)
      : values_(static_cast<size_t>(entry.shape.elements())), transposed_(transposed) {
    if (entry.dtype != &kFloat32 && entry.dtype != &kBFloat16 && entry.dtype != &kFloat16) {
      refuse(entry, fmt::format("scales of type {} are not supported", entry.dtype->name));
    }
    int64_t rows = 1;
    if (values_.size() > 1) rows = entry.shape.rank() < 1 ? 0 : transposed ? entry.shape[-1] : entry.shape[0];
    if (entry.shape.rank() > 2 || values_.empty() || (rows != 1 && rows != outputs)) {
      refuse(entry, fmt::format("no scales of {} outputs", outputs));
    }
    by_output_ = rows == 1 ? 0 : 1;
    rows_ = rows;
    count_ = static_cast<int64_t>(values_.size()) / rows;
    to_float(entry.dtype, entry.data, values_.data(), values_.size());
  }
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

class Reader {
 public:
  Reader(const Config& config, TensorMap& tensors) : config_(config), tensors_(tensors) {}

  void gptq() {
    const auto bits = config_.at<int>("bits");
    if (bits != 4 && bits != 8) config_.refuse("bits", fmt::format("{} is not supported, 4 and 8 are", bits));
    const auto format = config_.get("checkpoint_format", std::string("gptq"));
    if (format != "gptq" && format != "gptq_v2") {
      config_.refuse("checkpoint_format", "'" + format + "' is not supported, gptq and gptq_v2 are");
    }
    if (config_.get("is_marlin_format", false)) config_.refuse("is_marlin_format", "is not supported");
    if (const Json* dynamic = config_.find("dynamic"); dynamic != nullptr && !dynamic->empty()) {
      config_.refuse("dynamic", "is not supported: all matrices have to be quantized alike");
    }
    // Groups and their order are seen in the tensors.
    ignore(config_, {"group_size",
                     "desc_act",
                     "sym",
                     "damp_percent",
                     "damp_auto_increment",
                     "static_groups",
                     "lm_head",
                     "true_sequential",
                     "model_name_or_path",
                     "model_file_base_name",
                     "meta",
                     "pack_dtype",
                     "tokenizer",
                     "dataset",
                     "exllama_config",
                     "use_exllama",
                     "disable_exllama",
                     "use_cuda_fp16",
                     "model_seqlen",
                     "block_name_to_quantize",
                     "module_name_preceding_first_block",
                     "modules_in_block_to_quantize",
                     "batch_size",
                     "pad_token_id",
                     "max_input_length",
                     "cache_block_outputs",
                     "backend",
                     "version"});
    check_read(config_);
    for (const std::string& name : modules(".qweight")) gptq_matrix(name, bits, format == "gptq" ? 1 : 0);
  }

  void awq() {
    const auto bits = config_.has("w_bit") ? config_.at<int>("w_bit") : config_.at<int>("bits");
    if (bits != 4) config_.refuse("bits", fmt::format("{} is not supported, 4 is", bits));
    const auto version = config_.get("version", std::string("gemm"));
    if (version != "gemm" && version != "GEMM") {
      config_.refuse("version", "'" + version + "' is not supported, gemm is");
    }
    if (!config_.get("zero_point", true)) config_.refuse("zero_point", "false is not supported");
    ignore(config_, {"bits", "group_size", "q_group_size", "backend", "modules_to_not_convert", "exllama_config",
                     "do_fuse", "fuse_max_seq_len", "modules_to_fuse"});
    check_read(config_);
    for (const std::string& name : modules(".qweight")) awq_matrix(name);
  }

  void fp8() {
    const auto format = config_.get("fmt", std::string("e4m3"));
    if (format != "e4m3") config_.refuse("fmt", "'" + format + "' is not supported, e4m3 is");
    block_ = config_.get("weight_block_size", std::vector<int>{});
    check_block("weight_block_size", config_);
    fp8_activations_ = true;  // with scales per tensor that were measured, or dynamic ones
    ignore(config_, {"activation_scheme", "modules_to_not_convert", "ignored_layers", "scale_fmt", "kv_cache_scheme"});
    check_read(config_);
    floats();
  }

  void compressed() {
    const Json* groups = config_.find("config_groups");
    if (groups == nullptr || !groups->is_object()) config_.refuse("config_groups", "is no object");
    const Config all(*groups, config_.origin() + ": config_groups");
    for (const auto& item : groups->items()) compressed_group(all.object(item.key()));
    const auto format = config_.get("format", std::string());
    check_format(config_, format);
    if (const Json* sparsity = config_.find("sparsity_config"); sparsity != nullptr && !sparsity->empty()) {
      const Config sparse = config_.object("sparsity_config");
      if (const auto kind = sparse.get("format", std::string("dense")); kind != "dense") {
        sparse.refuse("format", "'" + kind + "' is not supported, dense is");
      }
    }
    if (const Json* transforms = config_.find("transform_config"); transforms != nullptr && !transforms->empty()) {
      config_.refuse("transform_config", "is not supported");
    }
    ignore(config_, {"ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio", "version"});
    check_read(config_);
    for (const std::string& name : modules(".weight_packed")) packed_matrix(name);
    for (const std::string& name : modules(".weight_scale")) {
      const TensorEntry* weight = find(name + ".weight");
      if (weight != nullptr && weight->dtype == &kInt8) int8_matrix(name);
    }
    floats();
  }

  bool fp8_activations() const { return fp8_activations_; }

  // What only fixed scales of activations and caches would need.
  void drop_activation_scales() {
    for (const char* ending : {".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".k_scale",
                               ".v_scale", ".q_scale", ".activation_scale"}) {
      for (const std::string& name : modules(ending)) tensors_.erase(name + ending);
    }
  }

 private:
  const TensorEntry* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  // Names that end so, without the ending.
  std::vector<std::string> modules(std::string_view ending) const {
    std::vector<std::string> out;
    for (const auto& [name, entry] : tensors_) {
      if (name.ends_with(ending)) out.push_back(name.substr(0, name.size() - ending.size()));
    }
    return out;
  }

  TensorEntry take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: tensor '{}' is missing", config_.origin(), name));
    }
    TensorEntry entry = std::move(found->second);
    tensors_.erase(found);
    return entry;
  }
  // A matrix of `rows` rows (0: any) and `columns` columns (0: any).
  TensorEntry take(const std::string& name, DType type, int64_t rows, int64_t columns) {
    TensorEntry entry = take(name);
    if (entry.dtype != type) refuse(entry, fmt::format("is {}, expected {}", entry.dtype->name, type->name));
    if (entry.shape.rank() != 2 || entry.shape.elements() == 0 || (rows > 0 && entry.shape[0] != rows) ||
        (columns > 0 && entry.shape[1] != columns)) {
      refuse(entry, fmt::format("expected [{}, {}]", rows > 0 ? std::to_string(rows) : "any",
                                columns > 0 ? std::to_string(columns) : "any"));
    }
    return entry;
  }
  void add(TensorEntry entry) {
    std::string name = entry.name;
    if (find(name) != nullptr) refuse(entry, "is there quantized and as it is");
    tensors_.emplace(std::move(name), std::move(entry));
  }

  static int64_t group_size(const TensorEntry& entry, int64_t inputs, int64_t groups) {
    if (groups < 1 || inputs % groups != 0) refuse(entry, fmt::format("{} groups of {} inputs", groups, inputs));
    return inputs / groups;
  }

  // The group of every input; empty if groups are runs of inputs.
  static std::vector<int32_t> order_of(const TensorEntry& entry, int64_t inputs, int64_t groups) {
    if (entry.dtype != &kInt32 || entry.shape.elements() != inputs) {
      refuse(entry, fmt::format("expected {} numbers of int32", inputs));
    }
    std::vector<int32_t> group_of(static_cast<size_t>(inputs));
    std::memcpy(group_of.data(), entry.data, group_of.size() * sizeof(int32_t));
    bool in_order = inputs % groups == 0;
    for (int64_t i = 0; i < inputs; ++i) {
      const int32_t g = group_of[static_cast<size_t>(i)];
      if (g < 0 || g >= groups) refuse(entry, fmt::format("input {} is of group {} of {}", i, g, groups));
      in_order = in_order && g == i / (inputs / groups);
    }
    return in_order ? std::vector<int32_t>{} : group_of;
  }

  // Inputs first: word (i, o) holds inputs from 32 / bits * i on of output o; zeros (g, o), outputs likewise.
  void gptq_matrix(const std::string& name, int bits, int zero_offset) {
    const int64_t fields = kWordBits / bits;
    const TensorEntry weight = take(name + ".qweight", &kInt32, 0, 0), scale = take(name + ".scales");
    const int64_t outputs = weight.shape[1], inputs = weight.shape[0] * fields;
    const Scales scales(scale, outputs, true);
    const int64_t groups = scales.count();
    if (outputs % fields != 0) refuse(weight, fmt::format("{} outputs", outputs));
    const TensorEntry zero = take(name + ".qzeros", &kInt32, groups, outputs / fields);
    GroupMatrix m{.bits = bits, .outputs = outputs, .inputs = inputs};
    if (find(name + ".g_idx") != nullptr) m.group_of = order_of(take(name + ".g_idx"), inputs, groups);
    m.group = m.group_of.empty() ? group_size(scale, inputs, groups) : inputs;
    const uint32_t mask = (1u << bits) - 1;
    m.quants = [=, words = Words{weight.data, outputs}](int64_t output, int64_t count, uint8_t* to) {
      for (int64_t i = 0; i < inputs / fields; ++i) {
        for (int64_t r = 0; r < count; ++r) {
          const uint32_t word = words.at(i, output + r);
          for (int64_t j = 0; j < fields; ++j) {
            to[r * inputs + i * fields + j] = static_cast<uint8_t>(word >> (bits * j) & mask);
          }
        }
      }
    };
    m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
    m.zero = [=, words = Words{zero.data, outputs / fields}](int64_t output, int64_t g) {
      const uint32_t stored = words.at(g, output / fields) >> (bits * (output % fields)) & mask;
      return static_cast<int>(stored) + zero_offset;
    };
    add(entry_of(name + ".weight", std::move(m)));
  }

  // Inputs first, eight outputs to a word in an order of their own.
  void awq_matrix(const std::string& name) {
    const TensorEntry weight = take(name + ".qweight", &kInt32, 0, 0), scale = take(name + ".scales");
    const int64_t inputs = weight.shape[0], outputs = weight.shape[1] * 8;
    const Scales scales(scale, outputs, true);
    const TensorEntry zero = take(name + ".qzeros", &kInt32, scales.count(), outputs / 8);
    const auto field = [](const Words& words, int64_t row, int64_t output) {
      return static_cast<int>(words.at(row, output / 8) >> (4 * kAwqFields[static_cast<size_t>(output % 8)]) & 15);
    };
    GroupMatrix m{.bits = 4, .outputs = outputs, .inputs = inputs};
    m.group = group_size(scale, inputs, scales.count());
    m.quants = [=, words = Words{weight.data, outputs / 8}](int64_t output, int64_t count, uint8_t* to) {
      for (int64_t i = 0; i < inputs; ++i) {
        for (int64_t r = 0; r < count; ++r) to[r * inputs + i] = static_cast<uint8_t>(field(words, i, output + r));
      }
    };
    m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
    m.zero = [=, words = Words{zero.data, outputs / 8}](int64_t output, int64_t g) { return field(words, g, output); };
    add(entry_of(name + ".weight", std::move(m)));
  }

  // Outputs first, offset binary; zero points packed along the outputs.
  void packed_matrix(const std::string& name) {
    const TensorEntry weight = take(name + ".weight_packed", &kInt32, 0, 0), scale = take(name + ".weight_scale"),
                      shape = take(name + ".weight_shape");
    if (shape.shape.elements() != 2 || (shape.dtype != &kInt64 && shape.dtype != &kInt32)) {
      refuse(shape, "expected two integers");
    }
    std::array<int64_t, 2> size{};
    if (shape.dtype == &kInt64) {
      std::memcpy(size.data(), shape.data, sizeof size);
    } else {
      std::array<int32_t, 2> narrow;
      std::memcpy(narrow.data(), shape.data, sizeof narrow);
      size = {narrow[0], narrow[1]};
    }
    const auto [outputs, inputs] = size;
    const int64_t columns = weight.shape[1];
    int bits = 0;
    for (const int candidate : {4, 8}) {
      const int64_t fields = kWordBits / candidate;
      if (inputs > 0 && inputs < int64_t{1} << 40 && (inputs + fields - 1) / fields == columns) bits = candidate;
    }
    if (bits == 0 || weight.shape[0] != outputs) {
      refuse(weight, fmt::format("is not [{}, {}] in 4 or 8 bits", outputs, inputs));
    }
    const int64_t fields = kWordBits / bits;
    const Scales scales(scale, outputs);
    GroupMatrix m{.bits = bits, .outputs = outputs, .inputs = inputs};
    if (find(name + ".weight_g_idx") != nullptr) {
      m.group_of = order_of(take(name + ".weight_g_idx"), inputs, scales.count());
    }
    m.group = m.group_of.empty() ? group_size(scale, inputs, scales.count()) : inputs;
    const uint32_t mask = (1u << bits) - 1;
    m.quants = [=, inputs = inputs, words = Words{weight.data, columns}](int64_t output, int64_t count, uint8_t* to) {
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t i = 0; i < inputs; ++i) {
          *to++ = static_cast<uint8_t>(words.at(output + r, i / fields) >> (bits * (i % fields)) & mask);
        }
      }
    };
    m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
    m.zero = [bits](int64_t, int64_t) { return 1 << (bits - 1); };
    if (find(name + ".weight_zero_point") != nullptr) {
      const TensorEntry zero =
          take(name + ".weight_zero_point", &kInt32, (outputs + fields - 1) / fields, scales.count());
      m.zero = [=, words = Words{zero.data, scales.count()}](int64_t output, int64_t g) {
        return static_cast<int>(words.at(output / fields, g) >> (bits * (output % fields)) & mask);
      };
    }
    add(entry_of(name + ".weight", std::move(m)));
  }

  void int8_matrix(const std::string& name) {
    const TensorEntry weight = take(name + ".weight", &kInt8, 0, 0), scale = take(name + ".weight_scale");
    const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
    const Scales scales(scale, outputs);
    constexpr int kOffset = 128;
    GroupMatrix m{.bits = 8, .outputs = outputs, .inputs = inputs};
    m.group = group_size(scale, inputs, scales.count());
    m.quants = [data = weight.data, inputs](int64_t output, int64_t count, uint8_t* to) {
      for (int64_t i = 0; i < count * inputs; ++i) to[i] = static_cast<uint8_t>(data[output * inputs + i]) ^ kOffset;
    };
    m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
    m.zero = [](int64_t, int64_t) { return kOffset; };
    if (find(name + ".weight_zero_point") != nullptr) {
      const TensorEntry zero = take(name + ".weight_zero_point");
      if (zero.dtype != &kInt8 || zero.shape.elements() != outputs * scales.count()) {
        refuse(zero, fmt::format("expected {} x {} numbers of int8", outputs, scales.count()));
      }
      m.zero = [data = zero.data, count = scales.count()](int64_t output, int64_t g) {
        return kOffset + static_cast<int8_t>(data[output * count + g]);
      };
    }
    add(entry_of(name + ".weight", std::move(m)));
  }

  // Every matrix of 8-bit floats.
  void floats() {
    for (const std::string& name : modules(".weight")) {
      if (find(name + ".weight")->dtype == &kFloat8E4M3) fp8_matrix(name);
    }
  }

  void fp8_matrix(const std::string& name) {
    const TensorEntry weight = take(name + ".weight", &kFloat8E4M3, 0, 0);
    const bool inverse = find(name + ".weight_scale_inv") != nullptr;
    const TensorEntry scale = take(name + (inverse ? ".weight_scale_inv" : ".weight_scale"));
    const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
    int64_t block_outputs = 1, block_inputs = inputs;
    const bool in_blocks = !block_.empty() && scale.shape.rank() == 2 && scale.shape[1] > 1;
    if (!block_.empty() && scale.shape.rank() == 2 && (in_blocks || scale.shape[0] != outputs)) {
      block_outputs = block_[0], block_inputs = block_[1];
      const Shape expected{(outputs + block_outputs - 1) / block_outputs, (inputs + block_inputs - 1) / block_inputs};
      if (!(scale.shape == expected)) refuse(scale, fmt::format("expected {}", expected.str()));
    } else if (scale.shape.elements() != 1 && scale.shape.elements() != outputs) {
      refuse(scale, fmt::format("no scales of {} outputs, and the configuration names no blocks", outputs));
    }
    const Scales scales(scale, (outputs + block_outputs - 1) / block_outputs);
    add(entry_of(name + ".weight", Fp8Matrix{.data = weight.data,
                                             .outputs = outputs,
                                             .inputs = inputs,
                                             .row_scales = block_inputs >= inputs,
                                             .scale = [=](int64_t output, int64_t input) {
                                               return scales.at(output / block_outputs, input / block_inputs);
                                             }}));
  }

  void check_block(const char* key, const Config& config) const {
    if (block_.empty()) return;
    if (block_.size() != 2 || block_[0] < 1 || block_[1] < 1 || block_[1] % 128 != 0) {
      config.refuse(key, "is not a number of outputs and a multiple of 128 inputs");
    }
  }

  static void check_format(const Config& config, const std::string& format) {
    for (const char* known :
         {"", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"}) {
      if (format == known) return;
    }
    config.refuse("format", "'" + format + "' is not supported");
  }

  // What the tensors do not say themselves.
  void compressed_group(const Config& group) {
    check_format(group, group.get("format", std::string()));
    const Config weights = group.object("weights");
    const auto type = weights.get("type", std::string("int"));
    const auto bits = weights.at<int>("num_bits");
    if (!(type == "int" && (bits == 4 || bits == 8)) && !(type == "float" && bits == 8)) {
      weights.refuse("num_bits", fmt::format("{} of type {} is not supported", bits, type));
    }
    const std::vector<int> block = weights.get("block_structure", std::vector<int>{});
    if (!block.empty()) {
      if (!block_.empty() && block != block_) weights.refuse("block_structure", "differs between groups");
      block_ = block;
      check_block("block_structure", weights);
    }
    ignore(weights, {"symmetric", "strategy", "group_size", "actorder", "dynamic", "observer", "observer_kwargs",
                     "scale_dtype", "zp_dtype"});
    check_read(weights);
    if (const Json* inputs = group.find("input_activations"); inputs != nullptr && inputs->is_object()) {
      const Config activations = group.object("input_activations");
      fp8_activations_ |= activations.get("type", std::string("int")) == "float" && activations.get("num_bits", 8) == 8;
    }
    ignore(group, {"targets", "output_activations"});
    check_read(group);
  }

  const Config& config_;
  TensorMap& tensors_;
  bool fp8_activations_ = false;
  std::vector<int> block_;  // outputs and inputs that share a scale; empty: none do
};

}  // namespace

bool read_quantized(const Config& config, TensorMap& tensors) {
  constexpr const char* kKey = "quantization_config";
  const Json* found = config.values().is_object() && config.values().contains(kKey) ? &config.values()[kKey] : nullptr;
  if (found == nullptr || !found->is_object() || found->value("quant_method", Json()) == "mxfp4") return false;
  const Config quantization = config.object(kKey);
  const auto method = quantization.at<std::string>("quant_method");
  Reader reader(quantization, tensors);
  if (method == "gptq") {
    reader.gptq();
  } else if (method == "awq") {
    reader.awq();
  } else if (method == "fp8") {
    reader.fp8();
  } else if (method == "compressed-tensors") {
    reader.compressed();
  } else {
    quantization.refuse(
        "quant_method",
        "'" + method + "' is not supported; gptq, awq, fp8, compressed-tensors and, of gpt-oss, mxfp4 are");
  }
  reader.drop_activation_scales();
  return reader.fp8_activations();
}

}  // namespace sluice
