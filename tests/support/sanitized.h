// What tests do differently under a sanitizer, where code runs ten to a hundred times slower.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Times and memory then say nothing about the program.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A size for tests that run the same code many times: smaller work under a sanitizer, not fewer cases.
constexpr int64_t sized(int64_t full, int64_t sanitized) { return kSanitized ? sanitized : full; }

// The length of an answer that would take minutes if it took quadratic time.
inline constexpr size_t kHostileBytes = static_cast<size_t>(sized(1'000'000, 100'000));

}  // namespace sluice
