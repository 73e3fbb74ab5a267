// Layout of the cache: models--org--name/{refs/<revision> -> commit, snapshots/<commit>/<files>}.
#include "formats/hub_cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? fs::path() : fs::path(value);
}

fs::path cache_folder() {
  if (const fs::path hub = from_environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const fs::path home = from_environment("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = from_environment("XDG_CACHE_HOME"); !cache.empty()) return cache / "huggingface" / "hub";
  return from_environment("HOME") / ".cache" / "huggingface" / "hub";
}

// Whether the text may become one component of a path, and nothing but that.
bool plain_name(std::string_view name) {
  if (name.empty() || name.size() > 128 || name.front() == '.') return false;
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

struct HubName {
  std::string folder;         // models--org--name
  fs::path revision{"main"};  // may have slashes: refs/pr/1
};

// False when the text cannot be the name of a model on the hub.
bool parse_hub_name(std::string_view text, HubName& out) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) {
    if (!plain_name(name)) return false;
    out.folder = fmt::format("models--{}", name);
  } else {
    if (!plain_name(name.substr(0, slash)) || !plain_name(name.substr(slash + 1))) return false;
    out.folder = fmt::format("models--{}--{}", name.substr(0, slash), name.substr(slash + 1));
  }
  if (colon == std::string_view::npos) return true;
  out.revision = text.substr(colon + 1);
  return !out.revision.empty() && std::ranges::all_of(out.revision, [](const fs::path& part) {
    return plain_name(part.native());  // refuses "/", "..", "."
  });
}

}  // namespace

std::string resolve_model_path(const std::string& model) {
  std::error_code ignored;
  if (fs::exists(model, ignored)) return model;
  HubName name;
  if (!parse_hub_name(model, name)) throw Error(ErrorCode::kNotFound, fmt::format("{}: no such file or folder", model));

  const fs::path root = cache_folder() / name.folder;
  const fs::path ref = root / "refs" / name.revision;
  fs::path snapshot = root / "snapshots" / name.revision;  // when the revision is a commit
  if (std::ifstream in(ref); in) {
    std::string commit;
    in >> commit;
    if (!plain_name(commit)) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: holds no commit", ref.string()));
    snapshot = root / "snapshots" / commit;
  }
  if (fs::is_directory(snapshot, ignored)) return snapshot.string();
  throw Error(ErrorCode::kNotFound,
              fmt::format("{}: neither a file or folder here nor a model in the Hugging Face cache (no {})", model,
                          (fs::exists(ref, ignored) ? snapshot : ref).string()));
}

}  // namespace sluice
