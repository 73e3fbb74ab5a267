// Reading of keys, and their comparison in constant time by OpenSSL.
#include "server/auth.h"

#include <fmt/core.h>
#include <openssl/crypto.h>

#include <cstdlib>
#include <fstream>

#include "server/http/http.h"
#include "sluice/error.h"

namespace sluice::server {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(sha256(key));
}

std::optional<std::string> ApiKeys::tenant(std::string_view key) const {
  const Sha256 presented = sha256(key);
  bool known = false;
  for (const Sha256& digest : digests_) known |= CRYPTO_memcmp(presented.data(), digest.data(), digest.size()) == 0;
  if (!known) return std::nullopt;
  return hex(presented);
}

std::vector<std::string> collect_api_keys(const ServerOptions& options) {
  std::vector<std::string> keys;
  const auto add = [&](std::string_view key) {
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ' || key.back() == '\t')) key.remove_suffix(1);
    if (!key.empty()) keys.emplace_back(key);
  };
  for (const std::string& key : options.api_key) {
    if (key.empty()) throw Error(ErrorCode::kInvalidRequest, "--api-key: the key is empty", "api-key", "");
    add(key);
  }
  if (!options.api_key_file.empty()) {
    const size_t before = keys.size();
    std::ifstream file(options.api_key_file);
    std::string line;
    while (std::getline(file, line)) {
      if (!line.starts_with('#')) add(line);
    }
    if (keys.size() == before) {
      throw Error(ErrorCode::kInvalidRequest,
                  fmt::format("--api-key-file: {} cannot be read or has no key", options.api_key_file), "api-key-file",
                  "");
    }
  }
  if (const char* key = std::getenv("SLUICE_API_KEY")) add(key);
  return keys;
}

std::optional<std::string_view> bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (!equals_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  return authorization.substr(kScheme.size());
}

std::string cache_salt(std::string_view tenant, std::string_view request_salt) {
  if (tenant.empty() && request_salt.empty()) return {};
  // The tenant is empty or has a fixed length, so no two pairs make the same text.
  return hex(sha256(fmt::format("sluice cache salt\n{}\n{}", tenant, request_salt)));
}

}  // namespace sluice::server
