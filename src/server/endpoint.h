// Endpoints of the API. Each one is a constant object that its own file registers: name, paths, fields and handler.
// Routes, validation and documentation are made from the registry; nothing else lists endpoints.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/dialect.h"
#include "server/fields.h"
#include "server/generation.h"
#include "server/models.h"
#include "server/parameters.h"
#include "server/pooling_call.h"
#include "server/router.h"
#include "server/shared_state.h"

namespace sluice::server {

struct EndpointInfo;

// One request on its way through an endpoint.
struct Call {
  const EndpointInfo& endpoint;
  Models& models;
  std::string request_id;            // for logs and for ids of answers
  std::string tenant;                // prefix-cache blocks are shared within it only
  std::string suffix;                // what the '*' of the endpoint's path stands for
  std::string method, target;        // as sent (HttpRequest); empty without HTTP
  std::shared_ptr<HttpReply> reply;  // gets the answer
  std::shared_ptr<RunningGenerations> running;
  std::shared_ptr<SharedState> shared;
  bool strict = false;  // unknown fields are errors
  bool log = false;     // a line about the request when it ends
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();
  std::string_view lora_root;  // see ApiOptions
  std::optional<std::chrono::steady_clock::time_point> deadline;

  // After the body was read. Endpoints without a field "model" get the model that the query names (?model=NAME), or the
  // only one; it has no name if there are several.
  ServedModel model;
  Fields fields;
  UnknownFields unknown;

  Engine& engine() const { return *model.engine; }
  const ModelInfo& info() const { return model.info(); }  // also of a model that is not loaded

  // Headers that name the unknown fields; in strict mode, throws ApiError for them. Called when all of the body was
  // looked at.
  Headers warnings() const;

  void send(HttpResponse response) { reply->send(std::move(response)); }
  // Submit the job to the model's engine; the reply gets the answer, and the log a line if it is wanted.
  void generate(GenerationJob job);
  void embed(PoolingJob job);
};

// A path of another endpoint with the same method. Some of the bodies that come there are for this one.
struct SharedPath {
  std::string_view path = {};
  // `task` is that of the model that the body names.
  bool (*takes)(const Json& body, Task task) = nullptr;
};

struct EndpointInfo {
  std::string_view name = {};                // unique; documentation calls the endpoint so
  const Dialect* dialect = nullptr;          // prints its errors
  std::string_view method = "POST";          // GET (HEAD comes with it), POST, PUT, DELETE or HEAD
  std::vector<std::string_view> paths = {};  // exact, or with a last segment of '*' for the rest of the path
  unsigned flags = 0;                        // Route::Flags
  std::string_view help = {};
  std::vector<std::span<const Parameter>> parameters = {};  // fields of the JSON body; none: the body is not read
  std::vector<SharedPath> shared = {};
  std::string_view array_field = {};  // a body that is an array stands for an object with this field alone; empty: none
  // Whether a request needs the engine of its model, which is then loaded first. Null: every request of an endpoint
  // with the field "model" does.
  bool (*needs_engine)(const Json& body) = nullptr;
  bool names_model_otherwise = false;  // "model" may be left out, whatever is served
  bool without_model = false;          // no model is chosen; the query's "model" means something else
  // Answers through the call, at once or later. What it throws becomes the answer.
  void (*run)(Call& call) = nullptr;
};

// The endpoints of a method and path.
struct PathEndpoints {
  const EndpointInfo* owner = nullptr;  // answers what the others do not take; null: the path is unknown
  std::vector<std::pair<const EndpointInfo*, const SharedPath*>> others = {};

  const EndpointInfo& of(const Json& body, Task task) const;
};
PathEndpoints endpoints_at(std::string_view method, std::string_view path);

// The field of that name; null when the endpoint does not have it.
const Parameter* find_parameter(const EndpointInfo& endpoint, std::string_view name);

// All fields of all endpoints as Markdown, for docs/.
std::string parameters_markdown();

}  // namespace sluice::server
