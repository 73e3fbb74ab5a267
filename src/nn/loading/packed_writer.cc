// Copies weight by weight, and has each written to disk before the next: memory is not filled with pages to write.
#include "nn/loading/packed_writer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace sluice {
namespace {

constexpr size_t kPiece = size_t{16} << 20;  // what is left to do when the thread is to stop

using Buffers = std::vector<std::shared_ptr<const Buffer>>;

// Returns false if it was stopped.
bool copy_all(PackedFile& file, const Buffers& weights, Memory& memory, const std::stop_token& stop) {
  for (const std::shared_ptr<const Buffer>& weight : weights) {
    std::byte* const to = file.next(weight->size());
    for (size_t at = 0; at < weight->size(); at += kPiece) {
      if (stop.stop_requested()) return false;
      const size_t count = std::min(kPiece, weight->size() - at);
      memory.copy(to + at, weight->data() + at, count);
      file.write_out({to + at, count});
    }
  }
  return true;
}

}  // namespace

PackedWriter::PackedWriter(std::shared_ptr<PackedFile> file, Buffers weights, Memory& memory)
    : thread_([file = std::move(file), weights = std::move(weights), &memory](const std::stop_token& stop) {
        try {
          file->reserve();
          if (copy_all(*file, weights, memory, stop)) file->finish(nullptr);
        } catch (const Error& e) {
          log::warning("--packed-cache: {}; the next start packs again", e.what());
        }
      }) {}

PackedWriter::~PackedWriter() = default;

}  // namespace sluice
