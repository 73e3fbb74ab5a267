// Connects transport, gate, routes and engine. Answers health and metrics, and ends the server.
#include "server/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "base/log.h"
#include "base/metrics.h"
#include "base/numa.h"
#include "server/api.h"
#include "server/gate.h"
#include "server/http/addresses.h"
#include "server/http/server.h"
#include "server/metrics.h"
#include "server/openapi.h"
#include "server/page/page.h"
#include "server/startup.h"
#include "server/store/store.h"
#include "server/transport_options.h"
#include "server/worker_pool.h"
#include "sluice/version.h"

namespace sluice {

using namespace server;

namespace {

// Bodies above this size (bytes) wait until the workers have no smaller ones.
constexpr size_t kLargeBody = 64 << 10;

// The time that the last bytes of aborted requests may take.
constexpr std::chrono::milliseconds kFlushTimeout{2000};

int worker_threads(const ServerOptions& o) {
  if (o.worker_threads > 0) return o.worker_threads;
  size_t cpus = 0;
  for (const NumaNode& node : numa_nodes()) cpus += node.cpus.size();
  return static_cast<int>(std::clamp<size_t>(cpus, 2, 16));
}

HttpServerOptions with_listeners(HttpServerOptions options, std::vector<int> listeners) {
  options.listeners = std::move(listeners);
  return options;
}

ApiOptions api_options(const ServerOptions& o, std::shared_ptr<Pulls> pulls,
                       std::function<void(std::function<void()>)> post) {
  return {.strict = o.strict,
          .log_requests = o.log_requests,
          .request_timeout = std::chrono::milliseconds(o.request_timeout_ms),
          .lora_root = o.lora_root,
          .store = std::make_shared<Store>(store_options(o)),
          .pulls = std::move(pulls),
          .post = std::move(post)};
}

}  // namespace

struct Server::Impl final : HttpHandler {
  Impl(std::shared_ptr<Models> m, const ServerOptions& o, std::vector<int> listeners, std::shared_ptr<Pulls> pulls)
      : models(std::move(m)),
        options(o),
        api(models, api_options(o, std::move(pulls),
                                [this](auto task) { workers.post(WorkerPool::Size::kSmall, std::move(task)); })),
        http(with_listeners(transport_options(o), std::move(listeners)), *this),
        gate(o, http.loopback(), router),
        workers(worker_threads(o)) {
    warn_about(o, http.loopback(), gate.requires_key());
    router.add(own_routes());
    if (o.web_page) router.add(page_routes());
    router.add(api.routes());
    if (o.api_docs) router.add(openapi_routes(router));
  }
  // Requests that wait for a model end before the workers that would go on with them.
  ~Impl() override {
    if (ModelHost* host = models->host()) host->end();
  }

  // HttpHandler

  std::optional<HttpResponse> on_header(HttpRequest& request) override {
    request.id = request_id(&request);
    Gate::Admission admission;
    if (auto refused = gate.check(request, admission)) return refused;
    if ((admission.route->flags & Route::kGenerates) != 0) return refuse_work(*admission.route);
    return std::nullopt;
  }

  bool is_essential(const HttpRequest& request) override {
    const Router::Match match = router.match(request.method, request.path);
    return match.route != nullptr && (match.route->flags & Route::kEssential) != 0;
  }

  void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    answer_faults(reply, dialect_of(request.path), [&] {
      // The result is the same as in on_header: the header has not changed since.
      Gate::Admission admission;
      if (auto refused = gate.check(request, admission)) return reply->send(std::move(*refused));
      const Route& route = *admission.route;
      if ((route.flags & Route::kQuick) != 0) {
        return route.handle(std::move(request), std::move(admission.context), reply);
      }
      const auto size = request.body.size() > kLargeBody ? WorkerPool::Size::kLarge : WorkerPool::Size::kSmall;
      workers.post(size,
                   [&route, request = std::move(request), context = std::move(admission.context), reply]() mutable {
                     answer_faults(reply, dialect_of(route.path),
                                   [&] { route.handle(std::move(request), std::move(context), reply); });
                   });
    });
  }

  // Runs a task that answers a request. What it throws becomes the answer, if there is none yet.
  template <class F>
  static void answer_faults(const std::shared_ptr<HttpReply>& reply, const Dialect& dialect, F&& task) {
    try {
      task();
    } catch (const std::bad_alloc&) {
      reply->send(to_response(out_of_memory(), dialect));
    } catch (const std::exception& e) {
      log::error("a request failed: {}", e.what());
      reply->send(to_response(server_fault(), dialect));
    }
  }

  HttpResponse on_refused(std::string_view path, int status, std::string_view code, std::string message) override {
    ApiError error{.status = status, .message = std::move(message), .code = std::string(code)};
    if (status == 503) error = overloaded(error.message);
    if (status == 500) error.type = "server_error";
    return to_response(error, dialect_of(path));
  }

  Headers common_headers(const HttpRequest* request) override {
    Headers headers = request != nullptr ? gate.cors(*request) : Headers();
    const bool has_id = request != nullptr && !request->id.empty();
    std::string id = has_id ? request->id : request_id(request);
    const Dialect& dialect = request != nullptr ? dialect_of(request->path) : default_dialect();
    if (!dialect.request_id_header.empty()) headers.emplace_back(dialect.request_id_header, id);
    headers.emplace_back("X-Request-Id", std::move(id));
    return headers;
  }

  void on_finished(const HttpRequest& request, int status, double seconds) override {
    const Router::Match match = router.match(request.method, request.path);
    metrics.count(match.route != nullptr ? match.route->path : "none", request.method, status, seconds);
    log::debug("{} {} {} {} {:.1f} ms", request.id, request.method, quotable(request.path), status, seconds * 1000);
  }

  // Called before any work is put into a request.
  std::optional<HttpResponse> refuse_work(const Route& route) {
    const Dialect& dialect = route.dialect != nullptr ? *route.dialect : default_dialect();
    if (draining) {
      HttpResponse response = to_response(overloaded("The server is shutting down."), dialect);
      response.close = true;
      return response;
    }
    if (models->overloaded()) return to_response(too_busy(), dialect);
    return std::nullopt;
  }

  // Routes that belong to no API dialect

  std::vector<Route> own_routes() {
    const auto get = [](std::string_view path, unsigned flags, std::string_view help, auto answer) {
      return Route{
          .method = "GET",
          .path = path,
          .flags = flags | Route::kQuick,
          .help = help,
          .handle = [answer](HttpRequest, RequestContext, std::shared_ptr<HttpReply> reply) { reply->send(answer()); }};
    };
    return {get("/routes", 0, "the list of routes", [this] { return index(); }),
            get("/health", Route::kPublic | Route::kEssential, "200 while the engine makes progress, else 503",
                [this] { return health(); }),
            get("/ping", Route::kPublic | Route::kEssential, "the same as /health", [this] { return health(); }),
            get("/version", 0, "the version",
                [] {
                  return HttpResponse{.body = dump_json({{"version", kVersion}})};
                }),
            get("/metrics", Route::kEssential, "Prometheus metrics", [this] { return exposition(); })};
  }

  HttpResponse index() const {
    Json routes = Json::array();
    for (const Route& route : router.routes()) {
      routes.push_back({{"method", route.method}, {"path", route.path}, {"help", route.help}});
    }
    return {.body = dump_json({{"name", "sluice"}, {"version", kVersion}, {"routes", std::move(routes)}})};
  }

  // The health of all engines as one: the worst, and the sums of what they do.
  Health engines_health() const {
    Health all{.alive = true};
    for (const ServedModel& model : models->engines()) {
      const Health health = model.engine->health();
      all.alive &= health.alive;
      if (all.failure.empty() || (health.failed && !all.failed)) all.failure = health.failure;
      all.failed |= health.failed;
      all.seconds_since_step = std::max(all.seconds_since_step, health.seconds_since_step);
      all.running += health.running;
      all.waiting += health.waiting;
      all.errors_in_a_row = std::max(all.errors_in_a_row, health.errors_in_a_row);
    }
    return all;
  }

  HttpResponse health() const {
    const Health health = engines_health();
    const bool failing = health.errors_in_a_row >= kFailingAfter;
    const char* status = health.failed             ? "failed"
                         : draining                ? "draining"
                         : failing                 ? "failing"
                         : !health.alive           ? "stalled"
                         : !health.failure.empty() ? "degraded"
                                                   : "ok";
    const bool good = health.alive && !draining;
    Json body = {{"status", status},
                 {"running", health.running},
                 {"waiting", health.waiting},
                 {"seconds_since_step", health.seconds_since_step}};
    if (!health.failure.empty()) body["message"] = health.failure;
    for (const ServedModel& model : models->engines()) {  // for a router
      const ModelInfo& info = model.info();
      if (info.kv_transfer_host.empty()) continue;
      body["kv_transfer"] = {{"host", info.kv_transfer_host}, {"port", info.kv_transfer_port}};
      break;  // only one can listen
    }
    if (const ModelHost* host = models->host()) {
      body["models"] = host->size();
      body["loaded"] = host->loaded();
    }
    return {.status = good ? 200 : 503,
            .body = dump_json(body),
            .headers = good ? Headers() : Headers{{"Retry-After", "1"}}};
  }

  HttpResponse exposition() const {
    const std::vector<ServedModel> engines = models->engines();
    std::vector<MetricFamily> families;
    if (const ModelHost* host = models->host()) {
      families = host->metrics();
    }
    for (const ServedModel& model : engines) {
      merge_metrics(families, model.engine->metrics(), "model_name", model.name);
    }
    for (MetricFamily& family : metrics.families(http.connections(), http.body_bytes()))
      families.push_back(std::move(family));
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = prometheus_text(families)};
  }

  // An engine that failed does not recover. Running requests have got their error, and the server ends. The next look
  // goes on with an end for which memory did not suffice.
  void look() {
    if (draining) {
      shutdown();
      stop_if_idle();
    } else if (const Health health = engines_health(); health.failed) {
      log::error("the engine failed{}{}: the server ends", health.failure.empty() ? "" : ": ", health.failure);
      shutdown();
    }
    api.look(draining);
  }

  // The end of the server: drain, then abort the requests that are left, then stop.

  void shutdown() {
    draining = true;
    if (ending.exchange(true)) return;
    try {
      models->stop_accepting();
      log::info("draining: up to {} ms for running requests", options.shutdown_timeout_ms);
      http.after(std::chrono::milliseconds(options.shutdown_timeout_ms), [this] { abort_running(); });
      http.drain([this] {
        clients_left = true;
        stop_if_idle();
      });
    } catch (...) {
      ending = false;  // see look()
      throw;
    }
  }

  // Responses in the background run without a client.
  void stop_if_idle() {
    if (clients_left && api.idle()) http.stop();
  }

  void abort_running() {
    if (aborted.exchange(true)) return;
    log::warning("aborting the requests that still run");
    api.abort_all(overloaded("The server is shutting down."));
    http.after(kFlushTimeout, [this] { http.stop(); });
  }

  void on_signal() {
    if (!draining) return shutdown();
    http.default_signals();
    abort_running();
  }

  // "NAME", or "NAME,NAME" of several models.
  std::string names() const {
    const ModelHost* host = models->host();
    if (host == nullptr) return models->first()->name;
    std::string out;
    for (ModelHost::Id id = 0; id < host->size(); ++id) out += fmt::format("{}{}", id > 0 ? "," : "", host->name(id));
    return out;
  }

  void print_ready_line() const {
    const std::string line = fmt::format("sluice: serving {} on {}://{}\n", names(), http.tls() ? "https" : "http",
                                         url_authority(options.host, http.port()));
    std::fputs(line.c_str(), stdout);
    std::fflush(stdout);
  }

  // Members are destroyed in reverse order: workers stop first, then connections end, then what they report to.
  const std::shared_ptr<Models> models;
  const ServerOptions options;
  std::atomic<bool> draining{false};
  std::atomic<bool> ending{false};  // every step of the shutdown has been started
  std::atomic<bool> clients_left{false};
  std::atomic<bool> aborted{false};
  HttpMetrics metrics;
  Router router;
  Api api;
  HttpServer http;
  Gate gate;
  WorkerPool workers;
};

Server::Server(Engine& engine, const ServerOptions& options, std::vector<int> listeners)
    : Server(Models::single(engine, options.served_model_name), options, std::move(listeners)) {}

Server::Server(std::shared_ptr<Models> models, const ServerOptions& options, std::vector<int> listeners,
               std::shared_ptr<Pulls> pulls)
    : impl_(std::make_unique<Impl>(std::move(models), options, std::move(listeners), std::move(pulls))) {}

Server::~Server() = default;

int Server::port() const { return impl_->http.port(); }

void Server::run() {
  impl_->http.on_signal([impl = impl_.get()] { impl->on_signal(); });
  impl_->print_ready_line();
  impl_->http.on_look([impl = impl_.get()] { impl->look(); });
  impl_->http.run();
  impl_->workers.stop();
  impl_->api.detach_all();
  log::info("stopped");
}

void Server::shutdown() { impl_->shutdown(); }

bool Server::failed() const { return impl_->engines_health().failed; }

}  // namespace sluice
