// Stored responses: GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items, POST /v1/responses/ID/cancel.
#include <fmt/core.h>

#include "server/endpoint.h"
#include "server/openai/dialect.h"
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

void get(Call& call) {
  constexpr std::string_view kItems = "/input_items";
  const bool items = call.suffix.ends_with(kItems);
  const std::string_view id = id_of(call, items ? kItems : "");
  const auto response = call.shared->of<Store>()->response(id, call.tenant);
  if (!response) throw not_found(id);
  call.send({.body = items ? fmt::format(R"({{"object":"list","data":{},"has_more":false}})", response->input_items)
                           : response->body});
}

void remove(Call& call) {
  const std::string_view id = id_of(call, "");
  if (!call.shared->of<Store>()->erase_response(id, call.tenant)) throw not_found(id);
  call.send({.body = dump_json({{"id", id}, {"object", "response"}, {"deleted", true}})});
}

void cancel(Call& call) {
  const std::string_view id = id_of(call, "/cancel");
  if (!call.shared->of<Store>()->response(id, call.tenant)) throw not_found(id);
  throw ApiError{.message = "Only responses with 'background' can be cancelled. Close the connection to end another."};
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
                                   .help = "refuses to cancel a response: none runs in the background",
                                   .run = cancel};
const Registry<EndpointInfo> registered_get{get_endpoint}, registered_delete{delete_endpoint},
    registered_cancel{cancel_endpoint};

}  // namespace
}  // namespace sluice::server::openai::stored
