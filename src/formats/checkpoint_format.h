// What a file format registers to be opened by open_checkpoint: one .cc per format, no list of formats anywhere.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "base/registry.h"
#include "formats/checkpoint.h"

namespace sluice {

struct CheckpointFormat {
  std::string_view name;  // "safetensors"
  // Whether this existing file or folder is of the format, judged by names and first bytes. When several formats say
  // yes, the one of least `rank` opens it.
  bool (*recognizes)(const std::filesystem::path& path);
  std::unique_ptr<Checkpoint> (*open)(const std::filesystem::path& path);
  int rank = 0;
  bool pickled = false;  // opened only with OpenOptions::allow_bin
};

// The defaults of generate() that a configuration states. Throws Error(kUnsupportedModel) that names file and key when
// one has the wrong type or is out of its range.
GenerationConfig read_generation(const Config& config);

}  // namespace sluice
