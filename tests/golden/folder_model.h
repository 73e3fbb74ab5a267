// A small model that a test writes to a folder, and the logits of a text computed from it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/runner.h"
#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace sluice {

inline void write_model(const testing::TempFolder& folder, const Json& config,
                        const std::vector<NamedTensor>& tensors) {
  folder.write("config.json", dump_json(config));
  write_safetensors(folder / "model.safetensors", tensors);
}

struct TextLogits {
  std::vector<float> values;  // [tokens, vocabulary]
  size_t weight_bytes = 0;    // memory of the model's weights
};

// Computes logits in float32, in steps of 16 tokens. Throws what load_model throws.
inline TextLogits logits_of(const testing::TempFolder& folder, std::span<const int32_t> ids,
                            const char* activation_quantization = "none", const char* backend = "",
                            const std::string& packed_cache = {}) {
  EngineOptions options;
  options.backend = backend;
  options.model = folder.path();
  options.packed_cache = packed_cache;
  options.dtype = "float32";
  options.activation_quantization = activation_quantization;
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  ThreadPool pool(2);
  LoadedModel loaded = load_model(options, pool);
  Runner runner(loaded);
  TextLogits out{.values = {}, .weight_bytes = loaded.plan.weight_bytes};
  for_each_logits(runner, loaded.plan, options.block_size, ids, 16, [&](int, std::span<const float> row) {
    out.values.insert(out.values.end(), row.begin(), row.end());
  });
  return out;
}

}  // namespace sluice
