// API keys, and the names tenants get from them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "sluice/options.h"

namespace sluice::server {

// Accepted API keys. Only their hashes are kept; neither keys nor parts of them are ever logged.
class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);
  bool required() const { return !digests_.empty(); }
  // The tenant of a presented key: a hash of it. nullopt when it is none of the accepted ones. Takes the same time
  // whichever key is presented.
  std::optional<std::string> tenant(std::string_view key) const;

 private:
  std::vector<Sha256> digests_;
};

// The keys of --api-key, --api-key-file (one per line, '#' starts a comment line) and SLUICE_API_KEY together.
// Throws Error when the file cannot be read or holds no key.
std::vector<std::string> collect_api_keys(const ServerOptions& options);

// The key of an "Authorization: Bearer KEY" header.
std::optional<std::string_view> bearer_token(std::string_view authorization);

// Salt of the prefix cache: requests of different tenants, or with different salts of their own, share no blocks.
// Empty when both are.
std::string cache_salt(std::string_view tenant, std::string_view request_salt);

}  // namespace sluice::server
