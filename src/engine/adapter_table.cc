// Names of adapters, and which of them are in host memory.
#include "engine/adapter_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "engine/rank_adapters.h"
#include "sluice/error.h"

namespace sluice {
namespace {

[[noreturn]] void refuse_name(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message, "lora_name", "");
}

// Where an adapter begins is a place in the prompt's tokens.
void check_activated(const Request& request) {
  const auto refuse = [&](const char* field, const char* why) {
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format(
            "Invalid '{}': it does not work with the adapter '{}', which begins at its alora_invocation_tokens: {}.",
            field, request.adapter, why),
        field, "invalid_value");
  };
  if (request.prompt_vectors != nullptr) refuse("prompt_embeds", "vectors have no tokens");
  if (request.context_shift.value_or(false)) refuse("context_shift", "these may be dropped");
  if (request.kv_transfer) refuse("kv_transfer_params", "rows are named as those of the model");
}

void check_scale(const Request& request, const Adapter& adapter) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("Invalid 'lora': {}", why), "lora", "invalid_value");
  };
  if (!std::isfinite(request.adapter_scale)) refuse("expected a finite scale.");
  if (request.adapter_scale == 1) return;
  const Adapter::Module* module = unscalable_module(adapter);
  if (module == nullptr) return;
  refuse(
      fmt::format("expected the scale 0 or 1 of the adapter '{}', but got {}. Its module '{}' has more than lora_A "
                  "and lora_B of a linear layer.",
                  request.adapter, request.adapter_scale, module->name));
}

// What the keys of blocks say about the adapter.
std::string key_of(const RequestAdapter& adapter) {
  const std::string scale = adapter.scale == 1 ? "" : fmt::format(" times {}", adapter.scale);
  return fmt::format("adapter {}{}", adapter.adapter->digest, scale);
}

}  // namespace

std::shared_ptr<const Adapter> AdapterTable::read(const std::string& folder) const {
  std::shared_ptr<Adapter> adapter = read_adapter(folder);
  name_modules(*adapter, *model_.plan.checkpoint);
  check_adapter(*adapter, *model_.adapters, *model_.plan.checkpoint);
  on_read_(adapter);
  prepare_apart(*adapter, model_);
  return adapter;
}

AdapterTable::Entry* AdapterTable::find(std::string_view name) {
  const auto found = std::ranges::find(entries_, name, [](const Entry& e) -> std::string_view { return e.info.name; });
  return found == entries_.end() ? nullptr : &*found;
}

void AdapterTable::load(const std::string& name, const std::string& folder) {
  if (model_.adapters == nullptr) refuse_name("The engine has no adapters: start it with --enable-lora.");
  if (name.empty()) refuse_name("An adapter needs a name.");
  const auto check_new = [&] {
    if (find(name) != nullptr) refuse_name(fmt::format("The lora adapter '{}' has already been loaded.", name));
  };
  {
    const std::scoped_lock lock(mutex_);
    check_new();
  }
  std::shared_ptr<const Adapter> adapter = read(folder);
  const std::scoped_lock lock(mutex_);
  check_new();
  Entry& entry = entries_.emplace_back();
  entry.info = {.name = name, .folder = folder, .rank = adapter->rank};
  if (const Adapter::Module* module = unscalable_module(*adapter)) entry.info.unscalable = module->name;
  entry.digest = adapter->digest;
  keep(entry, std::move(adapter));
}

bool AdapterTable::unload(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  return std::erase_if(entries_, [&](const Entry& e) { return e.info.name == name; }) > 0;
}

std::vector<AdapterInfo> AdapterTable::all() const {
  const std::scoped_lock lock(mutex_);
  std::vector<AdapterInfo> out;
  for (const Entry& entry : entries_) out.push_back(entry.info);
  return out;
}

std::shared_ptr<const Adapter> AdapterTable::get(const std::string& name) {
  const auto missing = [&] {
    return Error(ErrorCode::kNotFound, fmt::format("The lora adapter '{}' does not exist.", name), "model",
                 "model_not_found");
  };
  AdapterInfo info;
  std::string digest;
  {
    const std::scoped_lock lock(mutex_);
    Entry* entry = find(name);
    if (entry == nullptr) throw missing();
    entry->last_asked = ++asked_;
    if (entry->adapter != nullptr) return entry->adapter;
    info = entry->info;
    digest = entry->digest;
  }
  std::shared_ptr<const Adapter> adapter = read(info.folder);
  if (adapter->digest != digest) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: the adapter's files have changed since it was loaded: unload it first", info.folder));
  }
  const std::scoped_lock lock(mutex_);
  Entry* entry = find(name);
  if (entry == nullptr) throw missing();
  if (entry->adapter == nullptr) keep(*entry, adapter);
  return entry->adapter;
}

RequestAdapter AdapterTable::of(Request& request) {
  if (request.adapter.empty() || request.adapter_scale == 0) return {};
  RequestAdapter out{.adapter = get(request.adapter), .scale = request.adapter_scale};
  check_scale(request, *out.adapter);
  if (out.adapter->invocation.empty()) {
    request.cache_salt += fmt::format("\x1f{}", key_of(out));
    return out;
  }
  check_activated(request);
  out.from = adapter_from(*out.adapter, request.prompt);
  if (out.from < 0) return {};
  out.key = fmt::format("{} from {}", key_of(out), out.from);
  return out;
}

// Those that were asked for longest ago give way. Sequences that run keep theirs.
void AdapterTable::keep(Entry& entry, std::shared_ptr<const Adapter> adapter) {
  entry.adapter = std::move(adapter);
  entry.last_asked = ++asked_;
  while (most_ > 0) {
    const auto kept = [](const Entry& e) { return e.adapter != nullptr; };
    if (static_cast<size_t>(std::ranges::count_if(entries_, kept)) <= most_) return;
    Entry* oldest = nullptr;
    for (Entry& e : entries_) {
      if (kept(e) && (oldest == nullptr || e.last_asked < oldest->last_asked)) oldest = &e;
    }
    oldest->adapter = nullptr;
  }
}

std::pair<std::string, std::string> parse_lora_module(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("--lora-modules: '{}' is not of the form name=path", text));
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace sluice
