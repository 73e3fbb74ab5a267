// What tests do differently under a sanitizer, where code takes ten to a hundred times as long.
#pragma once

#include <cstdint>

namespace sluice {

// Times and memory then say nothing about the product.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A size or a step for a test that goes through the same code over and over: smaller work, not fewer cases.
constexpr int64_t sized(int64_t full, int64_t sanitized) { return kSanitized ? sanitized : full; }

}  // namespace sluice
