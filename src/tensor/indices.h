// A list of int32 indices: token ids, positions, slots, block tables.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// Indices in host memory, and optionally a copy of them in device memory. If there is no device copy, a backend that
// cannot read host memory copies the indices for each op. Owns nothing.
struct Indices : std::span<const int32_t> {
  using std::span<const int32_t>::span;
  Indices(std::span<const int32_t> host, const int32_t* on_device = nullptr)
      : std::span<const int32_t>(host), device(on_device) {}
  // The `count` indices that start at `begin`.
  Indices part(size_t begin, size_t count) const {
    return {subspan(begin, count), device != nullptr ? device + begin : nullptr};
  }

  const int32_t* device = nullptr;
};

}  // namespace sluice
