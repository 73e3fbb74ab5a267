// Stored responses: GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items, POST /v1/responses/ID/cancel.
#include <fmt/core.h>

#include "server/endpoint.h"
#include "server/openai/dialect.h"
#include "server/openai/responses/background.h"
#include "server/store/store.h"

namespace sluice::server::openai::stored {
namespace {

ApiError not_found(std::string_view id) {
  return {.status = 404, .message = fmt::format("Response with id '{}' not found.", quotable(id))};
}

ApiError unknown_url(const Call& call) {
  return {.status = 404,
          .message = fmt::format("Unknown request URL: /v1/responses/{}.", quotable(call.suffix)),
          .code = "unknown_url"};
}

// The id in "ID" or "ID/what".
std::string_view id_of(const Call& call, std::string_view what) {
  std::string_view id = call.suffix;
  if (!what.empty()) {
    if (!id.ends_with(what)) throw unknown_url(call);
    id.remove_suffix(what.size());
  }
  if (id.find('/') != std::string_view::npos) throw unknown_url(call);
  return id;
}

bool in_progress(const Json& body) { return body.at("status") == "in_progress"; }

// Gives a response in progress its end.
void end(Json& body, std::string_view status, std::string_view error = {}) {
  body["status"] = status;
  if (!error.empty()) body["error"] = {{"code", "server_error"}, {"message", error}};
}

// The response as it is now. One that was in progress when a server ended has failed.
std::optional<StoredResponse> find(Call& call, std::string_view id) {
  const auto store = call.shared->of<Store>();
  const bool runs = call.shared->of<BackgroundResponses>()->runs(id);
  std::optional<StoredResponse> response = store->response(id, call.tenant);
  if (!response || runs || response->body.find("\"in_progress\"") == std::string::npos) return response;
  Json body = parse_json(response->body);
  if (!in_progress(body)) return response;
  end(body, "failed", "The server ended before the response was complete.");
  response->body = dump_json(body);
  return response;
}

void get(Call& call) {
  constexpr std::string_view kItems = "/input_items";
  const bool items = call.suffix.ends_with(kItems);
  const std::string_view id = id_of(call, items ? kItems : "");
  const auto response = find(call, id);
  if (!response) throw not_found(id);
  call.send({.body = items ? fmt::format(R"({{"object":"list","data":{},"has_more":false}})", response->input_items)
                           : response->body});
}

void remove(Call& call) {
  const std::string_view id = id_of(call, "");
  const auto store = call.shared->of<Store>();
  if (!store->response(id, call.tenant)) throw not_found(id);
  call.shared->of<BackgroundResponses>()->cancel(id);
  if (!store->erase_response(id, call.tenant)) throw not_found(id);
  call.send({.body = dump_json({{"id", id}, {"object", "response"}, {"deleted", true}})});
}

void cancel(Call& call) {
  const std::string_view id = id_of(call, "/cancel");
  std::optional<StoredResponse> response = find(call, id);
  if (!response) throw not_found(id);
  Json body = parse_json(response->body);
  if (body.at("background") != true) {
    throw ApiError{.message =
                       "Only responses with 'background' can be cancelled. Close the connection to end another."};
  }
  // One that has ended stays as it is.
  if (!in_progress(body) || !call.shared->of<BackgroundResponses>()->cancel(id)) {
    return call.send({.body = find(call, id).value_or(*response).body});
  }
  end(body, "cancelled");
  response->body = dump_json(body);
  const auto client = LateAnswer::start(call.reply, call.running);
  call.shared->of<Store>()->put(*response, [client, text = response->body](const ApiError* error) {
    error != nullptr ? client->abort(*error) : client->send({.body = text});
  });
}

const EndpointInfo get_endpoint{.name = "response",
                                .dialect = &kOpenAi,
                                .method = "GET",
                                .paths = {"/v1/responses/*"},
                                .help = "a stored response, or its input_items",
                                .run = get};
const EndpointInfo delete_endpoint{.name = "response delete",
                                   .dialect = &kOpenAi,
                                   .method = "DELETE",
                                   .paths = {"/v1/responses/*"},
                                   .help = "forgets a stored response",
                                   .run = remove};
const EndpointInfo cancel_endpoint{.name = "response cancel",
                                   .dialect = &kOpenAi,
                                   .paths = {"/v1/responses/*"},
                                   .help = "ends a response that is computed in the background",
                                   .run = cancel};
const Registry<EndpointInfo> registered_get{get_endpoint}, registered_delete{delete_endpoint},
    registered_cancel{cancel_endpoint};

}  // namespace
}  // namespace sluice::server::openai::stored
