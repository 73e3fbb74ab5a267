// The interface that a file format registers with open_checkpoint: one .cc per format, no central list.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "base/registry.h"
#include "formats/checkpoint.h"

namespace sluice {

struct CheckpointFormat {
  std::string_view name;  // "safetensors"
  // Returns whether this existing file or folder has the format, judging by names and first bytes. When several formats
  // match, the one with the lowest `rank` opens it.
  bool (*recognizes)(const std::filesystem::path& path);
  std::unique_ptr<Checkpoint> (*open)(const std::filesystem::path& path);
  int rank = 0;
  bool pickled = false;  // opened only with OpenOptions::allow_bin
};

// Reads the defaults of generate() from a configuration. Throws Error(kUnsupportedModel) that names file and key when a
// value has the wrong type or is out of range.
GenerationConfig read_generation(const Config& config);

}  // namespace sluice
