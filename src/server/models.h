// The models that are served: names that clients use, and their engines.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/model_host.h"
#include "sluice/engine.h"

namespace sluice::server {

// An adapter that changes a model, and the factor of what it adds (Request::adapter_scale).
struct ScaledAdapter {
  std::string name{};  // empty: the model alone
  float scale = 1;
};

// A model as a client calls it. Holding one keeps the engine alive.
struct ServedModel {
  std::string name;
  std::shared_ptr<Engine> engine{};  // null while the model is not loaded
  std::string adapter{};             // the engine's adapter that this name stands for; empty: none
  ScaledAdapter default_adapter{};   // without `adapter`: what requests have that choose none
  // Of a model that comes and goes:
  std::optional<ModelHost::Id> hosted{};
  std::shared_ptr<const ModelInfo> known{};
  bool added = false;  // by a request, as the server ran

  const ModelInfo& info() const { return engine != nullptr ? engine->model() : *known; }
  // Whether both names stand for the same model, or for adapters of it.
  bool same_model(const ServedModel& other) const {
    return hosted || other.hosted ? hosted == other.hosted : engine == other.engine;
  }
};

inline constexpr std::string_view kAnyName = "*";

// Thread-safe. A request that runs owns its engine together with this table, so that unloading a model never cuts it.
// A table has engines that were given to it, or a host's models, which come and go.
class Models {
 public:
  // One model under the names, or under its own name when there are none, and its adapters under theirs. The engine
  // must outlive the table and every request.
  static std::shared_ptr<Models> single(Engine& engine, const std::vector<std::string>& names);

  // A table of a host's models, still without names.
  static std::shared_ptr<Models> of(std::shared_ptr<ModelHost> host);
  ModelHost* host() const { return host_.get(); }  // null: the models do not come and go
  // Names a model of the host. Throws Error(kInvalidRequest) when the name is taken.
  void add_hosted(const std::string& name, ModelHost::Id model, const std::string& adapter = {});
  // Adds a model to the host, under this name, while requests are served. Throws as add_hosted() does.
  void add_source(const std::string& name, ModelSource source);

  // Throws Error(kInvalidRequest) when the name is taken. The engine is destroyed on a thread of its own when the model
  // is unloaded and its last request has ended.
  void load(std::string name, std::shared_ptr<Engine> engine);
  // A further name of a model; kAnyName stands for all names that no model has. Throws Error(kNotFound) when `name` is
  // unknown, kInvalidRequest when `alias` is taken.
  void alias(std::string alias, std::string_view name);
  // An adapter of a model, under the adapter's own name. Throws as alias() does.
  void add_adapter(const std::string& adapter, std::string_view name);
  // Sets the default adapter of a model, under all of its names. Throws Error(kNotFound) if the model no longer has it.
  void set_default_adapter(const ServedModel& model, const ScaledAdapter& adapter);
  // Takes an adapter's name away, also as the default. Returns its model; none when there is no such adapter.
  std::optional<ServedModel> remove_adapter(std::string_view adapter);
  // Removes the model under all of its names, and its adapters. False when no model has the name.
  bool unload(std::string_view name);

  // A host's models have their engine if they are loaded. That is no use of them: it does not keep a model from being
  // idle.
  std::optional<ServedModel> find(std::string_view name) const;
  std::vector<ServedModel> all() const;      // every name but kAnyName, in the order in which they came
  std::vector<ServedModel> engines() const;  // every loaded model once, under its first name
  std::vector<std::string> names() const;
  std::optional<ServedModel> first() const;
  // What requests without a model get: the one that is served, under its first name. None while there are several.
  // Those that requests added do not count, so that they change nothing for other clients.
  std::optional<ServedModel> only() const;
  // True if no engine would take a request (Engine::overloaded). Of a host's models, requests find out when they have
  // named theirs.
  bool overloaded() const;
  void stop_accepting();  // see Engine::stop_accepting; loads no more

 private:
  void add(ServedModel model);
  ServedModel looked_at(ServedModel model) const;          // with engine and known of a host's model
  const ServedModel* lookup(std::string_view name) const;  // with the mutex held
  const ServedModel* any() const;                          // with the mutex held

  std::shared_ptr<ModelHost> host_;
  mutable std::mutex mutex_;
  std::vector<ServedModel> models_;  // a host's without engine and known
};

}  // namespace sluice::server
