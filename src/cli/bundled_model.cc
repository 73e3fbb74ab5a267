// The demo model inside the program. Its files are written to the user's cache folder on first use.
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include "base/log.h"
#include "bundled_model.h"
#include "cli/command.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// FNV-1a over names and contents, so that another build's files get another folder.
uint64_t fingerprint() {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](std::string_view bytes) {
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  };
  for (const EmbeddedFile& file : embedded::bundled_model) {
    add(file.name);
    add(file.content());
  }
  return hash;
}

// The user's cache folder; empty if the environment names none.
fs::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "sluice";
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache/sluice";
  return {};
}

// A folder for temporary files that only this user can write to. Others could put a model of their own there.
fs::path private_temporary_folder() {
  const fs::path folder = fs::temp_directory_path() / fmt::format("sluice-{}", ::getuid());
  ::mkdir(folder.c_str(), S_IRWXU);
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::getuid() ||
      (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw Error(ErrorCode::kInternal,
                fmt::format("{}: is not a folder of this user alone; set XDG_CACHE_HOME", folder.string()));
  }
  return folder;
}

bool complete(const fs::path& folder) {
  std::error_code error;
  for (const EmbeddedFile& file : embedded::bundled_model) {
    if (fs::file_size(folder / file.name, error) != file.content().size() || error) return false;
  }
  return true;
}

// Extracts into a temporary folder and renames it when complete. If two processes do so, one wins and both find the
// result.
void extract(const fs::path& folder) {
  const fs::path part = fs::path(folder).concat(fmt::format(".part-{}", ::getpid()));
  fs::create_directories(part);
  for (const EmbeddedFile& file : embedded::bundled_model) {
    std::ofstream out(part / file.name, std::ios::binary);
    out.write(file.begin, static_cast<std::streamsize>(file.content().size()));
    out.close();
    if (!out) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write the file", (part / file.name).string()));
  }
  std::error_code error;
  fs::rename(part, folder, error);
  if (error) fs::remove_all(part);
}

// Returns the model's folder below `cache`. Extracts the model if it is not there.
std::string extracted_below(const fs::path& cache) {
  const fs::path folder = cache / fmt::format("{:016x}", fingerprint()) / "minnow-6m";
  if (!complete(folder)) {
    fs::remove_all(folder);
    fs::create_directories(folder.parent_path());
    extract(folder);
  }
  if (!complete(folder)) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write the folder", folder.string()));
  return folder.string();
}

}  // namespace

std::string bundled_model() {
  const fs::path cache = cache_folder();
  if (cache.empty()) return extracted_below(private_temporary_folder());
  try {
    return extracted_below(cache);
  } catch (const std::exception& e) {  // no writable home, or a full disk
    const fs::path other = private_temporary_folder();
    log::warning("the demo model is written to {} instead of the cache folder: {}", other.string(), e.what());
    return extracted_below(other);
  }
}

}  // namespace sluice::cli
