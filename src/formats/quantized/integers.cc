// Reads integers in groups with zero points: GPTQ, AWQ, and AutoRound, which writes either format.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "formats/quantized/tensors.h"

namespace sluice {
namespace {

// The groups of inputs in order, if the last group of `size` inputs is shorter than the others; else empty.
std::vector<int32_t> cut_groups(int64_t inputs, int64_t size, int64_t groups) {
  std::vector<int32_t> group_of;
  if (size < 1 || inputs % size == 0 || groups != inputs / size + 1) return group_of;
  for (int64_t i = 0; i < inputs; ++i) group_of.push_back(static_cast<int32_t>(i / size));
  return group_of;
}

// The bits of a matrix's integers, which the zeros of its outputs show. `known`: those that modules may have.
int bits_of(const TensorEntry& zeros, int64_t outputs, const std::set<int>& known) {
  const auto found = std::ranges::find_if(known, [&](int bits) { return zeros.shape[1] * 32 == outputs * bits; });
  if (found == known.end()) {
    refuse(zeros, fmt::format("it is {} words wide, which {} numbers of {} bits are not", zeros.shape[1], outputs,
                              fmt::join(known, " or ")));
  }
  return *found;
}

// Reads a GPTQ matrix. Inputs come first: word (i, o) holds several inputs of output o, and zeros (g, o) several
// outputs. Integers of 2 and 3 bits are widened to 4 bits.
void gptq_matrix(QuantizedTensors& t, const std::string& name, const std::set<int>& known_bits, int zero_offset) {
  const TensorEntry weight = t.take(name + ".qweight", &kInt32, 0, 0), scale = t.take(name + ".scales");
  const int64_t outputs = weight.shape[1];
  const Scales scales(scale, outputs, true);
  const int64_t groups = scales.count();
  const TensorEntry zero = t.take(name + ".qzeros", &kInt32, groups, 0);
  const int bits = bits_of(zero, outputs, known_bits);
  const int64_t inputs = weight.shape[0] * 32 / bits;
  if (words_of(inputs, bits) != weight.shape[0]) {
    refuse(weight, fmt::format("its size is not a multiple of whole words of {}-bit numbers", bits));
  }
  GroupMatrix m{.bits = bits == 8 ? 8 : 4, .outputs = outputs, .inputs = inputs};
  m.group_of = t.has(name + ".g_idx") ? order_of(t.take(name + ".g_idx"), inputs, groups)
                                      : cut_groups(inputs, t.config.get("group_size", -1), groups);
  m.group = m.group_of.empty() ? group_size(scale, inputs, groups) : inputs;
  m.quants = [fields = PackedFields{weight.data, outputs, 1, bits}](const MatrixTile& tile, uint8_t* to) {
    fields.read(tile, to);
  };
  m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
  m.zero = [zero_offset, fields = PackedFields{zero.data, 1, zero.shape[1], bits}](int64_t output, int64_t g) {
    return fields.at(g, output) + zero_offset;
  };
  t.add(entry_of(name + ".weight", std::move(m)));
}

void awq_matrix(QuantizedTensors& t, const std::string& name) {
  const TensorEntry weight = t.take(name + ".qweight", &kInt32, 0, 0), scale = t.take(name + ".scales");
  const int64_t inputs = weight.shape[0], outputs = weight.shape[1] * 8;
  const Scales scales(scale, outputs, true);
  const TensorEntry zero = t.take(name + ".qzeros", &kInt32, scales.count(), outputs / 8);
  GroupMatrix m{.bits = 4, .outputs = outputs, .inputs = inputs};
  m.group = group_size(scale, inputs, scales.count());
  m.quants = [fields = AwqFields{weight.data, outputs / 8}](const MatrixTile& tile, uint8_t* to) {
    fields.read(tile, to);
  };
  m.scale = [scales](int64_t output, int64_t g) { return scales.at(output, g); };
  m.zero = [fields = AwqFields{zero.data, outputs / 8}](int64_t output, int64_t g) { return fields.at(g, output); };
  t.add(entry_of(name + ".weight", std::move(m)));
}

bool is_gptq_bits(const Json& bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 8; }

int gptq_bits(const Config& config) {
  const auto bits = config.at<int>("bits");
  if (!is_gptq_bits(bits)) {
    config.refuse("bits", fmt::format("{} is not supported (expected one of: 2, 3, 4, 8)", bits));
  }
  return bits;
}

// "dynamic" maps patterns of modules to settings of their own (GPTQModel). Modules of a pattern that begins with "-:"
// stay unquantized. Returns the bits that occur. Refuses settings that the tensors do not show.
std::set<int> dynamic_bits(const Config& config) {
  std::set<int> out = {gptq_bits(config)};
  const Config dynamic = config.object("dynamic");
  for (const auto& [pattern, settings] : dynamic.values().items()) {
    if (pattern.starts_with("-:")) continue;
    if (!settings.is_object()) dynamic.refuse(pattern, "must be an object");
    for (const auto& [key, value] : settings.items()) {
      const bool bits = key == "bits" && is_gptq_bits(value);
      if (!bits && key != "group_size" && key != "desc_act" && key != "sym") {
        dynamic.refuse(pattern, fmt::format("{} = {} of some modules is not supported", key, value.dump()));
      }
      if (bits) out.insert(value.get<int>());
    }
  }
  return out;
}

}  // namespace

void read_gptq(QuantizedTensors& t) {
  const Config& config = t.config;
  const std::set<int> bits = dynamic_bits(config);
  const auto format = config.get("checkpoint_format", std::string("gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    config.refuse("checkpoint_format", "'" + format + "' is not supported (expected one of: gptq, gptq_v2)");
  }
  if (config.get("is_marlin_format", false)) config.refuse("is_marlin_format", "is not supported");
  // The tensors show the groups and their order, except for a last group that is cut.
  ignore(config, {"group_size",
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
  check_read(config);
  for (const std::string& name : t.modules(".qweight")) gptq_matrix(t, name, bits, format == "gptq" ? 1 : 0);
}

void read_awq(QuantizedTensors& t) {
  const Config& config = t.config;
  const auto bits = config.has("w_bit") ? config.at<int>("w_bit") : config.at<int>("bits");
  if (bits != 4) config.refuse("bits", fmt::format("{} is not supported (expected 4)", bits));
  const auto version = config.get("version", std::string("gemm"));
  if (version != "gemm" && version != "GEMM") {
    config.refuse("version", "'" + version + "' is not supported (expected gemm)");
  }
  if (!config.get("zero_point", true)) config.refuse("zero_point", "false is not supported (expected true)");
  ignore(config, {"bits", "group_size", "q_group_size", "backend", "modules_to_not_convert", "exllama_config",
                  "do_fuse", "fuse_max_seq_len", "modules_to_fuse"});
  check_read(config);
  for (const std::string& name : t.modules(".qweight")) awq_matrix(t, name);
}

void read_auto_round(QuantizedTensors& t) {
  const Config& config = t.config;
  const int bits = gptq_bits(config);
  const auto type = config.get("data_type", std::string("int"));
  if (type != "int") config.refuse("data_type", "'" + type + "' is not supported (expected int)");
  const char* key = config.has("packing_format") ? "packing_format" : "backend";  // older files use "backend"
  const auto format = config.get(key, std::string("auto_round:auto_gptq"));
  const bool awq = format.find("awq") != std::string::npos;
  if (!awq && format.find("gptq") == std::string::npos) {
    config.refuse(key, "'" + format + "' is not supported (expected a format of auto_gptq or auto_awq)");
  }
  if (awq && bits != 4) {
    config.refuse("bits", fmt::format("{} is not supported with the format of auto_awq (expected 4)", bits));
  }
  std::set<int> all_bits = {bits};
  if (const Json* extra = config.find("extra_config"); extra != nullptr && extra->is_object()) {
    for (const auto& [module, settings] : extra->items()) {
      const Json own = settings.is_object() ? settings.value("bits", Json(bits)) : Json();
      if (own.is_number_integer() && own.get<int64_t>() >= 16) continue;  // stays unquantized
      const bool integers = settings.is_object() && settings.value("data_type", Json("int")) == "int";
      if (!integers || !is_gptq_bits(own) || (awq && own != 4)) {
        config.refuse("extra_config", fmt::format("'{}': only integers of {} bits or unquantized modules are supported",
                                                  module, awq ? "4" : "2, 3, 4 or 8"));
      }
      all_bits.insert(own.get<int>());
    }
  }
  ignore(config, {"act_bits",
                  "act_data_type",
                  "act_dynamic",
                  "act_group_size",
                  "act_sym",
                  "amp",
                  "autoround_version",
                  "backend",
                  "batch_size",
                  "block_name_to_quantize",
                  "dataset",
                  "disable_opt_rtn",
                  "enable_alg_ext",
                  "enable_minmax_tuning",
                  "enable_norm_bias_tuning",
                  "enable_quanted_input",
                  "gradient_accumulate_steps",
                  "group_size",
                  "iters",
                  "low_gpu_mem_usage",
                  "lr",
                  "minmax_lr",
                  "model_free",
                  "modules_to_not_convert",
                  "nsamples",
                  "quant_block_list",
                  "quant_lm_head",
                  "scale_dtype",
                  "seqlen",
                  "super_bits",
                  "super_group_size",
                  "sym",
                  "to_quant_block_names",
                  "train_bs"});
  if (config.get("act_bits", 16) < 16) {
    config.refuse("act_bits", "activations with fewer than 16 bits are not supported");
  }
  check_read(config);
  for (const std::string& name : t.modules(".qweight")) {
    if (awq) {
      awq_matrix(t, name);
    } else {
      gptq_matrix(t, name, all_bits, 1);
    }
  }
}

}  // namespace sluice
