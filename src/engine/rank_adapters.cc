// A message is a verb, the number of an adapter and what the verb needs.
#include "engine/rank_adapters.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
#include "lora/adapter_message.h"
#include "sluice/error.h"

namespace sluice {
namespace {

enum class Verb : uint32_t { kSend, kPlace, kDrop };

}  // namespace

void prepare_apart(Adapter& adapter, const LoadedModel& model) {
  ThreadPool caller(1, /*pin=*/false);  // the engine's threads are busy
  const std::unique_ptr<ops::Queue> queue = model.plan.device->make_queue(caller);
  prepare_adapter(adapter, *model.adapters, *model.plan.checkpoint, *queue);
  queue->wait();
}

std::vector<std::byte> SentAdapters::send(const std::shared_ptr<const Adapter>& adapter) {
  for (const auto& [number, sent] : sent_) {
    if (sent.lock() == adapter) return {};
  }
  sent_.emplace(++next_, adapter);
  MessageWriter write;
  write(Verb::kSend), write(next_);
  write_adapter(write, *adapter);
  return std::move(write.message);
}

std::vector<std::byte> SentAdapters::place(const Adapter& adapter, int slot, float scale) const {
  const auto found =
      std::ranges::find_if(sent_, [&](const auto& sent) { return sent.second.lock().get() == &adapter; });
  CHECK(found != sent_.end(), "the other ranks do not have {}", adapter.folder);
  MessageWriter write;
  write(Verb::kPlace), write(found->first), write(slot), write(scale);
  return std::move(write.message);
}

std::vector<std::byte> SentAdapters::drop() {
  std::vector<uint64_t> gone;
  std::erase_if(sent_, [&](const auto& sent) {
    if (sent.second.expired()) gone.push_back(sent.first);
    return sent.second.expired();
  });
  if (gone.empty()) return {};
  MessageWriter write;
  write(Verb::kDrop), write(gone);
  return std::move(write.message);
}

void ReceivedAdapters::take(std::span<const std::byte> message) {
  MessageReader read{message};
  Verb verb = Verb::kDrop;
  read(verb);
  if (verb == Verb::kDrop) {
    std::vector<uint64_t> gone;
    read(gone), read.end();
    for (const uint64_t number : gone) received_.erase(number);
    return;
  }
  uint64_t number = 0;
  read(number);
  if (verb == Verb::kSend) {
    const std::shared_ptr<Adapter> adapter = receive_adapter(read);
    received_.emplace(number, std::async(std::launch::async, [this, adapter]() -> std::shared_ptr<const Adapter> {
                        prepare_apart(*adapter, model_);
                        return adapter;
                      }));
    return;
  }
  int slot = 0;
  float scale = 1;
  read(slot), read(scale), read.end();
  const auto found = received_.find(number);
  if (found == received_.end()) throw Error(ErrorCode::kInternal, "rank 0 did not send an adapter that it places");
  place_adapter(found->second.get().get(), slot, scale, *model_.adapters, *model_.plan.queue);
}

}  // namespace sluice
