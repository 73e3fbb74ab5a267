// Indices that ops read: token ids, positions, slots, block tables.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::ops {

// Indices in the host's memory, and the same ones where the ops' device reads them. Without the latter a backend whose
// memory is not the host's copies them for each op.
struct Indices : std::span<const int32_t> {
  using std::span<const int32_t>::span;
  Indices(std::span<const int32_t> host, const int32_t* on_device = nullptr)
      : std::span<const int32_t>(host), device(on_device) {}
  // `count` of them from `begin` on.
  Indices part(size_t begin, size_t count) const {
    return {subspan(begin, count), device != nullptr ? device + begin : nullptr};
  }

  const int32_t* device = nullptr;
};

}  // namespace sluice::ops
