// The hub's downloads as sources of models; see pull_model.h.
#include "cli/pull_model.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "base/bytes.h"
#include "hub/cached_models.h"
#include "hub/download.h"
#include "hub/http_client.h"

namespace sluice::cli {
namespace {

using server::ApiError;
using server::PullFile;

std::vector<PullFile> files_of(const DownloadProgress& progress) {
  constexpr size_t kSha256Digits = 64;
  std::vector<PullFile> files;
  for (const FileProgress& file : progress.each) {
    const char* kind = file.checksum.size() == kSha256Digits ? "sha256" : "sha1";
    files.push_back({.digest = fmt::format("{}:{}", kind, file.checksum), .size = file.size, .done = file.done});
  }
  return files;
}

}  // namespace

std::optional<std::string> hub_model_name(std::string_view text) {
  const auto name = HubName::parse(text);
  if (!name || name->repository.find('/') == std::string::npos) return std::nullopt;
  return std::string(text);
}

void PullBudget::reserve(const std::string& name, uint64_t bytes) {
  if (most_bytes_ == 0 || bytes == 0) return;
  const std::lock_guard lock(mutex_);
  uint64_t sum = bytes;
  for (const CachedModel& model : cached_models()) sum += model.bytes;
  for (const auto& [_, others] : reserved_) sum += others;
  if (sum > most_bytes_) {
    throw ApiError{.status = 507,
                   .message = fmt::format("The model `{}` would make the server's cache of models {} large. "
                                          "--pull-cache-bytes allows {}.",
                                          name, format_bytes(sum), format_bytes(most_bytes_)),
                   .code = "insufficient_storage",
                   .type = "server_error"};
  }
  reserved_[name] += bytes;
}

void PullBudget::release(const std::string& name) {
  const std::lock_guard lock(mutex_);
  reserved_.erase(name);
}

std::string pull_model(const std::string& name, bool allow_bin, PullBudget& budget, server::PullProgress& progress) {
  struct Reservation {
    PullBudget& budget;
    const std::string& name;
    ~Reservation() { budget.release(name); }
  } const reservation{budget, name};
  const HubName hub = HubName::parse(name).value();
  const auto tell = [&](const DownloadProgress& now) {
    if (progress.due() || now.done_files == now.files) progress.files(files_of(now));
  };
  try {
    download_model(hub, {.allow_bin = allow_bin,
                         .progress = tell,
                         .before = [&](uint64_t bytes) { budget.reserve(name, bytes); },
                         .check = [&] { progress.check(); }});
  } catch (const hub::NetworkError& e) {
    throw Error(ErrorCode::kOverloaded, e.what());
  }
  progress.step("verifying sha256 digest");  // has been done: a file gets its name only after that
  progress.step("writing manifest");
  return resolve_hub_name(hub);
}

}  // namespace sluice::cli
