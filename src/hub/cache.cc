// Finds models in the Hugging Face cache.
#include "hub/cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/ascii.h"
#include "base/folder.h"
#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? fs::path() : fs::path(value);
}

// Returns the GGUF type in a file name in lower case: "model-q4_k_m.gguf", "model.Q4_K_M-00001-of-00003.gguf".
std::string type_in_name(std::string_view file) {
  std::string name = ascii_lower(fs::path(file).stem().native());
  constexpr size_t kPartSize = std::string_view("-00001-of-00003").size();
  if (name.size() > kPartSize && name.compare(name.size() - 9, 4, "-of-") == 0) name.resize(name.size() - kPartSize);
  for (size_t at = name.size(); at-- > 0;) {
    const bool begin = at == 0 || name[at - 1] == '-' || name[at - 1] == '.';
    if (begin && names_quantization(std::string_view(name).substr(at))) return name.substr(at);
  }
  return {};
}

std::string not_cached(const HubName& name) {
  return fmt::format("not in the Hugging Face cache ({} does not exist)",
                     (hub_cache_folder() / name.folder() / "refs" / name.revision).string());
}

}  // namespace

bool plain_name(std::string_view name) {
  if (name.empty() || name.size() > 128 || name.front() == '.') return false;
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

bool names_quantization(std::string_view text) {
  const std::string name = ascii_lower(text);
  for (const std::string_view whole : {"f16", "bf16", "f32", "fp16", "mxfp4", "nvfp4", "mxfp4_moe"}) {
    if (name == whole) return true;
  }
  std::string_view rest = name;
  if (rest.starts_with("ud-")) rest.remove_prefix(3);
  if (rest.starts_with('i') || rest.starts_with('t')) rest.remove_prefix(1);
  return rest.size() >= 4 && rest[0] == 'q' && rest[1] >= '1' && rest[1] <= '8' && rest[2] == '_' &&
         std::ranges::all_of(rest.substr(3),
                             [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::optional<HubName> HubName::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const size_t slash = name.find('/');
  if (!plain_name(name.substr(0, slash))) return std::nullopt;
  if (slash != std::string_view::npos && !plain_name(name.substr(slash + 1))) return std::nullopt;
  HubName out{.repository = std::string(name)};
  if (colon == std::string_view::npos) return out;
  const std::string_view suffix = text.substr(colon + 1);
  if (names_quantization(suffix)) {
    out.quantization = suffix;
    return out;
  }
  const fs::path revision = suffix;
  const auto plain = [](const fs::path& part) { return plain_name(part.native()); };  // rejects "/", "..", "."
  if (suffix.empty() || !std::ranges::all_of(revision, plain)) return std::nullopt;
  out.revision = suffix;
  return out;
}

std::string HubName::folder() const {
  std::string out = "models--" + repository;
  if (const size_t slash = out.find('/'); slash != std::string::npos) out.replace(slash, 1, "--");
  return out;
}

fs::path hub_home_folder() {
  if (const fs::path home = from_environment("HF_HOME"); !home.empty()) return home;
  if (const fs::path cache = from_environment("XDG_CACHE_HOME"); !cache.empty()) return cache / "huggingface";
  return from_environment("HOME") / ".cache" / "huggingface";
}

fs::path hub_cache_folder() {
  if (const fs::path hub = from_environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  return hub_home_folder() / "hub";
}

std::optional<fs::path> find_snapshot(const HubName& name) {
  const fs::path root = hub_cache_folder() / name.folder();
  const fs::path ref = root / "refs" / name.revision;
  fs::path snapshot = root / "snapshots" / name.revision;  // if the revision is a commit
  if (std::ifstream in(ref); in) {
    std::string commit;
    in >> commit;
    if (!plain_name(commit)) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: does not contain a commit hash", ref.string()));
    }
    snapshot = root / "snapshots" / commit;
  }
  std::error_code ignored;
  return fs::is_directory(snapshot, ignored) ? std::optional(snapshot) : std::nullopt;
}

std::vector<std::string> choose_gguf(const std::vector<std::string>& files, std::string_view quantization) {
  const auto of_type = [&](std::string_view type) {
    std::vector<std::string> chosen;
    for (const std::string& file : files) {
      if (fs::path(file).extension() == ".gguf" && (type.empty() || type_in_name(file) == ascii_lower(type))) {
        chosen.push_back(file);
      }
    }
    std::ranges::sort(chosen);
    return chosen;
  };
  if (!quantization.empty()) return of_type(quantization);
  for (const std::string_view usual : {"q4_k_m", "q8_0"}) {
    if (auto chosen = of_type(usual); !chosen.empty()) return chosen;
  }
  const auto all = of_type("");
  const bool one = !all.empty() && std::ranges::all_of(all, [&](const std::string& file) {
    return type_in_name(file) == type_in_name(all.front());
  });
  return one && (all.size() == 1 || all.front().find("-of-") != std::string::npos) ? all : std::vector<std::string>();
}

std::string resolve_model_path(const std::string& model) {
  std::error_code ignored;
  if (fs::exists(model, ignored)) return model;
  const auto name = HubName::parse(model);
  if (!name) throw Error(ErrorCode::kNotFound, fmt::format("{}: no such file or folder", model));
  if (find_snapshot(*name)) return resolve_hub_name(*name);
  throw Error(ErrorCode::kNotFound, fmt::format("{}: not a local file or folder, and {}", model, not_cached(*name)));
}

std::string resolve_hub_name(const HubName& name) {
  std::error_code ignored;
  const auto snapshot = find_snapshot(name);
  if (!snapshot) throw Error(ErrorCode::kNotFound, fmt::format("{}: {}", name.repository, not_cached(name)));
  const std::vector<std::string> files = names_in(*snapshot, ignored);
  const bool other_weights = std::ranges::any_of(files, [](const std::string& file) {
    const fs::path ending = fs::path(file).extension();
    return ending == ".safetensors" || ending == ".bin";
  });
  if (name.quantization.empty() && other_weights) return snapshot->string();
  const auto chosen = choose_gguf(files, name.quantization);
  if (!chosen.empty()) return (*snapshot / chosen.front()).string();
  if (name.quantization.empty()) return snapshot->string();
  throw Error(ErrorCode::kNotFound, fmt::format("{}:{}: no GGUF file of type {} in {}", name.repository,
                                                name.quantization, name.quantization, snapshot->string()));
}

std::string model_name(const fs::path& folder) {
  constexpr std::string_view kPrefix = "models--";
  fs::path whole = fs::weakly_canonical(folder);
  if (!whole.has_filename()) whole = whole.parent_path();  // the path ends with a slash: "folder/"
  const std::string repository = whole.parent_path().parent_path().filename().string();
  if (whole.parent_path().filename() != "snapshots" || !repository.starts_with(kPrefix)) {
    return whole.filename().string();
  }
  const std::string_view name = std::string_view(repository).substr(kPrefix.size());
  const size_t dashes = name.find("--");
  if (dashes == std::string_view::npos) return std::string(name);
  return fmt::format("{}/{}", name.substr(0, dashes), name.substr(dashes + 2));
}

}  // namespace sluice
