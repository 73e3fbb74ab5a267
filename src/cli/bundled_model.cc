// The demo model inside the program. Its files are written to the user's cache folder on first use.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include "cli/command.h"
#include "sluice/error.h"

#define SLUICE_BUNDLED(index, name)               \
  extern "C" const char sluice_bundled_##index[]; \
  extern "C" const char sluice_bundled_end_##index[];
#include "bundled_model.inc"
#undef SLUICE_BUNDLED

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

struct BundledFile {
  const char* name;
  const char* begin;
  const char* end;
  std::string_view content() const { return {begin, static_cast<size_t>(end - begin)}; }
};

#define SLUICE_BUNDLED(index, name) {name, sluice_bundled_##index, sluice_bundled_end_##index},
const BundledFile kFiles[] = {
#include "bundled_model.inc"
};
#undef SLUICE_BUNDLED

// FNV-1a over names and contents, so that another build's files get another folder.
uint64_t fingerprint() {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](std::string_view bytes) {
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  };
  for (const BundledFile& file : kFiles) {
    add(file.name);
    add(file.content());
  }
  return hash;
}

fs::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "sluice";
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache/sluice";
  return fs::temp_directory_path() / fmt::format("sluice-{}", ::getuid());
}

bool complete(const fs::path& folder) {
  std::error_code error;
  for (const BundledFile& file : kFiles) {
    if (fs::file_size(folder / file.name, error) != file.content().size() || error) return false;
  }
  return true;
}

// Extracts into a temporary folder and renames it when complete. If two processes do so, one wins and both find the
// result.
void extract(const fs::path& folder) {
  const fs::path part = fs::path(folder).concat(fmt::format(".part-{}", ::getpid()));
  fs::create_directories(part);
  for (const BundledFile& file : kFiles) {
    std::ofstream out(part / file.name, std::ios::binary);
    out.write(file.begin, static_cast<std::streamsize>(file.content().size()));
    out.close();
    if (!out) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write the file", (part / file.name).string()));
  }
  std::error_code error;
  fs::rename(part, folder, error);
  if (error) fs::remove_all(part);
}

}  // namespace

std::string bundled_model() {
  const fs::path folder = cache_folder() / fmt::format("{:016x}", fingerprint()) / "minnow-6m";
  if (!complete(folder)) {
    fs::remove_all(folder);
    fs::create_directories(folder.parent_path());
    extract(folder);
  }
  if (!complete(folder)) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write the folder", folder.string()));
  return folder.string();
}

}  // namespace sluice::cli
