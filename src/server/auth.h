// API keys, and the names of tenants that follow from them.
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
  // The tenant of a presented key, which is a hash of the key; nullopt when the key is not accepted. The time does not
  // depend on the key.
  std::optional<std::string> tenant(std::string_view key) const;

 private:
  std::vector<Sha256> digests_;
};

// The keys of --api-key, of --api-key-file (one per line; '#' starts a comment line) and the one key in the environment
// variable SLUICE_API_KEY. Throws Error when a key is empty, or the file cannot be read or has no key.
std::vector<std::string> collect_api_keys(const ServerOptions& options);

// The key of an "Authorization: Bearer KEY" header.
std::optional<std::string_view> bearer_token(std::string_view authorization);

// The salt of the prefix cache. Requests of different tenants, or with different salts of their own, share no blocks.
// Empty when both arguments are.
std::string cache_salt(std::string_view tenant, std::string_view request_salt);

}  // namespace sluice::server
