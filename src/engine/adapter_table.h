// The adapters that requests may name.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/load.h"
#include "lora/adapter.h"
#include "scheduler/adapter_slots.h"
#include "sluice/engine.h"

namespace sluice {

// Thread-safe.
class AdapterTable {
 public:
  // Called on the caller's thread with an adapter that was read, before it is prepared (lora/adapter.h).
  using OnRead = std::function<void(std::shared_ptr<const Adapter>)>;
  // Keeps at most `most` adapters in host memory, those that were asked for last; 0: all. The model must outlive the
  // table.
  AdapterTable(const LoadedModel& model, int most, OnRead on_read)
      : model_(model), most_(static_cast<size_t>(most)), on_read_(std::move(on_read)) {}

  // See Engine::load_adapter.
  void load(const std::string& name, const std::string& folder);
  bool unload(std::string_view name);
  std::vector<AdapterInfo> all() const;  // in the order in which they came

  // Returns the adapter, which it may read on the caller's thread. Throws Error(kNotFound) for an unknown name and
  // Error(kCorruptFile) if the folder's files have changed.
  std::shared_ptr<const Adapter> get(const std::string& name);
  // The adapter that the request names; nothing if it names none, or one that changes nothing of it. The request gets
  // a salt if the adapter changes all tokens. Throws as get() does, and Error(kInvalidRequest) for fields that do not
  // work with the adapter.
  RequestAdapter of(Request& request);

 private:
  struct Entry {
    AdapterInfo info;
    std::string digest;
    std::shared_ptr<const Adapter> adapter;  // null: it is not in memory
    uint64_t last_asked = 0;
  };
  std::shared_ptr<const Adapter> read(const std::string& folder) const;
  Entry* find(std::string_view name);  // with the mutex held
  void keep(Entry& entry, std::shared_ptr<const Adapter> adapter);

  const LoadedModel& model_;
  const size_t most_;
  const OnRead on_read_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  uint64_t asked_ = 0;
};

// "name=path" in its two parts. Throws Error(kInvalidRequest).
std::pair<std::string, std::string> parse_lora_module(const std::string& text);

}  // namespace sluice
