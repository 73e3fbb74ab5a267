// Models by name from the Hugging Face hub into the cache that all its tools share (hub/cache.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"

namespace sluice {

struct DownloadProgress {
  uint64_t done_bytes = 0, total_bytes = 0;  // of all files; what was there already counts as done
  int done_files = 0, files = 0;
};

struct DownloadOptions {
  bool allow_bin = false;                                   // take pytorch_model*.bin when there are no safetensors
  bool text_only = false;                                   // configuration, tokenizer and templates, no weights
  int parallel = 4;                                         // files at a time
  std::function<void(const DownloadProgress&)> progress{};  // from any thread, one at a time; may be null
};

// Whether $HF_HUB_OFFLINE (or $TRANSFORMERS_OFFLINE) forbids downloads.
bool hub_offline();

// Which of a repository's files a model needs: configuration, tokenizer, templates, and weights in safetensors, else
// in GGUF of the quantization asked for, else in .bin when allowed. Throws Error(kNotFound) that says what there is
// instead, Error(kCorruptFile) for a name that leads out of its folder.
std::vector<std::string> choose_files(const std::vector<std::string>& all, const HubName& name,
                                      const DownloadOptions& options);

// Brings the model into the cache and returns its snapshot. Goes on where an earlier download stopped; a file appears
// under its name only when its checksum is right, the snapshot only when all files are there. Asks $HF_ENDPOINT
// (https://huggingface.co) with $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN or the token file of Hugging Face's tools. Throws
// Error that says what to do.
std::filesystem::path download_model(const HubName& name, const DownloadOptions& options);

// The folder or file of a model, downloaded when it is a hub name, not in the cache with all its weights, and downloads
// are allowed. As resolve_model_path otherwise.
std::string fetch_model(const std::string& model, const DownloadOptions& options);

}  // namespace sluice
