// Reads checkpoints of 8-bit and 4-bit floats: DeepSeek (fp8), FBGEMM, NVIDIA's Model Optimizer, AMD's Quark, and
// gpt-oss.
#include <fmt/core.h>

#include "base/json.h"
#include "formats/quantized/tensors.h"

namespace sluice {
namespace {

// Reads matrices NAME.weight with two 4-bit floats per byte, the even input in the low half. NVFP4 has a scale of 8-bit
// floats per 16 inputs, and one per tensor (weight_scale_2). MXFP4 has a power of two per 32 inputs.
void fp4_matrices(QuantizedTensors& t) {
  for (const std::string& name : t.modules(".weight_scale")) {
    const TensorEntry* weight = t.find(name + ".weight");
    if (weight == nullptr || weight->dtype != &kUInt8) continue;
    const TensorEntry packed = t.take(name + ".weight", &kUInt8, 0, 0), scale = t.take(name + ".weight_scale");
    const bool whole = t.has(name + ".weight_scale_2");
    t.add(fp4_entry(name + ".weight", packed, scale, whole ? t.take_number(name + ".weight_scale_2") : 1.0f));
  }
}

// Reads DeepSeek-V4's experts: as in MXFP4, with NAME.scale.
void fp4_experts(QuantizedTensors& t) {
  for (const std::string& name : t.modules(".scale")) {
    const TensorEntry* weight = t.find(name + ".weight");
    if (weight == nullptr || (weight->dtype != &kInt8 && weight->dtype != &kUInt8)) continue;
    const TensorEntry packed = t.take(name + ".weight", weight->dtype, 0, 0), scale = t.take(name + ".scale");
    t.add(fp4_entry(name + ".weight", packed, scale, 1.0f));
  }
}

void check_one_of(const Config& config, const char* key, const std::string& value,
                  std::initializer_list<const char*> known) {
  std::string names;
  for (const char* one : known) {
    if (value == one) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", one);
  }
  config.refuse(key, fmt::format("unknown value '{}' (expected one of: {})", value, names));
}

}  // namespace

void read_fp8(QuantizedTensors& t) {
  const Config& config = t.config;
  check_one_of(config, "fmt", config.get("fmt", std::string("e4m3")), {"e4m3", "float8_e4m3fn"});
  t.block = config.get("weight_block_size", std::vector<int>{});
  if (t.block == std::vector<int>{1, 32}) t.block.clear();  // MXFP8, whose scales show themselves
  t.check_block("weight_block_size", config);
  t.fp8_activations = true;  // with measured scales per tensor, or dynamic scales
  ignore(config, {"activation_scheme", "modules_to_not_convert", "ignored_layers", "packed_modules_mapping",
                  "scale_fmt", "kv_cache_scheme"});
  check_read(config);
  t.floats();
  fp4_experts(t);
}

void read_fbgemm_fp8(QuantizedTensors& t) {
  t.fp8_activations = true;
  ignore(t.config, {"activation_scale_ub", "modules_to_not_convert"});
  check_read(t.config);
  t.drop({".input_scale_ub"});
  t.floats();
}

void read_mxfp4(QuantizedTensors& t) {
  ignore(t.config, {"dequantize", "modules_to_not_convert"});
  check_read(t.config);
  for (const std::string& name : t.modules("_blocks")) {
    t.add(mxfp4_experts(name + ".weight", t.take(name + "_blocks"), t.take(name + "_scales"),
                        name.ends_with("gate_up_proj")));
  }
}

void read_modelopt(QuantizedTensors& t) {
  const Config& config = t.config;
  const auto algorithm = config.get("quant_algo", std::string());
  check_one_of(config, "quant_algo", algorithm,
               {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "NVFP4", "MIXED_PRECISION"});
  t.fp8_activations = algorithm.starts_with("FP8");
  // The tensors show what is quantized and how. Quantized caches are ignored.
  ignore(config, {"config_groups", "exclude_modules", "group_size", "has_zero_point", "ignore", "kv_cache_quant_algo",
                  "kv_cache_scheme", "pre_quant_scale", "producer", "quantized_layers"});
  if (config.get("has_zero_point", false)) config.refuse("has_zero_point", "is not supported");
  if (config.get("pre_quant_scale", false)) config.refuse("pre_quant_scale", "is not supported");
  check_read(config);
  t.floats();
  fp4_matrices(t);
}

void read_quark(QuantizedTensors& t) {
  const Config& config = t.config;
  if (const Json* layers = config.find("layer_quant_config"); layers != nullptr && !layers->empty()) {
    config.refuse("layer_quant_config", "is not supported: all matrices must use the same quantization");
  }
  const Config global = config.object("global_quant_config");
  const Config weight = global.object("weight");
  const auto type = weight.get("dtype", std::string());
  check_one_of(weight, "dtype", type, {"fp8_e4m3", "fp4"});
  if (type == "fp4") {
    const auto scales = weight.get("scale_format", std::string("e8m0"));
    check_one_of(weight, "scale_format", scales, {"e8m0"});
  }
  t.fp8_activations = type == "fp8_e4m3";
  ignore(config, {"algo_config", "exclude", "export", "kv_cache_quant_config", "kv_cache_post_rope",
                  "layer_type_quant_config", "quant_mode", "softmax_quant_spec", "version"});
  check_read(config);
  t.floats();
  fp4_matrices(t);
}

}  // namespace sluice
