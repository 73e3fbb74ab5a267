// Copies from the host to a device at the speed of the bus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "ops/device.h"
#include "tensor/tensor.h"

namespace sluice::ops {

struct Weight;

// Bytes for a device. read(begin, into) writes those from `begin` on; several threads call it at the same time. Pieces
// are not cut: `begin` is a multiple of `piece`, and so is its end, except the last one.
struct UploadedBytes {
  std::byte* to = nullptr;      // memory of the device
  size_t bytes = 0, piece = 1;  // a piece has at most 1 MiB
  std::function<void(size_t begin, std::span<std::byte> into)> read{};
};

// How a kind of device does it. Backends register what they have.
struct Upload {
  std::string_view name;
  // See upload() and place_of(). Return false or null, having done nothing, if the queue is not one of this kind of
  // device.
  bool (*run)(Queue& queue, std::span<const UploadedBytes> all) = nullptr;
  std::byte* (*place_of)(const Queue& queue, const Weight& into, int64_t row, const Tensor& from) = nullptr;
};

// Copies to the memory of the queue's device. Returns when all bytes have been read. The queue orders the copies with
// its ops. Throws what read() throws.
void upload(Queue& queue, std::span<const UploadedBytes> all);
// Bytes of host memory that is not pinned.
UploadedBytes bytes_of(std::byte* to, const std::byte* from, size_t bytes);

// Returns where MatmulKernels::pack would copy the bytes of `from`, if it does nothing else with them; otherwise null.
std::byte* place_of(const Queue& queue, const Weight& into, int64_t row, const Tensor& from);

}  // namespace sluice::ops
