// What all endpoints share: the body, the model, the deadline, and errors.
#include "server/api.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <future>
#include <mutex>
#include <new>

#include "base/log.h"

namespace sluice::server {
namespace {

constexpr size_t kMaxValues = 2 << 20;  // values in a request's JSON; a prompt has one per token id

Json parse_body(std::string_view body) {
  constexpr std::string_view kMessage = "We could not parse the JSON body of your request.";
  Json json;
  try {
    json = parse_json(body, {.values = kMaxValues});
  } catch (const Error& e) {
    throw ApiError{.message = fmt::format("{} (HINT: {})", kMessage, quotable(e.what()))};
  }
  if (!json.is_object()) throw ApiError{.message = fmt::format("{} (HINT: it must be an object)", kMessage)};
  return json;
}

// Runs tasks where they come up; answers into a callback.
class OfflineReply final : public HttpReply {
 public:
  explicit OfflineReply(std::function<void(ApiResult)> done) : done_(std::move(done)) {}
  void send(HttpResponse response) override { done_({response.status, parse_json(response.body)}); }
  void start_stream(HttpResponse) override {}
  void write(std::string) override {}
  void end_stream(bool) override {}
  void run(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    task();
  }
  void on_abandoned(std::function<void()>) override {}

 private:
  std::recursive_mutex mutex_;
  const std::function<void(ApiResult)> done_;
};

// Runs the work on a request. This is one of the places where errors are caught: whatever is thrown becomes an answer.
template <class Work>
void guard(const Dialect& dialect, const Caller& caller, HttpReply& reply, const Work& work) {
  try {
    try {
      work();
    } catch (const ApiError& error) {
      reply.send(to_response(error, dialect));
    } catch (const Error& error) {
      reply.send(to_response(to_api_error(error), dialect));
    } catch (const std::bad_alloc&) {
      log::error("{}: out of memory", caller.request_id);
      reply.send(to_response(out_of_memory(), dialect));
    } catch (const std::exception& error) {
      log::error("{}: {}", caller.request_id, error.what());
      reply.send(to_response(server_fault(), dialect));
    }
  } catch (const std::exception&) {
    // Not even the error could be built: an answer that needs no memory of its own.
    reply.send({.status = 503, .content_type = {}, .close = true});
  }
}

// A number of seconds above 0; nullopt when the text is anything else.
std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) || seconds > 1e9) return std::nullopt;
  return std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(seconds * 1000)));
}

const EndpointInfo* find_endpoint(std::string_view method, std::string_view path) {
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    if (endpoint->method != method) continue;
    if (std::find(endpoint->paths.begin(), endpoint->paths.end(), path) != endpoint->paths.end()) return endpoint;
  }
  return nullptr;
}

}  // namespace

Api::Api(std::shared_ptr<Models> models, ApiOptions options)
    : models_(std::move(models)), options_(options), running_(std::make_shared<RunningGenerations>()) {}

Api::~Api() { running_->detach_all(); }

void Api::serve(const EndpointInfo& endpoint, std::string_view body, const Caller& caller,
                const std::shared_ptr<HttpReply>& reply) {
  guard(*endpoint.dialect, caller, *reply,
        [&] { serve_json(endpoint, endpoint.parameters.empty() ? Json::object() : parse_body(body), caller, reply); });
}

void Api::serve_json(const EndpointInfo& endpoint, const Json& body, const Caller& caller,
                     const std::shared_ptr<HttpReply>& reply) {
  Call call{.endpoint = endpoint,
            .models = *models_,
            .request_id = caller.request_id,
            .tenant = caller.tenant,
            .suffix = caller.suffix,
            .reply = reply,
            .running = running_,
            .shared = shared_,
            .strict = options_.strict,
            .log = options_.log_requests,
            .lora_root = options_.lora_root,
            .deadline = {},
            .model = {},
            .fields = {},
            .unknown = {}};
  std::optional<std::chrono::milliseconds> timeout = caller.timeout;
  if (options_.request_timeout.count() > 0) {
    timeout = std::min(timeout.value_or(options_.request_timeout), options_.request_timeout);
  }
  if (timeout) call.deadline = std::chrono::steady_clock::now() + *timeout;
  choose_model(call, body);
  if (call.model.engine != nullptr) call.fields.of<SamplingParams>() = call.info().default_sampling;
  const int vocab = call.model.engine != nullptr ? call.info().vocab_size : 0;
  read_parameters(endpoint.parameters, body, vocab, call.fields, call.unknown);
  endpoint.run(call);
}

// The table's row checks the field's type.
void Api::choose_model(Call& call, const Json& body) const {
  const Parameter* row = find_parameter(call.endpoint, "model");
  const auto value = body.find("model");
  const bool given = row != nullptr && value != body.end() && !value->is_null() && !is_string(*value, "");
  if (!given) {
    if (auto model = row != nullptr ? models_->only() : models_->first()) call.model = std::move(*model);
    if (row == nullptr || call.model.engine != nullptr) return;
    const std::vector<std::string> names = models_->names();
    throw names.empty() ? model_not_found("", names) : model_not_named(names);
  }
  check_parameter(*row, *value, 0);
  const auto& name = value->get_ref<const std::string&>();
  std::optional<ServedModel> model = find_model(*models_, *call.endpoint.dialect, name);
  if (!model) throw model_not_found(name, models_->names());
  call.model = std::move(*model);
}

ApiResult Api::complete(std::string_view path, const Json& body) {
  std::promise<ApiResult> promise;
  complete(path, body, [&](ApiResult result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

void Api::complete(std::string_view path, const Json& body, std::function<void(ApiResult)> done) {
  static std::atomic<uint64_t> next{0};
  const auto reply = std::make_shared<OfflineReply>(std::move(done));
  const EndpointInfo* endpoint = find_endpoint("POST", path);
  if (endpoint == nullptr) {
    return reply->send(to_response(
        {.status = 404, .message = fmt::format("Unknown route: {}.", quotable(path)), .code = "unknown_url"}));
  }
  const Caller caller{.request_id = fmt::format("batch-{}", next++)};
  guard(*endpoint->dialect, caller, *reply, [&] {
    if (!body.is_object()) throw ApiError{.message = "The body of a request must be a JSON object."};
    if (const auto stream = body.find("stream"); stream != body.end() && *stream == true) {
      throw unsupported_parameter("stream", "is not supported in a batch");
    }
    serve_json(*endpoint, body, caller, reply);
  });
}

void Api::serve_http(const EndpointInfo& endpoint, const HttpRequest& request, RequestContext context,
                     const std::shared_ptr<HttpReply>& reply) {
  Caller caller{.request_id = request.id,
                .tenant = std::move(context.tenant),
                .suffix = std::move(context.suffix),
                .timeout = {}};
  if (request.count("X-Request-Timeout") > 0) {
    caller.timeout = parse_seconds(request.header("X-Request-Timeout").value_or(""));
    if (!caller.timeout) {
      return reply->send(to_response({.message = "The header X-Request-Timeout must be one number of seconds above 0."},
                                     *endpoint.dialect));
    }
  }
  serve(endpoint, request.body, caller, reply);
}

std::vector<Route> Api::routes() {
  std::vector<Route> routes;
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    for (const std::string_view path : endpoint->paths) {
      routes.push_back(
          {.method = endpoint->method,
           .path = path,
           .flags = endpoint->flags,
           .help = endpoint->help,
           .dialect = endpoint->dialect,
           .handle = [this, endpoint](HttpRequest request, RequestContext context, std::shared_ptr<HttpReply> reply) {
             serve_http(*endpoint, request, std::move(context), reply);
           }});
    }
  }
  return routes;
}

}  // namespace sluice::server
