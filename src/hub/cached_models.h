// What is in the Hugging Face cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice {

// A repository in the cache.
struct CachedModel {
  std::string name;  // "org/name"
  std::filesystem::path folder;
  uintmax_t bytes = 0;
};

// The repositories of models in the cache, sorted by folder.
std::vector<CachedModel> cached_models();

}  // namespace sluice
