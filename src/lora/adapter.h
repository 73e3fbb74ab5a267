// Low-rank adapters in the format of Hugging Face's peft: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lora/sites.h"
#include "ops/device.h"

namespace sluice {

// An adapter in host memory. It adds scale * b a to the weight of each of its modules.
struct Adapter {
  struct Module {
    std::string name;  // of the module in the base model: "model.layers.0.self_attn.q_proj"
    int64_t rank = 0, inputs = 0, outputs = 0;
    float scale = 0;
    std::vector<float> a;  // [rank, inputs]
    std::vector<float> b;  // [outputs, rank]
  };
  std::string name;  // what requests call it
  std::string folder;
  std::string digest;  // SHA-256 of its files, in hexadecimal
  std::vector<Module> modules;
  int rank = 0;      // the largest one of its modules
  size_t bytes = 0;  // of its matrices
};

// Throws Error(kUnsupportedModel) that names the key or the tensor that is not supported, Error(kCorruptFile) for files
// that contradict themselves, Error(kNotFound) if the folder has no adapter.
std::shared_ptr<const Adapter> read_adapter(std::string name, const std::string& folder);

// Checks that the model has the adapter's modules, that their shapes agree, and that its rank is within the sites'.
// Throws Error(kUnsupportedModel) that names the tensor.
void check_adapter(const Adapter& adapter, const LoraSites& sites);

// Puts an adapter that was checked into a slot of all sites, or nothing for null. It replaces what was there. Steps
// that were called on the queue before still see that.
void place_adapter(const Adapter* adapter, int slot, LoraSites& sites, ops::Queue& queue);

}  // namespace sluice
