// Downloads one file of the hub into the cache: resumes, checks the checksum, renames.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "hub/http_client.h"

namespace sluice::hub {

struct RemoteFile {
  std::string name;      // path in the repository
  Url url;               // URL of the content at one commit
  std::string checksum;  // hex: SHA-256 of the content (64 digits) or the SHA-1 that Git gives a blob (40 digits)
  uint64_t size = 0;
};

// Requests a file's checksum and size. Throws Error for status 401, 403 and 404, and for answers without a checksum.
// Retries errors that may be temporary (closed connections, 429 with Retry-After, 5xx).
RemoteFile ask_for_file(const std::string& name, const Url& url, const std::string& token, const Check& check = {});

struct BlobOptions {
  std::string token{};
  // Receives the number of bytes added, existing ones included; negative for bytes that are discarded.
  std::function<void(int64_t)> on_bytes;
  bool verify = false;  // compute an existing file's checksum, and replace a damaged file
  Check check{};
};

// Downloads into folder/<checksum>, unless that file exists, by way of folder/<checksum>.incomplete. `lock` is a file
// that stays locked meanwhile, so that nobody else downloads the same blob. Throws Error, and what the callbacks throw.
void download_blob(const RemoteFile& file, const std::filesystem::path& folder, const std::filesystem::path& lock,
                   const BlobOptions& options);

// Calls f(). When it throws NetworkError, calls it again after a pause, up to five times in total.
void with_retries(const std::function<void()>& f, const Check& check = {});

// Throws an Error that tells the user what to do when the status is not a success. Throws NetworkError when a retry may
// succeed, with the pause that Retry-After requests.
void check_status(const HttpResponse& response, const std::string& what);

}  // namespace sluice::hub
