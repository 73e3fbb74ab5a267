// Lists the folders of the Hugging Face cache; see cached_models.h.
#include "hub/cached_models.h"

#include <system_error>

#include "base/folder.h"
#include "hub/cache.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Bytes of the files in a folder and below; symbolic links count nothing.
uintmax_t bytes_below(const fs::path& folder) {
  std::error_code ignored;
  uintmax_t bytes = 0;
  for (const std::string& name : names_in(folder, ignored)) {
    const fs::path path = folder / name;
    const fs::file_status status = fs::symlink_status(path, ignored);
    if (fs::is_directory(status)) bytes += bytes_below(path);
    if (!fs::is_regular_file(status)) continue;
    const uintmax_t size = fs::file_size(path, ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

}  // namespace

std::vector<CachedModel> cached_models() {
  std::vector<CachedModel> out;
  std::error_code ignored;
  for (const std::string& name : names_in(hub_cache_folder(), ignored)) {
    const fs::path folder = hub_cache_folder() / name;
    if (!name.starts_with("models--") || !fs::is_directory(folder, ignored)) continue;
    out.push_back({.name = model_name(folder / "snapshots" / "any"), .folder = folder, .bytes = bytes_below(folder)});
  }
  return out;
}

}  // namespace sluice
