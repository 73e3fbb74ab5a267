// Computes SHA-256 with OpenSSL.
#include "base/sha256.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <memory>
#include <new>

namespace sluice {
namespace {

// Everything that OpenSSL is asked for here fails only for lack of memory.
template <class T>
T* or_bad_alloc(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return object;
}

}  // namespace

Sha256 sha256(std::initializer_list<std::string_view> pieces) {
  static const EVP_MD* const algorithm = or_bad_alloc(EVP_MD_fetch(nullptr, "SHA256", nullptr));
  // Creating a context takes as long as hashing a short text, so each thread keeps one.
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(or_bad_alloc(EVP_MD_CTX_new()),
                                                                                     EVP_MD_CTX_free);
  Sha256 digest;
  bool ok = EVP_DigestInit_ex(context.get(), algorithm, nullptr) == 1;
  for (const std::string_view bytes : pieces)
    ok = ok && EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1;
  if (!ok || EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) throw std::bad_alloc();
  return digest;
}

std::string hex(const Sha256& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace sluice
