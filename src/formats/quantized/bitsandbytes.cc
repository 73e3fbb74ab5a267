// Reads bitsandbytes checkpoints: 4-bit indices into a table of levels (NF4, FP4; Dettmers et al. 2023,
// arXiv:2305.14314), or 8-bit integers with a scale per output (LLM.int8(), arXiv:2208.07339).
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/json.h"
#include "formats/quantized/tensors.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr std::string_view kState = ".weight.quant_state.bitsandbytes__";

std::vector<float> floats_of(const TensorEntry& entry) {
  if (entry.dtype != &kFloat32) refuse(entry, fmt::format("is {}, expected float32", entry.dtype->name));
  std::vector<float> values(static_cast<size_t>(entry.shape.elements()));
  entry.read(values.data());
  return values;
}

// The quantization state of a matrix: JSON in a tensor of bytes.
struct State {
  Config config;
  int64_t outputs = 0, inputs = 0, block = 0;
};
State read_state(const TensorEntry& entry) {
  if (entry.dtype != &kUInt8) refuse(entry, fmt::format("is {}, expected uint8", entry.dtype->name));
  const std::string_view text(reinterpret_cast<const char*>(entry.data), entry.bytes);
  State state;
  try {
    state.config = Config(parse_json(text), entry.name);
  } catch (const Error& error) {
    refuse(entry, fmt::format("is not valid JSON: {}", error.what()));
  }
  const auto shape = state.config.at<std::vector<int>>("shape");
  state.block = state.config.at<int>("blocksize");
  constexpr int kMostBlock = 1 << 20;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) state.config.refuse("shape", "expected two positive numbers");
  if (state.block < 1 || state.block > kMostBlock) {
    state.config.refuse("blocksize", fmt::format("is out of range (expected 1 to {})", kMostBlock));
  }
  state.outputs = shape[0], state.inputs = shape[1];
  return state;
}

// Reads the scale of every block. Scales may themselves be quantized: indices into a table of 256 levels, with a scale
// and an offset.
std::vector<float> read_scales(QuantizedTensors& t, const std::string& name, const State& state) {
  const int64_t blocks = (state.outputs * state.inputs + state.block - 1) / state.block;
  const TensorEntry stored = t.take(name + ".weight.absmax");
  if (stored.shape.elements() != blocks) refuse(stored, fmt::format("expected {} scales", blocks));
  if (!t.has(name + ".weight.nested_absmax")) return floats_of(stored);
  if (stored.dtype != &kUInt8) refuse(stored, fmt::format("is {}, expected uint8", stored.dtype->name));
  const TensorEntry scale = t.take(name + ".weight.nested_absmax"), map = t.take(name + ".weight.nested_quant_map");
  const std::vector<float> scales = floats_of(scale), levels = floats_of(map);
  const int64_t block = state.config.get("nested_blocksize", 256);
  if (block < 1 || static_cast<int64_t>(scales.size()) != (blocks + block - 1) / block) {
    refuse(scale, fmt::format("does not match {} numbers in blocks of {}", blocks, block));
  }
  if (levels.size() != 256) refuse(map, "expected 256 levels");
  const auto offset = static_cast<float>(state.config.get("nested_offset", 0.0));
  std::vector<float> out(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; ++i) {
    out[static_cast<size_t>(i)] = levels[std::to_integer<size_t>(stored.data[i])] * scales[i / block] + offset;
  }
  return out;
}

void level_matrix(QuantizedTensors& t, const std::string& name, const std::string& kind) {
  const State state = read_state(t.take(fmt::format("{}{}{}", name, kState, kind)));
  const TensorEntry weight = t.take(name + ".weight"), map = t.take(name + ".weight.quant_map");
  const int64_t elements = state.outputs * state.inputs;
  if (static_cast<int64_t>(weight.bytes) != (elements + 1) / 2) {
    refuse(weight, fmt::format("expected {} x {} numbers of 4 bits", state.outputs, state.inputs));
  }
  const std::vector<float> levels = floats_of(map);
  LevelMatrix m{.data = weight.data, .outputs = state.outputs, .inputs = state.inputs, .group = state.block};
  if (levels.size() != m.levels.size()) refuse(map, "expected 16 levels");
  std::ranges::copy(levels, m.levels.begin());
  m.scales = read_scales(t, name, state);
  t.add(entry_of(name + ".weight", std::move(m)));
}

void llm_int8_matrix(QuantizedTensors& t, const std::string& name) {
  const TensorEntry weight = t.take(name + ".weight", &kInt8, 0, 0), scale = t.take(name + ".SCB");
  if (t.has(name + ".weight_format")) {
    const TensorEntry format = t.take(name + ".weight_format");  // 0: plain rows
    if (format.bytes != 1 || format.data[0] != std::byte{0}) {
      refuse(format, "only the row format is supported (expected 0)");
    }
  }
  const Scales scales(scale, weight.shape[0]);
  if (scales.count() != 1) refuse(scale, fmt::format("expected {} scales", weight.shape[0]));
  constexpr float kMost = 127;
  GroupMatrix m = int8_rows(weight);
  m.group = m.inputs;
  m.scale = [scales](int64_t output, int64_t) { return scales.at(output, 0) / kMost; };
  t.add(entry_of(name + ".weight", std::move(m)));
}

}  // namespace

void read_bitsandbytes(QuantizedTensors& t) {
  // The tensors show what is quantized and how.
  ignore(t.config, {"load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype",
                    "bnb_4bit_quant_storage", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
                    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules",
                    "llm_int8_threshold"});
  check_read(t.config);
  for (const std::string kind : {"nf4", "fp4"}) {
    for (const std::string& name : t.modules(fmt::format("{}{}", kState, kind))) level_matrix(t, name, kind);
  }
  for (const std::string& name : t.modules(".SCB")) llm_int8_matrix(t, name);
}

}  // namespace sluice
