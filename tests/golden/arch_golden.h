// An architecture of tests/goldens/arch: a checkpoint with the golden's weights, and the fp32 results that transformers
// computed from them.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/mmap.h"
#include "formats/safetensors.h"
#include "ops/ops.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice {

inline std::filesystem::path arch_goldens() { return std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/goldens/arch"; }

// Whether the configuration mentions experts.
inline bool has_experts(const std::string& name) {
  std::ifstream file(arch_goldens() / name / "config.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find("expert") != std::string::npos || text.find("moe") != std::string::npos;
}

class ArchGolden {
 public:
  explicit ArchGolden(const std::string& name) : file_((arch_goldens() / name / "golden.safetensors").string()) {
    testing::write_hashed_checkpoint((arch_goldens() / name).string(), folder_.path());
    for (TensorEntry& entry : read_safetensors(file_.bytes(), name)) entries_.emplace(entry.name, entry);
  }

  std::string checkpoint() const { return folder_.path(); }
  std::vector<int32_t> ids(const std::string& name) const {
    const TensorEntry& entry = entries_.at(name);
    const auto* data = reinterpret_cast<const int32_t*>(entry.data);
    return {data, data + entry.shape[0]};
  }
  Tensor logits(const std::string& name) const { return entries_.at(name).view(); }

 private:
  testing::TempFolder folder_;
  MappedFile file_;
  std::map<std::string, TensorEntry> entries_;
};

}  // namespace sluice
