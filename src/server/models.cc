// A short list under a mutex.
#include "server/models.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <thread>

namespace sluice::server {
namespace {

bool has_name(const ServedModel& model) { return model.name != kAnyName; }

}  // namespace

const ServedModel* Models::lookup(std::string_view name) const {
  const auto found =
      std::find_if(models_.begin(), models_.end(), [&](const auto& model) { return model.name == name; });
  return found == models_.end() ? nullptr : &*found;
}

// What a name that no model has stands for: a model under its own name.
const ServedModel* Models::any() const {
  const ServedModel* wildcard = lookup(kAnyName);
  if (wildcard == nullptr) return nullptr;
  return &*std::ranges::find_if(models_, [&](const ServedModel& model) {
    return model.same_model(*wildcard) && model.adapter == wildcard->adapter;
  });
}

std::shared_ptr<Models> Models::of(std::shared_ptr<ModelHost> host) {
  auto models = std::make_shared<Models>();
  models->host_ = std::move(host);
  return models;
}

void Models::add_hosted(const std::string& name, ModelHost::Id model, const std::string& adapter) {
  add({.name = name, .adapter = adapter, .hosted = model});
}

void Models::add_source(const std::string& name, ModelSource source) {
  const ModelHost::Id id = host_->add(std::move(source));
  add({.name = name, .hosted = id, .added = true});
}

ServedModel Models::looked_at(ServedModel model) const {
  if (!model.hosted) return model;
  model.engine = host_->look(*model.hosted);
  model.known = host_->info(*model.hosted);
  return model;
}

void Models::load(std::string name, std::shared_ptr<Engine> engine) {
  // The last owner may be a request that ends on the engine's own thread, which cannot destroy the engine.
  Engine* const object = engine.get();
  const std::shared_ptr<Engine> handle(object, [owner = std::move(engine)](Engine*) mutable {
    std::thread([last = std::move(owner)]() mutable { last.reset(); }).detach();
  });
  add({.name = std::move(name), .engine = handle});
}

void Models::add(ServedModel model) {
  const std::lock_guard lock(mutex_);
  if (lookup(model.name) != nullptr) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("The model name '{}' is already in use.", model.name), "model",
                "");
  }
  models_.push_back(std::move(model));
}

void Models::add_adapter(const std::string& adapter, std::string_view name) {
  std::optional<ServedModel> model = find(name);
  if (!model) throw Error(ErrorCode::kNotFound, fmt::format("The model '{}' is not loaded.", name), "model", "");
  if (model->hosted) return add_hosted(adapter, *model->hosted, adapter);
  add({.name = adapter, .engine = std::move(model->engine), .adapter = adapter});
}

std::optional<ServedModel> Models::remove_adapter(std::string_view adapter) {
  const std::lock_guard lock(mutex_);
  const ServedModel* found = lookup(adapter);
  if (found == nullptr || found->adapter.empty()) return std::nullopt;
  ServedModel removed = *found;
  models_.erase(models_.begin() + (found - models_.data()));
  for (ServedModel& model : models_) {
    if (model.same_model(removed) && model.default_adapter.name == removed.adapter) model.default_adapter = {};
  }
  return removed;
}

void Models::set_default_adapter(const ServedModel& model, const ScaledAdapter& adapter) {
  const std::lock_guard lock(mutex_);
  const auto has_it = [&](const ServedModel& m) { return m.same_model(model) && m.adapter == adapter.name; };
  if (!std::ranges::any_of(models_, has_it)) {
    throw Error(ErrorCode::kNotFound, fmt::format("The lora adapter '{}' does not exist.", adapter.name), "lora", "");
  }
  for (ServedModel& m : models_) {
    if (m.same_model(model) && m.adapter.empty()) m.default_adapter = adapter;
  }
}

void Models::alias(std::string alias, std::string_view name) {
  std::optional<ServedModel> model = find(name);
  if (!model) throw Error(ErrorCode::kNotFound, fmt::format("The model '{}' is not loaded.", name), "model", "");
  if (model->hosted) return add_hosted(alias, *model->hosted);
  add({.name = std::move(alias), .engine = std::move(model->engine)});
}

bool Models::unload(std::string_view name) {
  std::vector<ServedModel> removed;  // engines end after the mutex is free
  const std::lock_guard lock(mutex_);
  const ServedModel* model = lookup(name);
  if (model == nullptr || model->hosted || !model->adapter.empty()) return false;
  const auto is_same = [first = *model](const ServedModel& m) { return m.same_model(first); };
  const auto kept = std::stable_partition(models_.begin(), models_.end(), std::not_fn(is_same));
  removed.assign(std::make_move_iterator(kept), std::make_move_iterator(models_.end()));
  models_.erase(kept, models_.end());
  return true;
}

std::optional<ServedModel> Models::find(std::string_view name) const {
  std::optional<ServedModel> found;
  {
    const std::lock_guard lock(mutex_);
    const ServedModel* model = name == kAnyName ? nullptr : lookup(name);
    if (model == nullptr) model = any();
    if (model != nullptr) found = *model;
  }
  return found ? std::optional(looked_at(std::move(*found))) : std::nullopt;
}

std::vector<ServedModel> Models::all() const {
  std::vector<ServedModel> out;
  {
    const std::lock_guard lock(mutex_);
    std::ranges::copy_if(models_, std::back_inserter(out), has_name);
  }
  for (ServedModel& model : out) model = looked_at(std::move(model));
  return out;
}

std::vector<ServedModel> Models::engines() const {
  std::vector<ServedModel> out;
  for (ServedModel& model : all()) {
    const bool is_known = std::ranges::any_of(out, [&](const ServedModel& other) { return other.same_model(model); });
    if (model.engine != nullptr && !is_known) out.push_back(std::move(model));
  }
  return out;
}

std::optional<ServedModel> Models::first() const {
  std::optional<ServedModel> found;
  {
    const std::lock_guard lock(mutex_);
    if (!models_.empty()) found = models_.front();
  }
  return found ? std::optional(looked_at(std::move(*found))) : std::nullopt;
}

std::vector<std::string> Models::names() const {
  std::vector<std::string> out;
  const std::lock_guard lock(mutex_);
  for (const ServedModel& model : models_) {
    if (has_name(model)) out.push_back(model.name);
  }
  return out;
}

std::optional<ServedModel> Models::only() const {
  {
    const std::lock_guard lock(mutex_);
    const auto is_first = [&](const ServedModel& model) { return model.added || model.same_model(models_.front()); };
    if (!std::ranges::all_of(models_, is_first)) return std::nullopt;
  }
  return first();
}

bool Models::overloaded() const {
  if (host_ != nullptr) return false;
  const std::lock_guard lock(mutex_);
  return !models_.empty() && std::ranges::all_of(models_, [](const auto& model) { return model.engine->overloaded(); });
}

void Models::stop_accepting() {
  if (host_ != nullptr) host_->stop();
  for (const ServedModel& model : engines()) model.engine->stop_accepting();
}

std::shared_ptr<Models> Models::single(Engine& engine, const std::vector<std::string>& names) {
  const std::shared_ptr<Engine> unowned(std::shared_ptr<void>(), &engine);
  auto models = std::make_shared<Models>();
  const std::string first = names.empty() ? engine.model().name : names.front();
  models->add({.name = first, .engine = unowned});
  for (size_t i = 1; i < names.size(); ++i) models->alias(names[i], names.front());
  for (const AdapterInfo& adapter : engine.adapters()) models->add_adapter(adapter.name, first);
  return models;
}

}  // namespace sluice::server
