// Selects the reader for the method with which a checkpoint was quantized.
#include "formats/quantized/quantized.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "formats/quantized/tensors.h"

namespace sluice {
namespace {

struct Method {
  std::string_view name;
  void (*read)(QuantizedTensors&);
};
constexpr std::array kMethods = {Method{"auto-round", read_auto_round},
                                 Method{"awq", read_awq},
                                 Method{"bitsandbytes", read_bitsandbytes},
                                 Method{"compressed-tensors", read_compressed_tensors},
                                 Method{"fbgemm_fp8", read_fbgemm_fp8},
                                 Method{"fp8", read_fp8},
                                 Method{"gptq", read_gptq},
                                 Method{"modelopt", read_modelopt},
                                 Method{"mxfp4", read_mxfp4},
                                 Method{"mxfp8", read_fp8},
                                 Method{"quark", read_quark}};

// Older files of bitsandbytes and AutoRound use other names, or none.
std::string method_of(const Config& config) {
  const bool bits = config.get("load_in_4bit", false) || config.get("load_in_8bit", false);
  if (!config.has("quant_method") && bits) return "bitsandbytes";
  const auto name = config.at<std::string>("quant_method");
  return name == "intel/auto-round" ? "auto-round" : name;
}

// MiMo V2.5 stores queries, keys and values in as many parts as there are key heads. The family checks these keys.
int64_t qkv_parts(const Json& model) {
  const auto layout = model.find("attention_projection_layout"), heads = model.find("num_key_value_heads");
  if (layout == model.end() || *layout != "fused_qkv" || heads == model.end() || !heads->is_number_integer()) return 1;
  return std::max<int64_t>(1, heads->get<int64_t>());
}

}  // namespace

bool read_quantized(const Config& config, TensorMap& tensors) {
  constexpr const char* kKey = "quantization_config";
  const Json* found = config.values().is_object() && config.values().contains(kKey) ? &config.values()[kKey] : nullptr;
  if (found == nullptr || !found->is_object()) return false;
  const Config quantization = config.object(kKey);
  const std::string name = method_of(quantization);
  const auto method = std::ranges::find(kMethods, name, &Method::name);
  if (method == kMethods.end()) {
    std::string known;
    for (const Method& one : kMethods) known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
    quantization.refuse("quant_method", fmt::format("'{}' is not supported (expected one of: {})", name, known));
  }
  QuantizedTensors all(quantization, tensors);
  all.qkv_parts = qkv_parts(config.values());
  method->read(all);
  // These tensors are only used for static scales of activations and caches.
  all.drop({".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".k_scale", ".v_scale",
            ".q_scale", ".activation_scale"});
  return all.fp8_activations;
}

}  // namespace sluice
