// One file of the hub on its way into the cache: resumed, checked, renamed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "hub/http_client.h"

namespace sluice::hub {

struct RemoteFile {
  std::string name;      // in the repository
  Url url;               // of its content at one commit
  std::string checksum;  // hex: SHA-256 of the content (64 digits) or the SHA-1 that Git gives a blob (40 digits)
  uint64_t size = 0;
};

// Asks for a file's checksum and size. Throws Error for 401, 403, 404 and answers without a checksum; tries again what
// may succeed later (cuts, 429 with Retry-After, 5xx).
RemoteFile ask_for_file(const std::string& name, const Url& url, const std::string& token);

// Downloads into folder/<checksum> unless that is there, through folder/<checksum>.incomplete; `lock` is a file held
// meanwhile, so that no other process does the same. `on_bytes` counts bytes as they are there (found ones too), less
// those that turn out wrong. Throws Error.
void download_blob(const RemoteFile& file, const std::filesystem::path& folder, const std::filesystem::path& lock,
                   const std::string& token, const std::function<void(int64_t)>& on_bytes);

// f(), again after a pause when it throws NetworkError, five times in all.
void with_retries(const std::function<void()>& f);

// An answer that is no success, as what the person can do about it; NetworkError for what may succeed later, after the
// pause that Retry-After asks for.
void check_status(const HttpResponse& response, const std::string& what);

}  // namespace sluice::hub
