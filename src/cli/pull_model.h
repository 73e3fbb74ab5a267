// Downloads that requests ask a server for: names, progress and the room on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/pulls.h"

namespace sluice::cli {

// The text, if it is org/name[:revision or GGUF type].
std::optional<std::string> hub_model_name(std::string_view text);

// How large downloads may make the Hugging Face cache. Thread-safe.
class PullBudget {
 public:
  explicit PullBudget(uint64_t most_bytes) : most_bytes_(most_bytes) {}  // 0: no limit

  // Reserves `bytes` for a download until release(). Bytes that have come count twice until then, so that downloads
  // beside each other never exceed the limit. Throws ApiError (507) if the cache would be too large.
  void reserve(const std::string& name, uint64_t bytes);
  void release(const std::string& name);

 private:
  const uint64_t most_bytes_;
  std::mutex mutex_;
  std::map<std::string, uint64_t> reserved_;
};

// Downloads a model of the hub into the cache, and returns its folder or file. A file of this name on this machine does
// not count. Throws Error, ApiError, and what `progress` throws.
std::string pull_model(const std::string& name, bool allow_bin, PullBudget& budget, server::PullProgress& progress);

}  // namespace sluice::cli
