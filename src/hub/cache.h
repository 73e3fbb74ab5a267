// Model names on the Hugging Face hub, and the local cache that Hugging Face's tools share:
// models--org--name/{refs/<revision> -> commit, snapshots/<commit>/<files> -> blobs/<checksum>}.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct HubName {
  std::string repository;         // "org/name", or "name"
  std::string revision = "main";  // a branch, a tag or a commit; may have slashes: "refs/pr/1"
  std::string quantization{};     // "Q4_K_M": which of a repository's GGUF files; empty: not given

  // Parses "org/name", "org/name:revision" or "org/name:Q4_K_M". Returns nullopt when the text cannot be the name of a
  // model on the hub.
  static std::optional<HubName> parse(std::string_view text);
  std::string folder() const;  // "models--org--name"
};

// Returns whether a suffix names a GGUF type (Q4_K_M, IQ2_XS, BF16) rather than a revision.
bool names_quantization(std::string_view text);
// Returns whether the text is safe as a single path component.
bool plain_name(std::string_view name);

// Returns $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hub_cache_folder();
// Returns $HF_HOME, else the parent of the default above.
std::filesystem::path hub_home_folder();

// Returns the cached snapshot of a name, nullopt when there is none. Throws Error(kCorruptFile) for a ref without a
// commit.
std::optional<std::filesystem::path> find_snapshot(const HubName& name);

// Selects the files of type `quantization` from a repository's GGUF files, ignoring case. All parts of a split file are
// returned. With an empty type the default applies: Q4_K_M, else Q8_0, else the only type there is. Returns an empty
// list when nothing fits.
std::vector<std::string> choose_gguf(const std::vector<std::string>& files, std::string_view quantization);

// Returns the folder or file that `model` names: the path itself when it exists, else its snapshot in the cache (with a
// quantization, the GGUF file in it). Downloads nothing. Throws Error(kNotFound) that names every place it searched.
std::string resolve_model_path(const std::string& model);

// Returns the same for a name of the hub, which is never taken for a path of this machine.
std::string resolve_hub_name(const HubName& name);

// Returns the display name of a model folder: the folder's name, or "org/name" for a snapshot in the cache.
std::string model_name(const std::filesystem::path& folder);

}  // namespace sluice
