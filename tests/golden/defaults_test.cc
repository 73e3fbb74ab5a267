// Tests configurations whose logits must be those of another one.
#include <gtest/gtest.h>

#include "golden/stored_model.h"

namespace sluice::defaults_test {
namespace {

using Change = std::function<void(StoredModel&)>;

std::vector<float> logits_after(const std::string& golden, const Change& change) {
  StoredModel model = read_stored_model(golden);
  change(model);
  const testing::TempFolder folder;
  write(model, folder);
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(3 + i * 7 % 50);
  return logits_of(folder, ids).values;
}

// Without tied embeddings, every hybrid layer has a block of its own. A model with as many blocks as hybrid layers has
// the same graph; only its tensors of adapters for other layers are missing.
TEST(Defaults, Zamba2SharesBlocksOnlyIfEmbeddingsAreTied) {
  const auto logits = [](bool tied, int blocks) {
    return logits_after("zamba2-2", [&](StoredModel& m) {
      const std::string first = "model.layers.1.shared_transformer.", third = "model.layers.4.shared_transformer.";
      const std::string adapter = "feed_forward.gate_up_proj_adapter_list.";
      std::map<std::string, StoredMatrix> copies;
      for (const auto& [name, matrix] : m.tensors) {
        if (name.starts_with(first)) copies[third + name.substr(first.size())] = matrix;
      }
      m.tensors.merge(copies);
      for (float& v : m.tensors.at(third + "self_attn.q_proj.weight").values) v *= -2;
      if (blocks == 3) {
        for (const char* side : {"0", "1"}) {
          m.tensors.erase(first + adapter + "2." + side + ".weight");
          m.tensors.erase(third + adapter + "0." + side + ".weight");
        }
      }
      m.tensors["lm_head.weight"] = m.tensors.at("model.embed_tokens.weight");
      m.set({{"tie_word_embeddings", tied}, {"num_mem_blocks", blocks}});
    });
  };
  const std::vector<float> apart = logits(false, 2);
  EXPECT_EQ(apart, logits(true, 3));
  EXPECT_NE(apart, logits(true, 2));
}

}  // namespace
}  // namespace sluice::defaults_test
