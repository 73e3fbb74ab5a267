// Writes the lists of a batch one after the other, each with its length.
#include "engine/batch_message.h"

#include <cstring>

#include "sluice/error.h"

namespace sluice {
namespace {

static_assert(sizeof(Batch) == 15 * sizeof(std::vector<int32_t>) + sizeof(size_t), "each_list must visit every list");

// Calls visit(list) for every list of a batch.
template <class B, class F>
void each_list(B& batch, F&& visit) {
  visit(batch.tokens), visit(batch.from_sample), visit(batch.positions), visit(batch.types), visit(batch.slots);
  visit(batch.query_start), visit(batch.kv_len), visit(batch.prompt_len), visit(batch.block_table);
  visit(batch.sample_rows), visit(batch.adapters), visit(batch.sample_adapters), visit(batch.copies);
  visit(batch.state_slots), visit(batch.state_copies);
}

}  // namespace

std::vector<std::byte> to_message(const Batch& batch) {
  std::vector<std::byte> message;
  const auto append = [&](const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    message.insert(message.end(), from, from + bytes);
  };
  append(&batch.block_table_stride, sizeof batch.block_table_stride);
  append(&batch.wants_hidden, sizeof batch.wants_hidden);
  each_list(batch, [&](const auto& list) {
    const auto count = static_cast<uint32_t>(list.size());
    append(&count, sizeof count);
    append(list.data(), list.size() * sizeof list[0]);
  });
  return message;
}

Batch from_message(std::span<const std::byte> message) {
  const auto take = [&](void* to, size_t bytes) {
    if (message.size() < bytes) throw Error(ErrorCode::kInternal, "a batch from another rank is incomplete");
    if (bytes > 0) std::memcpy(to, message.data(), bytes);
    message = message.subspan(bytes);
  };
  Batch batch;
  take(&batch.block_table_stride, sizeof batch.block_table_stride);
  take(&batch.wants_hidden, sizeof batch.wants_hidden);
  each_list(batch, [&](auto& list) {
    uint32_t count = 0;
    take(&count, sizeof count);
    if (message.size() < count * sizeof list[0]) {
      throw Error(ErrorCode::kInternal, "a batch from another rank is incomplete");
    }
    list.resize(count);
    take(list.data(), count * sizeof list[0]);
  });
  if (!message.empty()) throw Error(ErrorCode::kInternal, "a batch from another rank is too long");
  return batch;
}

}  // namespace sluice
