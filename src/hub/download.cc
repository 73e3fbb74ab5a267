// Downloads models from the Hugging Face hub: lists a repository, chooses files, fetches them in parallel, links the
// snapshot.
#include "hub/download.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/bytes.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/log.h"
#include "hub/blob.h"
#include "hub/http_client.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using hub::RemoteFile;
using hub::Url;

constexpr size_t kMaxAnswer = 32u << 20;
constexpr uint64_t kHeadroom = 64u << 20;  // bytes to leave free on the disk

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_set(const char* name) {
  std::string value = environment(name);
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string endpoint() {
  std::string url = environment("HF_ENDPOINT");
  while (url.ends_with('/')) url.pop_back();
  return url.empty() ? "https://huggingface.co" : url;
}

// Returns the token that the user's login stored, unless the environment overrides it.
std::string token() {
  if (is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return {};
  std::string value = environment("HF_TOKEN");
  if (value.empty()) value = environment("HUGGING_FACE_HUB_TOKEN");
  if (value.empty()) {
    const std::string path = environment("HF_TOKEN_PATH");
    std::ifstream in(path.empty() ? hub_home_folder() / "token" : fs::path(path));
    in >> value;
  }
  const bool printable = std::ranges::all_of(value, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!printable) {
    throw Error(ErrorCode::kInvalidRequest, "HF_TOKEN: invalid characters (expected printable ASCII without spaces)");
  }
  return value;
}

// Escapes a revision or file name for use in the path of a URL.
std::string escape(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || c == '.' || c == '~' || (c == '/' && keep_slashes);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// Returns whether a repository file's name stays inside the folder where it is created.
bool leads_inside(std::string_view name) {
  if (name.empty() || name.size() > 1024 || name.front() == '/' || name.back() == '/') return false;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f' || c == '\\') return false;
  }
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    at = end + 1;
  }
  return true;
}

bool describes_model(std::string_view file) {
  constexpr std::string_view kNames[] = {"config.json",
                                         "generation_config.json",
                                         "params.json",
                                         "tokenizer.json",
                                         "tekken.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "tokenizer.model",
                                         "spiece.model",
                                         "tiktoken.model",
                                         "vocab.json",
                                         "merges.txt",
                                         "encoder.json",
                                         "vocab.bpe",
                                         "vocab.txt",
                                         "chat_template.json",
                                         "chat_template.jinja",
                                         "adapter_config.json"};
  if (std::ranges::find(kNames, file) != std::end(kNames)) return true;
  if (file.find('/') == std::string_view::npos) return file.ends_with(".tiktoken");
  return file.starts_with("additional_chat_templates/") && file.ends_with(".jinja");
}

// Returns the top-level files of a repository with the given ending. If some have the standard names of a model's
// weights ("model.safetensors", "model-00001-of-00002.safetensors"), returns only those. This excludes variants and
// copies in other formats.
std::vector<std::string> weights(const std::vector<std::string>& all, std::string_view stem, std::string_view ending) {
  std::vector<std::string> any, usual;
  for (const std::string& file : all) {
    if (file.find('/') != std::string::npos || !file.ends_with(ending)) continue;
    any.push_back(file);
    const std::string_view middle = std::string_view(file).substr(0, file.size() - ending.size());
    if (!middle.starts_with(stem)) continue;
    const std::string_view rest = middle.substr(stem.size());
    if (rest.empty() || (rest.front() == '-' && rest.find("-of-") != std::string_view::npos)) usual.push_back(file);
  }
  std::vector<std::string>& chosen = usual.empty() ? any : usual;
  const std::string index = fmt::format("{}{}.index.json", stem, ending);
  if (!chosen.empty() && std::ranges::count(all, index) > 0) chosen.push_back(index);
  return chosen;
}

// A name for temporary files that no other download has, in this process or another.
std::string own_suffix() {
  static std::atomic<uint64_t> next{0};
  return fmt::format("{}-{}", ::getpid(), next++);
}

class Download {
 public:
  Download(const HubName& name, const DownloadOptions& options)
      : name_(name),
        options_(options),
        endpoint_(endpoint()),
        token_(token()),
        root_(hub_cache_folder() / name.folder()),
        locks_(hub_cache_folder() / ".locks" / name.folder()) {}

  fs::path run() {
    ask_for_repository();
    for (const fs::path& folder : {root_ / "blobs", root_ / "refs", root_ / "snapshots" / commit_, locks_}) {
      fs::create_directories(folder);
    }
    in_parallel([&](size_t i) {
      const Url url = Url::parse(fmt::format("{}/{}/resolve/{}/{}", endpoint_, name_.repository, commit_,
                                             escape(names_[i], /*keep_slashes=*/true)));
      files_[i] = hub::ask_for_file(names_[i], url, token_, options_.check);
    });
    check_space();
    report(0, 0, 0);
    in_parallel([&](size_t i) {
      hub::download_blob(files_[i], root_ / "blobs", locks_ / (files_[i].checksum + ".lock"),
                         {.token = token_,
                          .on_bytes = [&](int64_t bytes) { report(i, bytes, 0); },
                          .verify = options_.verify,
                          .check = options_.check});
      report(i, 0, 1);
    });
    for (const RemoteFile& file : files_) link(file);
    write_ref();
    return root_ / "snapshots" / commit_;
  }

 private:
  void ask_for_repository() {
    const Url url = Url::parse(fmt::format("{}/api/models/{}/revision/{}", endpoint_, name_.repository,
                                           escape(name_.revision, /*keep_slashes=*/false)));
    const std::string what = fmt::format("{} (revision {})", name_.repository, name_.revision);
    std::string answer;
    const auto ask = [&] {
      answer.clear();
      hub::perform(
          {.url = url, .token = token_, .check = options_.check},
          [&](const hub::HttpResponse& head) { hub::check_status(head, what); },
          [&](std::string_view bytes) {
            if (answer.size() + bytes.size() > kMaxAnswer) {
              throw Error(ErrorCode::kInternal,
                          fmt::format("{}: the hub's answer is too long (limit {})", what, format_bytes(kMaxAnswer)));
            }
            answer += bytes;
          });
    };
    hub::with_retries(ask, options_.check);
    read_repository(answer, what);
  }

  // Expected answer: {"sha": commit, "siblings": [{"rfilename": name}, ...], ...}
  void read_repository(const std::string& answer, const std::string& what) {
    const auto fail = [&](std::string_view why) {
      throw Error(ErrorCode::kInternal, fmt::format("{}: the hub's answer {}", what, why));
    };
    Json json;
    try {
      json = parse_json(answer);
    } catch (const Error& e) {
      fail(fmt::format("is not JSON: {}", e.what()));
    }
    if (!json.is_object() || !json.contains("sha") || !json["sha"].is_string()) {
      fail("does not name a commit ('sha' is missing)");
    }
    commit_ = json["sha"].get<std::string>();
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (commit_.size() != 40 || !std::ranges::all_of(commit_, hex)) {
      fail("does not name a commit ('sha' is not 40 hexadecimal digits)");
    }
    if (!json.contains("siblings") || !json["siblings"].is_array()) fail("does not list files ('siblings' is missing)");
    std::vector<std::string> all;
    for (const Json& sibling : json["siblings"]) {
      if (!sibling.is_object() || !sibling.contains("rfilename") || !sibling["rfilename"].is_string()) {
        fail("lists a file without a name");
      }
      all.push_back(sibling["rfilename"].get<std::string>());
    }
    names_ = choose_files(all, name_, options_);
    files_.resize(names_.size());
  }

  // Calls f(i) for every file, several at a time. After an error it starts no further calls, and throws the first
  // error.
  void in_parallel(const std::function<void(size_t)>& f) {
    std::atomic<size_t> next{0};
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&] {
      for (size_t i; (i = next++) < names_.size();) {
        try {
          f(i);
        } catch (...) {
          const std::scoped_lock lock(mutex);
          if (!error) error = std::current_exception();
          next = names_.size();
        }
      }
    };
    {
      std::vector<std::jthread> workers;
      for (int i = 1; i < std::clamp(options_.parallel, 1, 16); ++i) workers.emplace_back(work);
      work();
    }
    if (error) std::rethrow_exception(error);
  }

  void check_space() {
    uint64_t missing = 0;
    std::error_code error;
    for (const RemoteFile& file : files_) {
      progress_.total_bytes += file.size;
      progress_.each.push_back({.name = file.name, .checksum = file.checksum, .size = file.size});
      const fs::path blob = root_ / "blobs" / file.checksum;
      const uint64_t whole = fs::file_size(blob, error);
      if (!error && whole == file.size) continue;
      const uint64_t part = fs::file_size(blob.string() + ".incomplete", error);
      missing += file.size - (error ? 0 : std::min(part, file.size));
    }
    progress_.files = static_cast<int>(files_.size());
    const fs::space_info disk = fs::space(root_, error);
    if (!error && missing > 0 && disk.available < missing + kHeadroom) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("{}: not enough disk space: {} free, {} needed for {}", root_.string(),
                              format_bytes(disk.available), format_bytes(missing + kHeadroom), name_.repository));
    }
    if (options_.before) options_.before(missing);
  }

  // `file` has got so many bytes more.
  void report(size_t file, int64_t bytes, int files) {
    const std::scoped_lock lock(progress_mutex_);
    progress_.done_bytes += static_cast<uint64_t>(bytes);
    if (file < progress_.each.size()) progress_.each[file].done += static_cast<uint64_t>(bytes);
    progress_.done_files += files;
    if (options_.progress) options_.progress(progress_);
  }

  // Creates snapshots/<commit>/<name> as a relative link to blobs/<checksum>. Existing links are never written through.
  void link(const RemoteFile& file) const {
    fs::path folder = root_ / "snapshots" / commit_;
    fs::path target = "../..";
    const fs::path name = file.name;
    for (const fs::path& part : name.parent_path()) {
      folder /= part;
      target /= "..";
      if (fs::is_symlink(fs::symlink_status(folder))) {
        throw Error(ErrorCode::kCorruptFile, fmt::format("{}: is a symbolic link, expected a folder", folder.string()));
      }
      fs::create_directory(folder);
    }
    const fs::path temporary = folder / fmt::format(".{}.{}", file.checksum, own_suffix());
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fs::create_symlink(target / "blobs" / file.checksum, temporary);
    fs::rename(temporary, folder / name.filename());
  }

  void write_ref() const {
    if (name_.revision == commit_) return;
    const fs::path ref = root_ / "refs" / name_.revision;
    fs::create_directories(ref.parent_path());
    const fs::path temporary = fmt::format("{}.{}", ref.string(), own_suffix());
    std::ofstream out(temporary);
    out << commit_;
    out.close();
    if (!out) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write file", temporary.string()));
    fs::rename(temporary, ref);
  }

  const HubName name_;
  const DownloadOptions& options_;
  const std::string endpoint_, token_;
  const fs::path root_, locks_;
  std::string commit_;
  std::vector<std::string> names_;
  std::vector<RemoteFile> files_;  // one entry per file name
  std::mutex progress_mutex_;
  DownloadProgress progress_;
};

// Returns whether the snapshot has everything the model needs, as far as this can be determined offline.
bool has_weights(const fs::path& snapshot, const HubName& name) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const std::string& file : names_in(snapshot, ignored)) {
    if (fs::exists(snapshot / file, ignored)) files.push_back(file);
  }
  if (!name.quantization.empty()) return !choose_gguf(files, name.quantization).empty();
  return std::ranges::any_of(files, [](const std::string& file) {
    const fs::path ending = fs::path(file).extension();
    return ending == ".safetensors" || ending == ".gguf" || ending == ".bin";
  });
}

}  // namespace

bool hub_offline() { return is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"); }

std::vector<std::string> choose_files(const std::vector<std::string>& all, const HubName& name,
                                      const DownloadOptions& options) {
  std::vector<std::string> chosen;
  for (const std::string& file : all) {
    if (!leads_inside(file)) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the repository lists {}, which is not a valid file name",
                                                       name.repository, dump_json(file.substr(0, 200))));
    }
    if (describes_model(file)) chosen.push_back(file);
  }
  if (options.text_only) return chosen;
  std::vector<std::string> found;
  if (name.quantization.empty()) {
    found = weights(all, "model", ".safetensors");
    const auto bin = weights(all, "pytorch_model", ".bin");
    if (found.empty()) found = choose_gguf(all, "");
    if (found.empty() && options.allow_bin) found = bin;
    if (found.empty() && !bin.empty()) {
      throw Error(ErrorCode::kUnsupportedModel,
                  fmt::format("{}: the weights are Python pickles ({}); pass --allow-bin to accept them",
                              name.repository, bin.front()));
    }
  } else {
    found = choose_gguf(all, name.quantization);
  }
  if (found.empty()) {
    std::string gguf;
    for (const std::string& file : all) {
      if (file.ends_with(".gguf")) gguf += (gguf.empty() ? "" : ", ") + file;
    }
    const std::string kind = name.quantization.empty() ? "" : " of type " + name.quantization;
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: no supported weights{} found{}", name.repository, kind,
                            gguf.empty() ? "" : "; choose one of its GGUF files with NAME:TYPE: " + gguf));
  }
  chosen.insert(chosen.end(), found.begin(), found.end());
  return chosen;
}

fs::path download_model(const HubName& name, const DownloadOptions& options) {
  if (hub_offline()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: cannot download because HF_HUB_OFFLINE is set", name.repository));
  }
  try {
    return Download(name, options).run();
  } catch (const fs::filesystem_error& e) {
    throw Error(ErrorCode::kInternal, e.what());
  }
}

std::string fetch_model(const std::string& model, const DownloadOptions& options) {
  std::error_code ignored;
  const auto name = HubName::parse(model);
  if (fs::exists(model, ignored) || !name) return resolve_model_path(model);
  const auto snapshot = find_snapshot(*name);
  if (snapshot && (options.text_only || has_weights(*snapshot, *name))) return resolve_model_path(model);
  if (hub_offline()) return resolve_model_path(model);
  try {
    download_model(*name, options);
  } catch (const Error& e) {
    throw Error(e.code, fmt::format("{}: not a local file or folder, and cannot download it from the hub: {}", model,
                                    e.what()));
  }
  return resolve_model_path(model);
}

}  // namespace sluice
