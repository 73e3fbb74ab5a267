// What tests do differently under a sanitizer, where code runs ten to a hundred times slower.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace sluice {

#ifndef SLUICE_SANITIZED  // tests that are not instrumented themselves define it
// GCC defines __SANITIZE_ADDRESS__ and __SANITIZE_THREAD__; clang has __has_feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLUICE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLUICE_SANITIZED 1
#endif
#endif
#ifndef SLUICE_SANITIZED
#define SLUICE_SANITIZED 0
#endif
#endif

// Times and memory then say nothing about the program.
inline constexpr bool kSanitized = SLUICE_SANITIZED != 0;

// A size for tests that run the same code many times: smaller work under a sanitizer, not fewer cases.
constexpr int64_t sized(int64_t full, int64_t sanitized) { return kSanitized ? sanitized : full; }

// The least time after which a compilation or a call may be given up: a limit of `normal` without a sanitizer.
constexpr std::chrono::milliseconds time_limit(std::chrono::milliseconds normal) {
  return kSanitized ? 20 * normal : normal;
}

// The length of an answer that would take minutes if it took quadratic time.
inline constexpr size_t kHostileBytes = static_cast<size_t>(sized(1'000'000, 100'000));

}  // namespace sluice
