// Names of models on the Hugging Face hub, resolved in the cache that Hugging Face's tools keep on this machine.
#pragma once

#include <string>

namespace sluice {

// The folder or file that `model` means: itself when it exists, else "org/name" or "org/name:revision" in the hub cache
// ($HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub; revision "main" by default, or a branch, a tag or a
// commit). Nothing is downloaded. Throws Error(kNotFound) naming every place looked at.
std::string resolve_model_path(const std::string& model);

}  // namespace sluice
