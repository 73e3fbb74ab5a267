// The models that are served: names that clients use, and their engines.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine.h"

namespace sluice::server {

// A model as a client calls it. Holding one keeps the engine alive.
struct ServedModel {
  std::string name;
  std::shared_ptr<Engine> engine;
  std::string adapter{};  // the engine's adapter that this name stands for; empty: none
};

// Thread-safe. A request that runs owns its engine together with this table, so that unloading a model never cuts it.
class Models {
 public:
  // One model under the names, or under its own name when there are none, and its adapters under theirs. The engine
  // must outlive the table and every request.
  static std::shared_ptr<Models> single(Engine& engine, const std::vector<std::string>& names);

  // Throws Error(kInvalidRequest) when the name is taken. The engine is destroyed on a thread of its own when the model
  // is unloaded and its last request has ended.
  void load(std::string name, std::shared_ptr<Engine> engine);
  // A further name of a model. Throws Error(kNotFound) when `name` is unknown, kInvalidRequest when `alias` is taken.
  void alias(std::string alias, std::string_view name);
  // An adapter of a model, under the adapter's own name. Throws as alias() does.
  void add_adapter(const std::string& adapter, std::string_view name);
  // Takes an adapter's name away. Returns its model; none when there is no such adapter.
  std::optional<ServedModel> remove_adapter(std::string_view adapter);
  // Removes the model under all of its names, and its adapters. False when no model has the name.
  bool unload(std::string_view name);

  std::optional<ServedModel> find(std::string_view name) const;
  std::vector<ServedModel> all() const;  // every name, in the order in which they came
  std::vector<std::string> names() const;
  std::optional<ServedModel> first() const;
  // What requests without a model get: the one that is served, under its first name. None while there are several.
  std::optional<ServedModel> only() const;

 private:
  void add(ServedModel model);
  const ServedModel* lookup(std::string_view name) const;  // with the mutex held

  mutable std::mutex mutex_;
  std::vector<ServedModel> models_;
};

}  // namespace sluice::server
