// Finds how the device uploads.
#include "ops/upload.h"

#include <algorithm>
#include <vector>

#include "base/registry.h"

namespace sluice::ops {

void upload(Queue& queue, std::span<const UploadedBytes> all) {
  for (const Upload* kind : Registry<Upload>::all()) {
    if (kind->run(queue, all)) return;
  }
  queue.wait();
  for (const UploadedBytes& one : all) {
    std::vector<std::byte> piece(std::min(one.piece, one.bytes));
    for (size_t begin = 0; begin < one.bytes; begin += one.piece) {
      const std::span<std::byte> part = std::span(piece).first(std::min(one.piece, one.bytes - begin));
      one.read(begin, part);
      queue.device().memory().copy(one.to + begin, part.data(), part.size());
    }
  }
}

UploadedBytes bytes_of(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kPiece = size_t{64} << 10;
  return {.to = to, .bytes = bytes, .piece = kPiece, .read = [from](size_t begin, std::span<std::byte> into) {
            std::copy_n(from + begin, into.size(), into.data());
          }};
}

std::byte* place_of(const Queue& queue, const Weight& into, int64_t row, const Tensor& from) {
  for (const Upload* kind : Registry<Upload>::all()) {
    if (std::byte* place = kind->place_of(queue, into, row, from)) return place;
  }
  return nullptr;
}

}  // namespace sluice::ops
