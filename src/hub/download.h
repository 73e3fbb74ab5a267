// Downloads models by name from the Hugging Face hub into the cache shared with Hugging Face's tools (hub/cache.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"

namespace sluice {

// A file of a download.
struct FileProgress {
  std::string name;             // path in the repository
  std::string checksum;         // hex: SHA-256 (64 digits) or Git's SHA-1 of a blob (40 digits)
  uint64_t size = 0, done = 0;  // bytes
};

struct DownloadProgress {
  uint64_t done_bytes = 0, total_bytes = 0;  // sums over all files; existing files count as done
  int done_files = 0, files = 0;
  std::vector<FileProgress> each{};
};

struct DownloadOptions {
  bool allow_bin = false;  // accept pytorch_model*.bin when there are no safetensors
  bool text_only = false;  // fetch configuration, tokenizer and templates, but no weights
  bool verify = false;     // compute the checksums of files in the cache, and download damaged ones again
  int parallel = 4;        // files downloaded at the same time
  std::function<void(const DownloadProgress&)> progress{};  // called from any thread, never concurrently; may be null
  // Called once with the bytes that are still to come, before the first of them. May be null.
  std::function<void(uint64_t)> before{};
  // Called from any thread several times a second. May be null. What a callback throws ends the download.
  std::function<void()> check{};
};

// Returns whether $HF_HUB_OFFLINE or $TRANSFORMERS_OFFLINE forbids downloads.
bool hub_offline();

// Chooses the files of a repository that a model needs: configuration, tokenizer, templates and weights. The weights
// are safetensors, else GGUF of the requested quantization, else .bin if allowed. Throws Error(kNotFound) that lists
// the alternatives, and Error(kCorruptFile) for a file name that leaves its folder.
std::vector<std::string> choose_files(const std::vector<std::string>& all, const HubName& name,
                                      const DownloadOptions& options);

// Downloads the model into the cache and returns its snapshot. Resumes an earlier download. A file appears under its
// name only after its checksum was verified, and the snapshot only when all files are present. Contacts $HF_ENDPOINT
// (https://huggingface.co) with $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN or the token file of Hugging Face's tools. Throws
// Error that says what to do.
std::filesystem::path download_model(const HubName& name, const DownloadOptions& options);

// Returns the folder or file of a model. Downloads it when it is a hub name whose weights are not all in the cache and
// downloads are allowed. Otherwise the same as resolve_model_path.
std::string fetch_model(const std::string& model, const DownloadOptions& options);

}  // namespace sluice
