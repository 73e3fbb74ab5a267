// Builds calls without HTTP; see call.h.
#include "binding/call.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "server/openai/dialect.h"

namespace sluice::binding {
namespace {

constexpr size_t kMaxValues = 2 << 20;  // values in a body's JSON; a prompt has one per token id

// Only its dialect is used.
const server::EndpointInfo kEndpoint{.name = "binding", .dialect = &server::kOpenAi};

std::string next_id() {
  static std::atomic<uint64_t> next{0};
  return fmt::format("{:020x}", next++);
}

void choose_model(server::Call& call, const Json& body) {
  const auto value = body.find("model");
  if (value == body.end() || value->is_null()) return;
  const std::string& name = server::expect_string(*value, "model");
  if (name.empty() || name == call.model.name) return;
  const std::vector<AdapterInfo> adapters = call.engine().adapters();
  if (std::ranges::find(adapters, name, &AdapterInfo::name) == adapters.end()) {
    std::vector<std::string> served{call.model.name};
    for (const AdapterInfo& adapter : adapters) served.push_back(adapter.name);
    throw server::model_not_found(name, served);
  }
  call.model.adapter = name;
}

}  // namespace

DirectCall::DirectCall(Engine& engine)
    : call_{.endpoint = kEndpoint,
            .models = models_,
            .request_id = next_id(),
            .tenant = {},
            .suffix = {},
            .method = {},
            .target = {},
            .reply = nullptr,
            .running = nullptr,
            .shared = nullptr,
            .strict = true,
            .lora_root = {},
            .deadline = {},
            .model = {},
            .fields = {},
            .unknown = {}} {
  const std::shared_ptr<Engine> kept_by_caller(std::shared_ptr<Engine>(), &engine);
  call_.model = {.name = engine.model().name, .engine = kept_by_caller};
}

void DirectCall::read(std::string_view body, const std::vector<std::span<const server::Parameter>>& rows,
                      const SamplingParams& defaults) {
  read(parse_body(body), rows, defaults);
}

void DirectCall::read(const Json& body, const std::vector<std::span<const server::Parameter>>& rows,
                      const SamplingParams& defaults) {
  choose_model(call_, body);
  call_.fields.of<SamplingParams>() = defaults;
  read_parameters(rows, body, call_.info().vocab_size, call_.fields, call_.unknown);
}

Json parse_body(std::string_view text) {
  Json body = parse_json(text, {.values = kMaxValues});
  if (!body.is_object()) throw server::ApiError{.message = "Expected a JSON object."};
  return body;
}

Error to_error(const server::ApiError& error) {
  const ErrorCode code = error.status == 404   ? ErrorCode::kNotFound
                         : error.status == 503 ? ErrorCode::kOverloaded
                         : error.status < 500  ? ErrorCode::kInvalidRequest
                                               : ErrorCode::kInternal;
  return {code, error.message, error.param, error.code};
}

}  // namespace sluice::binding
