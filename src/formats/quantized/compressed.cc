// Reads compressed-tensors checkpoints, the format of LLM Compressor: integers and floats of 4 and 8 bits.
#include <fmt/core.h>

#include <array>
#include <cstring>

#include "base/json.h"
#include "formats/quantized/tensors.h"

namespace sluice {
namespace {

std::array<int64_t, 2> two_integers(const TensorEntry& entry) {
  if (entry.shape.elements() != 2 || (entry.dtype != &kInt64 && entry.dtype != &kInt32)) {
    refuse(entry, "expected two integers");
  }
  std::array<int64_t, 2> values{};
  if (entry.dtype == &kInt64) {
    std::memcpy(values.data(), entry.data, sizeof values);
  } else {
    std::array<int32_t, 2> narrow;
    std::memcpy(narrow.data(), entry.data, sizeof narrow);
    values = {narrow[0], narrow[1]};
  }
  return values;
}

// Reads a packed matrix: outputs first, offset binary, zero points packed along the outputs.
void packed_matrix(QuantizedTensors& t, const std::string& name) {
  const TensorEntry weight = t.take(name + ".weight_packed", &kInt32, 0, 0), scale = t.take(name + ".weight_scale");
  const auto [outputs, inputs] = two_integers(t.take(name + ".weight_shape"));
  const int64_t columns = weight.shape[1];
  int bits = 0;
  for (const int candidate : {4, 8}) {
    if (inputs > 0 && inputs < int64_t{1} << 40 && words_of(inputs, candidate) == columns) bits = candidate;
  }
  if (bits == 0 || weight.shape[0] != outputs) {
    refuse(weight, fmt::format("does not match [{}, {}] in 4 or 8 bits", outputs, inputs));
  }
  const Scales scales(scale, outputs);
  GroupMatrix m{.bits = bits, .outputs = outputs, .inputs = inputs};
  if (t.has(name + ".weight_g_idx")) m.group_of = order_of(t.take(name + ".weight_g_idx"), inputs, scales.count());
  m.group = m.group_of.empty() ? group_size(scale, inputs, scales.count()) : inputs;
  m.quants = [fields = PackedFields{weight.data, 1, columns, bits}](const MatrixTile& tile, uint8_t* to) {
    fields.read(tile, to);
  };
  m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
  m.zero = [bits](int64_t, int64_t) { return 1 << (bits - 1); };
  if (t.has(name + ".weight_zero_point")) {
    const TensorEntry zero = t.take(name + ".weight_zero_point", &kInt32, words_of(outputs, bits), scales.count());
    m.zero = [fields = PackedFields{zero.data, scales.count(), 1, bits}](int64_t output, int64_t g) {
      return fields.at(g, output);
    };
  }
  t.add(entry_of(name + ".weight", std::move(m)));
}

void compressed_int8_matrix(QuantizedTensors& t, const std::string& name) {
  const TensorEntry weight = t.take(name + ".weight", &kInt8, 0, 0), scale = t.take(name + ".weight_scale");
  const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
  const Scales scales(scale, outputs);
  GroupMatrix m = int8_rows(weight);
  m.group = group_size(scale, inputs, scales.count());
  m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
  if (t.has(name + ".weight_zero_point")) {
    const TensorEntry zero = t.take(name + ".weight_zero_point");
    const int64_t count = scales.count(), numbers = zero.shape.elements();
    const bool one = numbers == 1 && scale.shape.elements() == 1;  // for the whole matrix
    if (zero.dtype != &kInt8 || (numbers != outputs * count && !one)) {
      refuse(zero, fmt::format("expected {} x {} numbers of int8", outputs, count));
    }
    m.zero = [zero_of = m.zero, data = zero.data, count, one](int64_t output, int64_t g) {
      return zero_of(output, g) + static_cast<int8_t>(data[one ? 0 : output * count + g]);
    };
  }
  t.add(entry_of(name + ".weight", std::move(m)));
}

// NVFP4 matrices have a scale per tensor, which divides.
void fp4_matrix(QuantizedTensors& t, const std::string& name) {
  const TensorEntry packed = t.take(name + ".weight_packed", &kUInt8, 0, 0), scale = t.take(name + ".weight_scale");
  const bool whole = t.has(name + ".weight_global_scale");
  const float divisor = whole ? t.take_number(name + ".weight_global_scale") : 1.0f;
  t.add(fp4_entry(name + ".weight", packed, scale, 1.0f / divisor));
}

void check_format(const Config& config, const std::string& format) {
  for (const char* known : {"", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                            "mixed-precision", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"}) {
    if (format == known) return;
  }
  config.refuse("format", "'" + format + "' is not supported");
}

// Reads the settings that the tensors do not show.
void read_group(QuantizedTensors& t, const Config& group) {
  check_format(group, group.get("format", std::string()));
  const Config weights = group.object("weights");
  const auto type = weights.get("type", std::string("int"));
  const auto bits = weights.at<int>("num_bits");
  if ((type != "int" && type != "float") || (bits != 4 && bits != 8)) {
    weights.refuse("num_bits", fmt::format("{} of type {} is not supported", bits, type));
  }
  const std::vector<int> block = weights.get("block_structure", std::vector<int>{});
  if (!block.empty()) {
    if (!t.block.empty() && block != t.block) weights.refuse("block_structure", "must be equal in all groups");
    t.block = block;
    t.check_block("block_structure", weights);
  }
  ignore(weights, {"symmetric", "strategy", "group_size", "actorder", "dynamic", "observer", "observer_kwargs",
                   "scale_dtype", "zp_dtype"});
  check_read(weights);
  if (const Json* inputs = group.find("input_activations"); inputs != nullptr && inputs->is_object()) {
    const Config activations = group.object("input_activations");
    t.fp8_activations |= activations.get("type", std::string("int")) == "float" && activations.get("num_bits", 8) == 8;
  }
  ignore(group, {"targets", "output_activations"});
  check_read(group);
}

}  // namespace

void read_compressed_tensors(QuantizedTensors& t) {
  const Config& config = t.config;
  const Json* groups = config.find("config_groups");
  if (groups == nullptr || !groups->is_object()) config.refuse("config_groups", "must be an object");
  const Config all(*groups, config.origin() + ": config_groups");
  for (const auto& item : groups->items()) read_group(t, all.object(item.key()));
  check_format(config, config.get("format", std::string()));
  if (const Json* sparsity = config.find("sparsity_config"); sparsity != nullptr && !sparsity->empty()) {
    const Config sparse = config.object("sparsity_config");
    if (const auto kind = sparse.get("format", std::string("dense")); kind != "dense") {
      sparse.refuse("format", "'" + kind + "' is not supported (expected dense)");
    }
  }
  if (const Json* transforms = config.find("transform_config"); transforms != nullptr && !transforms->empty()) {
    config.refuse("transform_config", "is not supported");
  }
  ignore(config, {"ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio", "version"});
  check_read(config);
  for (const std::string& name : t.modules(".weight_packed")) {
    if (t.find(name + ".weight_packed")->dtype == &kUInt8) {
      fp4_matrix(t, name);
    } else {
      packed_matrix(t, name);
    }
  }
  for (const std::string& name : t.modules(".weight_scale")) {
    const TensorEntry* weight = t.find(name + ".weight");
    if (weight != nullptr && weight->dtype == &kInt8) compressed_int8_matrix(t, name);
  }
  t.drop({".input_global_scale"});
  t.floats();
}

}  // namespace sluice
