// Names of models on the Hugging Face hub, and the cache that Hugging Face's tools keep of them on this machine:
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
  std::string quantization{};     // "Q4_K_M": which of a repository's GGUF files; empty: not said

  // "org/name", "org/name:revision" or "org/name:Q4_K_M"; nullopt for what cannot be the name of a model on the hub.
  static std::optional<HubName> parse(std::string_view text);
  std::string folder() const;  // "models--org--name"
};

// Whether a suffix names a GGUF type (Q4_K_M, IQ2_XS, BF16) and not a revision.
bool names_quantization(std::string_view text);
// Whether the text may become one component of a path, and nothing but that.
bool plain_name(std::string_view name);

// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hub_cache_folder();
// $HF_HOME, else the parent of the default above.
std::filesystem::path hub_home_folder();

// The snapshot of a name in the cache; nullopt when there is none. Throws Error(kCorruptFile) for a ref without a
// commit.
std::optional<std::filesystem::path> find_snapshot(const HubName& name);

// The files of type `quantization` among a repository's GGUF files, compared without case: all parts of a split one.
// With an empty type, the usual choice: Q4_K_M, else Q8_0, else the only one there is. Empty when nothing fits.
std::vector<std::string> choose_gguf(const std::vector<std::string>& files, std::string_view quantization);

// The folder or file that `model` means: itself when it exists, else its snapshot in the cache (with a quantization,
// the GGUF file there). Nothing is downloaded. Throws Error(kNotFound) naming every place looked at.
std::string resolve_model_path(const std::string& model);

// What a model in a folder is called: the folder's name, or "org/name" for a snapshot in the cache.
std::string model_name(const std::filesystem::path& folder);

}  // namespace sluice
