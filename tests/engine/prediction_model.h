// The demo model as a checkpoint of GLM-4.5, with a layer that predicts further tokens. All its layers are dense, so
// that it computes what the demo model computes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/collect.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"

namespace sluice::testing {

enum class Layers {
  kTrained,  // the predicting layer is a copy of the last one
  kEmpty,    // no layer adds anything: the next token follows from the last one, and every prediction is right
  kMissing,  // there is no predicting layer, though the configuration says so
};

inline void write_prediction_model(const std::string& folder, Layers layers = Layers::kTrained) {
  namespace fs = std::filesystem;
  fs::copy(demo_model(), folder);
  const fs::path config = fs::path(folder) / "config.json";
  Json values = read_json_file(config.string());
  const int depth = values["num_hidden_layers"].get<int>();
  const int64_t hidden = values["hidden_size"].get<int64_t>();
  values.update({{"architectures", {"Glm4MoeForCausalLM"}},
                 {"model_type", "glm4_moe"},
                 {"first_k_dense_replace", depth + 1},
                 {"moe_intermediate_size", 64},
                 {"n_routed_experts", 4},
                 {"num_experts_per_tok", 2},
                 {"num_nextn_predict_layers", 1},
                 {"partial_rotary_factor", 1.0}});
  values["rope_parameters"]["partial_rotary_factor"] = 1.0;
  values.erase("mlp_bias");
  std::ofstream(config) << dump_json(values);

  const std::shared_ptr<const Checkpoint> demo = open_checkpoint(demo_model(), {});
  const std::string last = "model.layers." + std::to_string(depth - 1) + ".";
  const std::string own = "model.layers." + std::to_string(depth) + ".";
  std::vector<NamedTensor> tensors;
  std::vector<std::vector<uint16_t>> memory;
  const auto add = [&](const std::string& name, const Shape& shape, uint16_t value) {
    memory.emplace_back(static_cast<size_t>(shape.elements()), value);
    tensors.push_back({name, Tensor(memory.back().data(), &kBFloat16, shape)});
  };
  constexpr uint16_t kOne = 0x3f80;
  const auto put = [&](const std::string& name, const TensorEntry& entry) {
    const bool adds = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    adds&& layers == Layers::kEmpty ? add(name, entry.shape, 0) : tensors.push_back({name, entry.view()});
  };
  for (const auto& [name, entry] : demo->tensors()) {
    put(name, entry);
    if (layers == Layers::kMissing) continue;
    if (name.starts_with(last)) put(own + name.substr(last.size()), entry);
    if (name == "model.norm.weight") put(own + "shared_head.norm.weight", entry);
  }
  if (layers == Layers::kMissing) return write_safetensors((fs::path(folder) / "model.safetensors").string(), tensors);
  for (const char* norm : {"enorm.weight", "hnorm.weight"}) add(own + norm, {hidden}, kOne);
  add(own + "eh_proj.weight", {hidden, 2 * hidden}, 0);
  for (int64_t i = 0; i < hidden; ++i) {
    memory.back()[static_cast<size_t>(i * 2 * hidden + i)] = kOne;
    if (layers == Layers::kTrained) memory.back()[static_cast<size_t>(i * 2 * hidden + hidden + i)] = kOne;
  }
  write_safetensors((fs::path(folder) / "model.safetensors").string(), tensors);
}

}  // namespace sluice::testing
