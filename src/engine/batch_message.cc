// Writes the lists of a batch one after the other, each with its length.
#include "engine/batch_message.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/error.h"

namespace sluice {
namespace {

static_assert(sizeof(Batch) == 17 * sizeof(std::vector<int32_t>) + sizeof(size_t),
              "each_list must visit every list but `given`");

// Calls visit(list) for every list of a batch.
template <class B, class F>
void each_list(B& batch, F&& visit) {
  visit(batch.tokens), visit(batch.from_sample), visit(batch.positions), visit(batch.types), visit(batch.slots);
  visit(batch.query_start), visit(batch.kv_len), visit(batch.prompt_len), visit(batch.block_table);
  visit(batch.sample_rows), visit(batch.adapters), visit(batch.sample_adapters), visit(batch.copies);
  visit(batch.token_copies), visit(batch.state_slots), visit(batch.state_copies);
}

}  // namespace

std::vector<std::byte> to_message(const Batch& batch) {
  std::vector<std::byte> message;
  const auto append = [&](const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    message.insert(message.end(), from, from + bytes);
  };
  const auto append_count = [&](size_t size) {
    const auto count = static_cast<uint32_t>(size);
    append(&count, sizeof count);
  };
  append(&batch.block_table_stride, sizeof batch.block_table_stride);
  append(&batch.wants_hidden, sizeof batch.wants_hidden);
  each_list(batch, [&](const auto& list) {
    append_count(list.size());
    append(list.data(), list.size() * sizeof list[0]);
  });
  append_count(batch.given.size());
  for (const GivenRows& given : batch.given) {
    append(&given.row, sizeof given.row);
    append(&given.count, sizeof given.count);
    append_count(given.values.size());
    append(given.values.data(), given.values.size_bytes());
  }
  return message;
}

Batch from_message(std::span<const std::byte> message) {
  const auto take = [&](void* to, size_t bytes) {
    if (message.size() < bytes) throw Error(ErrorCode::kInternal, "a batch from another rank is incomplete");
    if (bytes > 0) std::memcpy(to, message.data(), bytes);
    message = message.subspan(bytes);
  };
  const auto take_list = [&](auto& list) {
    uint32_t count = 0;
    take(&count, sizeof count);
    if (message.size() < count * sizeof list[0]) {
      throw Error(ErrorCode::kInternal, "a batch from another rank is incomplete");
    }
    list.resize(count);
    take(list.data(), count * sizeof list[0]);
  };
  Batch batch;
  take(&batch.block_table_stride, sizeof batch.block_table_stride);
  take(&batch.wants_hidden, sizeof batch.wants_hidden);
  each_list(batch, take_list);
  uint32_t parts = 0;
  take(&parts, sizeof parts);
  for (uint32_t i = 0; i < parts; ++i) {
    GivenRows given;
    take(&given.row, sizeof given.row);
    take(&given.count, sizeof given.count);
    const auto values = std::make_shared<std::vector<float>>();
    take_list(*values);
    given.values = *values;
    given.owner = values;
    batch.given.push_back(std::move(given));
  }
  if (!message.empty()) throw Error(ErrorCode::kInternal, "a batch from another rank is too long");
  return batch;
}

}  // namespace sluice
