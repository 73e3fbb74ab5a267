// OpenSSL's.
#include "base/sha256.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace sluice {

Sha256 sha256(std::string_view bytes) {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Sha256 digest;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, algorithm, nullptr) == 1, "SHA-256 failed");
  return digest;
}

std::string hex(const Sha256& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace sluice
