// A short list under a mutex.
#include "server/models.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <thread>

namespace sluice::server {

const ServedModel* Models::lookup(std::string_view name) const {
  const auto found =
      std::find_if(models_.begin(), models_.end(), [&](const auto& model) { return model.name == name; });
  return found == models_.end() ? nullptr : &*found;
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
  add({.name = adapter, .engine = std::move(model->engine), .adapter = adapter});
}

std::optional<ServedModel> Models::remove_adapter(std::string_view adapter) {
  const std::lock_guard lock(mutex_);
  const ServedModel* found = lookup(adapter);
  if (found == nullptr || found->adapter.empty()) return std::nullopt;
  ServedModel removed = *found;
  models_.erase(models_.begin() + (found - models_.data()));
  return removed;
}

void Models::alias(std::string alias, std::string_view name) {
  std::optional<ServedModel> model = find(name);
  if (!model) throw Error(ErrorCode::kNotFound, fmt::format("The model '{}' is not loaded.", name), "model", "");
  add({.name = std::move(alias), .engine = std::move(model->engine)});
}

bool Models::unload(std::string_view name) {
  std::vector<ServedModel> removed;  // engines end after the mutex is free
  const std::lock_guard lock(mutex_);
  const ServedModel* model = lookup(name);
  if (model == nullptr || !model->adapter.empty()) return false;
  const auto is_same = [engine = model->engine](const ServedModel& m) { return m.engine == engine; };
  const auto kept = std::stable_partition(models_.begin(), models_.end(), std::not_fn(is_same));
  removed.assign(std::make_move_iterator(kept), std::make_move_iterator(models_.end()));
  models_.erase(kept, models_.end());
  return true;
}

std::optional<ServedModel> Models::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const ServedModel* model = lookup(name);
  return model == nullptr ? std::nullopt : std::optional(*model);
}

std::vector<ServedModel> Models::all() const {
  const std::lock_guard lock(mutex_);
  return models_;
}

std::optional<ServedModel> Models::first() const {
  const std::lock_guard lock(mutex_);
  return models_.empty() ? std::nullopt : std::optional(models_.front());
}

std::vector<std::string> Models::names() const {
  std::vector<std::string> out;
  const std::lock_guard lock(mutex_);
  for (const ServedModel& model : models_) out.push_back(model.name);
  return out;
}

std::optional<ServedModel> Models::only() const {
  const std::lock_guard lock(mutex_);
  const bool one = !models_.empty() && std::all_of(models_.begin(), models_.end(), [&](const ServedModel& model) {
    return model.engine == models_.front().engine;
  });
  return one ? std::optional(models_.front()) : std::nullopt;
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
