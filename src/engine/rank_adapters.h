// Adapters of a model that several ranks compute. Rank 0 reads them and sends them to the others, which therefore need
// no files. They have an adapter for as long as rank 0 has it, and put it into a slot when rank 0 does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/load.h"
#include "lora/adapter.h"

namespace sluice {

// Prepares an adapter (prepare_adapter) while the engine's threads compute steps.
void prepare_apart(Adapter& adapter, const LoadedModel& model);

// Names the adapters that the other ranks have. Used by rank 0.
class SentAdapters {
 public:
  // The message that sends an adapter; empty if the others have it.
  std::vector<std::byte> send(const std::shared_ptr<const Adapter>& adapter);
  // The message that puts an adapter that was sent into a slot.
  std::vector<std::byte> place(const Adapter& adapter, int slot, float scale) const;
  // The message that drops the adapters that this rank no longer has; empty if there are none.
  std::vector<std::byte> drop();

 private:
  std::map<uint64_t, std::weak_ptr<const Adapter>> sent_;
  uint64_t next_ = 0;
};

// The adapters that rank 0 has sent. Used by the other ranks.
class ReceivedAdapters {
 public:
  explicit ReceivedAdapters(LoadedModel& model) : model_(model) {}
  // Does what a message of SentAdapters says. Throws Error, also what preparing an adapter that is placed has thrown.
  void take(std::span<const std::byte> message);

 private:
  LoadedModel& model_;
  std::map<uint64_t, std::shared_future<std::shared_ptr<const Adapter>>> received_;  // prepared beside the steps
};

}  // namespace sluice
