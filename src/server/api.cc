// What all endpoints share: the body, the model, the deadline, and errors.
#include "server/api.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <charconv>
#include <future>
#include <mutex>
#include <new>

#include "base/log.h"
#include "server/event_streams.h"
#include "server/pulls.h"
#include "server/store/store.h"

namespace sluice::server {
namespace {

constexpr size_t kMaxValues = 2 << 20;  // values in a request's JSON; a prompt has one per token id

// `array_field`: see EndpointInfo.
Json parse_body(std::string_view body, std::string_view array_field) {
  constexpr std::string_view kMessage = "We could not parse the JSON body of your request.";
  Json json;
  try {
    json = parse_json(body, {.values = kMaxValues});
  } catch (const Error& e) {
    throw ApiError{.message = fmt::format("{} (HINT: {})", kMessage, quotable(e.what()))};
  }
  if (json.is_array() && !array_field.empty()) return Json{{std::string(array_field), std::move(json)}};
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
  void on_written(std::function<void()> callback) override { run(std::move(callback)); }
  void abort() override {}
  void on_abandoned(std::function<void()>) override {}
  boost::asio::any_io_executor executor() const override { return {}; }

 private:
  std::recursive_mutex mutex_;
  const std::function<void(ApiResult)> done_;
};

// Runs the work on a request. This is one of the places where errors are caught: whatever is thrown becomes an answer.
template <class Work>
void guard(const Dialect& dialect, std::string_view request_id, HttpReply& reply, const Work& work) {
  try {
    try {
      work();
    } catch (const ApiError& error) {
      reply.send(to_response(error, dialect));
    } catch (const Error& error) {
      reply.send(to_response(to_api_error(error), dialect));
    } catch (const std::bad_alloc&) {
      log::error("{}: out of memory", request_id);
      reply.send(to_response(out_of_memory(), dialect));
    } catch (const std::exception& error) {
      log::error("{}: {}", request_id, error.what());
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

// A request that waits for its model: ended by its model, its client, its deadline or the server's end.
class WaitingCall final : public RunningCall, public std::enable_shared_from_this<WaitingCall> {
 public:
  using Ready = std::function<void(std::shared_ptr<HttpReply>, std::shared_ptr<Engine>)>;

  WaitingCall(ModelHost& host, std::shared_ptr<HttpReply> reply, const Dialect& dialect,
              std::shared_ptr<RunningGenerations> running)
      : host_(host), dialect_(dialect), running_(std::move(running)), reply_(std::move(reply)) {}
  ~WaitingCall() override { running_->remove(this); }

  // Calls `ready` once, unless the wait ends without the model. Throws ApiError as ModelHost::acquire does.
  void wait(ModelHost::Id model, std::optional<std::chrono::steady_clock::time_point> deadline, Ready ready) {
    const auto done = [self = shared_from_this(), ready = std::move(ready)](std::shared_ptr<Engine> engine,
                                                                            const ApiError& error) {
      const std::lock_guard posting(self->posting_mutex_);
      auto reply = self->take();
      if (reply == nullptr) return;
      if (engine == nullptr) return reply->send(to_response(error, self->dialect_));
      try {
        ready(reply, std::move(engine));
      } catch (const std::bad_alloc&) {
        reply->send(to_response(out_of_memory(), self->dialect_));
      }
    };
    const ModelHost::Ticket ticket = host_.acquire(model, deadline, done);
    {
      const std::lock_guard lock(mutex_);
      ticket_ = ticket;
      if (reply_ != nullptr || ticket == 0) return;
    }
    host_.cancel(ticket);  // the client left before there was a ticket
  }

  void abort(const ApiError& error) override {
    const std::lock_guard posting(posting_mutex_);
    if (const auto reply = end()) reply->send(to_response(error, dialect_));
  }
  void detach() override {
    const std::lock_guard posting(posting_mutex_);
    end();
  }

 private:
  std::shared_ptr<HttpReply> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reply_, nullptr);
  }
  std::shared_ptr<HttpReply> end() {
    auto reply = take();
    ModelHost::Ticket ticket = 0;
    {
      const std::lock_guard lock(mutex_);
      ticket = ticket_;
    }
    if (ticket != 0) host_.cancel(ticket);
    return reply;
  }

  ModelHost& host_;
  const Dialect& dialect_;
  const std::shared_ptr<RunningGenerations> running_;
  std::mutex posting_mutex_;          // held while the reply is used; locked before mutex_
  std::mutex mutex_;                  // guards the following two
  std::shared_ptr<HttpReply> reply_;  // null once the wait is over
  ModelHost::Ticket ticket_ = 0;
};

}  // namespace

Api::Api(std::shared_ptr<Models> models, ApiOptions options)
    : models_(std::move(models)),
      options_(options),
      running_(std::make_shared<RunningGenerations>()),
      events_(shared_->of<EventStreams>()) {
  if (options_.store != nullptr) shared_->provide(options_.store);
  if (options_.pulls != nullptr) shared_->provide(options_.pulls);
}

Api::~Api() { detach_all(); }

void Api::look(bool ending) {
  if (ending && options_.pulls != nullptr) options_.pulls->stop();
  events_->look(*models_, ending);
}

void Api::detach_all() {
  running_->detach_all();
  events_->detach_all();
}

void Api::serve(const PathEndpoints& endpoints, ReadBody read, Caller caller, std::shared_ptr<HttpReply> reply) {
  const auto now = std::chrono::steady_clock::now();
  std::optional<std::chrono::milliseconds> timeout = caller.timeout;
  if (options_.request_timeout.count() > 0) {
    timeout = std::min(timeout.value_or(options_.request_timeout), options_.request_timeout);
  }
  const std::string id = caller.request_id;
  guard(*endpoints.owner->dialect, id, *reply, [&] {
    std::shared_ptr<const Json> body = read();
    const EndpointInfo& endpoint = choose_endpoint(endpoints, caller, *body);
    guard(*endpoint.dialect, id, *reply, [&] {
      begin({.endpoint = &endpoint,
             .read = std::move(read),
             .caller = std::move(caller),
             .reply = reply,
             .arrived = now,
             .deadline = timeout ? std::optional(now + *timeout) : std::nullopt},
            std::move(body));
    });
  });
}

// The model is only looked at: begin() finds out whether it is known.
const EndpointInfo& Api::choose_endpoint(const PathEndpoints& endpoints, const Caller& caller, const Json& body) const {
  if (endpoints.others.empty()) return *endpoints.owner;
  const auto named = body.find("model");
  const bool has_name = named != body.end() && named->is_string();
  const std::string& name = has_name ? named->get_ref<const std::string&>() : caller.model;
  const auto model = name.empty() ? models_->only() : find_model(*models_, *endpoints.owner->dialect, name);
  return endpoints.of(body, model ? model->info().task : Task::kGenerate);
}

void Api::begin(Incoming incoming, std::shared_ptr<const Json> body) {
  const EndpointInfo& endpoint = *incoming.endpoint;
  ServedModel model = choose_model(endpoint, incoming.caller, *body);
  const bool needs_engine =
      endpoint.needs_engine != nullptr ? endpoint.needs_engine(*body) : find_parameter(endpoint, "model") != nullptr;
  if (model.hosted && needs_engine) {
    model.engine = models_->host()->try_acquire(*model.hosted);
    body = model.engine != nullptr ? body : nullptr;
  }
  if (body == nullptr) return wait(std::move(incoming), std::move(model));
  run(incoming, *body, std::move(model));
}

// Goes on when the model is loaded.
void Api::wait(Incoming incoming, ServedModel model) {
  const ModelHost::Id id = *model.hosted;
  const auto deadline = incoming.deadline;
  const auto call =
      std::make_shared<WaitingCall>(*models_->host(), incoming.reply, *incoming.endpoint->dialect, running_);
  running_->add(call);
  incoming.reply->on_abandoned([weak = std::weak_ptr(call)] {
    if (const auto waiting = weak.lock()) waiting->detach();
  });
  const auto shared = std::make_shared<std::pair<Incoming, ServedModel>>(std::move(incoming), std::move(model));
  shared->first.reply = nullptr;  // the call has it
  call->wait(id, deadline, [this, shared](std::shared_ptr<HttpReply> reply, std::shared_ptr<Engine> engine) {
    shared->first.reply = std::move(reply);
    shared->second.engine = std::move(engine);
    auto task = [this, shared] {
      const Incoming& request = shared->first;
      guard(*request.endpoint->dialect, request.caller.request_id, *request.reply,
            [&] { run(request, *request.read(), std::move(shared->second)); });
    };
    options_.post ? options_.post(std::move(task)) : task();
  });
}

void Api::run(const Incoming& incoming, const Json& body, ServedModel model) {
  const EndpointInfo& endpoint = *incoming.endpoint;
  const bool generates = (endpoint.flags & Route::kGenerates) != 0;
  if (generates && model.hosted && model.engine != nullptr && model.engine->overloaded()) throw too_busy();
  Call call{.endpoint = endpoint,
            .models = *models_,
            .request_id = incoming.caller.request_id,
            .tenant = incoming.caller.tenant,
            .suffix = incoming.caller.suffix,
            .method = incoming.caller.method,
            .target = incoming.caller.target,
            .reply = incoming.reply,
            .running = running_,
            .shared = shared_,
            .strict = options_.strict,
            .log = options_.log_requests,
            .arrived = incoming.arrived,
            .lora_root = options_.lora_root,
            .deadline = incoming.deadline,
            .model = std::move(model),
            .fields = {},
            .unknown = {}};
  const bool has_model = !call.model.name.empty();
  if (has_model) call.fields.of<SamplingParams>() = call.info().default_sampling;
  read_parameters(endpoint.parameters, body, has_model ? call.info().vocab_size : 0, call.fields, call.unknown);
  endpoint.run(call);
}

// The table's row checks the field's type.
ServedModel Api::choose_model(const EndpointInfo& endpoint, const Caller& caller, const Json& body) const {
  const Parameter* row = find_parameter(endpoint, "model");
  std::string name = caller.model;
  if (row != nullptr) {
    const auto value = body.find("model");
    if (value != body.end() && !value->is_null() && !is_string(*value, "")) {
      check_parameter(*row, *value, 0);
      name = value->get_ref<const std::string&>();
    }
  }
  if (endpoint.without_model) return {};
  if (!name.empty()) {
    std::optional<ServedModel> model = find_model(*models_, *endpoint.dialect, name);
    if (!model) throw model_not_found(name, models_->names());
    return std::move(*model);
  }
  if (auto model = models_->only()) return std::move(*model);
  if (row == nullptr || endpoint.names_model_otherwise) return {};
  const std::vector<std::string> names = models_->names();
  throw names.empty() ? model_not_found("", names) : model_not_named(names);
}

ApiResult Api::complete(std::string_view path, const Json& body) {
  std::promise<ApiResult> promise;
  complete(path, body, [&](ApiResult result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

void Api::complete(std::string_view path, const Json& body, std::function<void(ApiResult)> done) {
  static std::atomic<uint64_t> next{0};
  const auto reply = std::make_shared<OfflineReply>(std::move(done));
  const PathEndpoints endpoints = endpoints_at("POST", path);
  if (endpoints.owner == nullptr) {
    return reply->send(to_response(
        {.status = 404, .message = fmt::format("Unknown route: {}.", quotable(path)), .code = "unknown_url"}));
  }
  const Caller caller{.request_id = fmt::format("batch-{}", next++)};
  guard(*endpoints.owner->dialect, caller.request_id, *reply, [&] {
    if (!body.is_object()) throw ApiError{.message = "The body of a request must be a JSON object."};
    if (const auto stream = body.find("stream"); stream != body.end() && *stream == true) {
      throw unsupported_parameter("stream", "is not supported in a batch");
    }
    serve(
        endpoints, [kept = std::make_shared<const Json>(body)] { return kept; }, caller, reply);
  });
}

void Api::serve_http(const PathEndpoints& endpoints, HttpRequest request, RequestContext context,
                     const std::shared_ptr<HttpReply>& reply) {
  const EndpointInfo& endpoint = *endpoints.owner;
  Caller caller{.request_id = request.id,
                .tenant = std::move(context.tenant),
                .suffix = std::move(context.suffix),
                .method = request.method,
                .target = request.target,
                .model = query_value(request.target, "model"),
                .timeout = {}};
  if (request.count("X-Request-Timeout") > 0) {
    caller.timeout = parse_seconds(request.header("X-Request-Timeout").value_or(""));
    if (!caller.timeout) {
      return reply->send(to_response({.message = "The header X-Request-Timeout must be one number of seconds above 0."},
                                     *endpoint.dialect));
    }
  }
  if (endpoint.parameters.empty()) {
    return serve(
        endpoints, [] { return std::make_shared<const Json>(Json::object()); }, std::move(caller), reply);
  }
  // The whole request is kept, because its body counts as held as long as it is (BodyCharge).
  const auto kept = std::make_shared<const HttpRequest>(std::move(request));
  serve(
      endpoints,
      [kept, array_field = endpoint.array_field] {
        return std::make_shared<const Json>(parse_body(kept->body, array_field));
      },
      std::move(caller), reply);
}

std::vector<Route> Api::routes() {
  std::vector<Route> routes;
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    const bool reads = !endpoint->parameters.empty();
    for (const std::string_view path : endpoint->paths) {
      routes.push_back({.method = endpoint->method,
                        .path = path,
                        .flags = endpoint->flags | (reads ? 0u : Route::kNoBody),
                        .help = endpoint->help,
                        .dialect = endpoint->dialect,
                        .handle = [this, all = endpoints_at(endpoint->method, path)](
                                      HttpRequest request, RequestContext context, std::shared_ptr<HttpReply> reply) {
                          serve_http(all, std::move(request), std::move(context), reply);
                        }});
    }
  }
  return routes;
}

}  // namespace sluice::server
