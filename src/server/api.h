// The API over the served models: requests in JSON to answers in JSON, for all registered endpoints. Usable without
// HTTP:
//
//   Api api(Models::single(engine, {"minnow"}), {});
//   ApiResult result = api.complete("/v1/chat/completions", {{"model", "minnow"}, {"messages", ...}});
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/endpoint.h"
#include "server/generation.h"
#include "server/models.h"
#include "server/router.h"

namespace sluice::server {

class EventStreams;
class Pulls;
class Store;

struct ApiOptions {
  bool strict = false;                           // unknown fields are errors
  bool log_requests = false;                     // a line about each request that asks an engine for work
  std::chrono::milliseconds request_timeout{0};  // longest life of a request; 0: none
  std::string lora_root = {};                    // folder of the adapters that requests may load; empty: none
  std::shared_ptr<Store> store = {};             // of answers; null: one in memory, made when it is needed
  std::shared_ptr<Pulls> pulls = {};             // of models; null: requests may not pull any
  // Runs the rest of a request that waited for its model; empty: on a thread of the models' host. After Api has gone,
  // tasks are not run.
  std::function<void(std::function<void()>)> post = {};
};

struct ApiResult {
  int status = 200;
  Json body;
};

// Where a request comes from.
struct Caller {
  std::string request_id = {};                            // for logs
  std::string tenant = {};                                // prefix-cache blocks are shared within it only
  std::string suffix = {};                                // what the '*' of the endpoint's path stands for
  std::string method = {}, target = {};                   // as sent (HttpRequest)
  std::string model = {};                                 // the query's, for endpoints without a body
  std::optional<std::chrono::milliseconds> timeout = {};  // what the client allows; request_timeout caps it
};

class Api {
 public:
  Api(std::shared_ptr<Models> models, ApiOptions options);
  ~Api();  // ends what is running, without an answer

  // Reads the body of a request. Called once, or again after the request has waited for its model: meanwhile only its
  // text takes memory. Throws ApiError.
  using ReadBody = std::function<std::shared_ptr<const Json>()>;

  // Answers one request for the path of the endpoints. Parses, renders and tokenizes on the caller's
  // thread, or after a wait for the model through ApiOptions::post; the answer follows on the reply's thread. Throws
  // only what a failing reply.send() throws.
  void serve(const PathEndpoints& endpoints, ReadBody read, Caller caller, std::shared_ptr<HttpReply> reply);

  // Answers a POST without HTTP, for batches. Streams are refused. Any number of calls may be in progress. `done` may
  // be called before complete() returns.
  ApiResult complete(std::string_view path, const Json& body);
  void complete(std::string_view path, const Json& body, std::function<void(ApiResult)> done);

  // To be called several times a second: sends the events that are due. `ending`: ends the event streams instead, as
  // the server ends. Throws std::bad_alloc, and is then to be called again.
  void look(bool ending);

  // No request runs, not even one in the background.
  bool idle() { return running_->empty(); }
  // Ends every running request with the error.
  void abort_all(const ApiError& error) { running_->abort_all(error); }
  // Cancels them and lets go of their replies.
  void detach_all();

  // The routes of all endpoints; they call back into the object.
  std::vector<Route> routes();

  const Models& models() const { return *models_; }

 private:
  // A request on its way to its endpoint.
  struct Incoming {
    const EndpointInfo* endpoint;
    ReadBody read;
    Caller caller;
    std::shared_ptr<HttpReply> reply;
    std::chrono::steady_clock::time_point arrived;
    std::optional<std::chrono::steady_clock::time_point> deadline;
  };

  void begin(Incoming incoming, std::shared_ptr<const Json> body);
  void wait(Incoming incoming, ServedModel model);
  void run(const Incoming& incoming, const Json& body, ServedModel model);
  void serve_http(const PathEndpoints& endpoints, HttpRequest request, RequestContext context,
                  const std::shared_ptr<HttpReply>& reply);
  const EndpointInfo& choose_endpoint(const PathEndpoints& endpoints, const Caller& caller, const Json& body) const;
  ServedModel choose_model(const EndpointInfo& endpoint, const Caller& caller, const Json& body) const;

  const std::shared_ptr<Models> models_;
  const ApiOptions options_;
  const std::shared_ptr<RunningGenerations> running_;
  const std::shared_ptr<SharedState> shared_ = std::make_shared<SharedState>();
  const std::shared_ptr<EventStreams> events_;  // one of the shared objects
};

}  // namespace sluice::server
