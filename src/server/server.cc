// Joins transport, gate, routes and engine; health, metrics, and the way down.
#include "server/server.h"

#include <fmt/core.h>

#include <atomic>
#include <cstdio>
#include <mutex>

#include "base/log.h"
#include "server/api.h"
#include "server/gate.h"
#include "server/http/server.h"
#include "server/metrics.h"
#include "server/worker_pool.h"
#include "sluice/version.h"

namespace sluice {

using namespace server;

namespace {

constexpr std::chrono::milliseconds kWatchEvery{500};

// After aborted requests were told, so long may their last bytes take.
constexpr std::chrono::milliseconds kFlushTimeout{2000};

HttpServerOptions transport_options(const ServerOptions& o) {
  if (o.ssl_certfile.empty() != o.ssl_keyfile.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "--ssl-certfile and --ssl-keyfile need each other", "ssl-certfile", "");
  }
  const auto at_least_1 = [](const char* name, int64_t value) {
    if (value < 1) throw Error(ErrorCode::kInvalidRequest, fmt::format("--{} must be at least 1", name), name, "");
  };
  at_least_1("max-body-bytes", o.max_body_bytes);
  at_least_1("max-header-bytes", o.max_header_bytes);
  at_least_1("max-connections", o.max_connections);
  at_least_1("header-timeout-ms", o.header_timeout_ms);
  at_least_1("body-timeout-ms", o.body_timeout_ms);
  at_least_1("keep-alive-timeout-ms", o.keep_alive_timeout_ms);
  at_least_1("io-threads", o.io_threads);
  if (o.port < 0 || o.port > 65535) throw Error(ErrorCode::kInvalidRequest, "--port must be 0 to 65535", "port", "");
  HttpServerOptions out;
  out.host = o.host;
  out.port = o.port;
  out.certificate_file = o.ssl_certfile;
  out.key_file = o.ssl_keyfile;
  out.limits.header_bytes = o.max_header_bytes;
  out.limits.body_bytes = o.max_body_bytes;
  out.max_connections = o.max_connections;
  out.threads = o.io_threads;
  out.header_timeout = std::chrono::milliseconds(o.header_timeout_ms);
  out.body_timeout = std::chrono::milliseconds(o.body_timeout_ms);
  out.keep_alive_timeout = std::chrono::milliseconds(o.keep_alive_timeout_ms);
  return out;
}

ApiOptions api_options(const ServerOptions& o) {
  return {.strict = o.strict, .request_timeout = std::chrono::milliseconds(o.request_timeout_ms)};
}

}  // namespace

struct Server::Impl final : HttpHandler {
  Impl(Engine& e, const ServerOptions& o)
      : engine(e),
        options(o),
        api(Models::single(e, o.served_model_name), api_options(o)),
        http(transport_options(o), *this),
        gate(o, http.loopback(), router),
        workers(o.io_threads) {
    router.add(own_routes());
    router.add(api.routes());
  }

  // HttpHandler

  std::optional<HttpResponse> on_header(HttpRequest& request) override {
    request.id = request_id(&request);
    Gate::Admission admission;
    if (auto refused = gate.check(request, admission)) return refused;
    if ((admission.route->flags & Route::kGenerates) != 0) return refuse_work(*admission.route);
    return std::nullopt;
  }

  void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    // The same look-up as in on_header: the header has not changed since.
    Gate::Admission admission;
    if (auto refused = gate.check(request, admission)) return reply->send(std::move(*refused));
    const Route& route = *admission.route;
    if ((route.flags & Route::kQuick) != 0) {
      return route.handle(std::move(request), std::move(admission.context), std::move(reply));
    }
    workers.post([&route, request = std::move(request), context = std::move(admission.context), reply]() mutable {
      route.handle(std::move(request), std::move(context), std::move(reply));
    });
  }

  HttpResponse on_refused(int status, std::string_view code, std::string message) override {
    ApiError error{.status = status, .message = std::move(message), .code = std::string(code)};
    if (status == 503) error = overloaded(error.message);
    if (status == 500) error.type = "server_error";
    return to_response(error);
  }

  Headers common_headers(const HttpRequest* request) override {
    Headers headers = request != nullptr ? gate.cors(*request) : Headers();
    const bool has_id = request != nullptr && !request->id.empty();
    headers.emplace_back("X-Request-Id", has_id ? request->id : request_id(request));
    return headers;
  }

  void on_finished(const HttpRequest& request, int status, double seconds) override {
    const Router::Match match = router.match(request.method, request.path);
    metrics.count(match.route != nullptr ? match.route->path : "none", request.method, status, seconds);
    log::debug("{} {} {} {} {:.1f} ms", request.id, request.method, quotable(request.path), status, seconds * 1000);
  }

  // Asked before any work is put into a request.
  std::optional<HttpResponse> refuse_work(const Route& route) {
    const Dialect& dialect = route.dialect != nullptr ? *route.dialect : default_dialect();
    if (draining) {
      HttpResponse response = to_response(overloaded("The server is shutting down."), dialect);
      response.close = true;
      return response;
    }
    if (engine.overloaded()) {
      return to_response(overloaded("The server is overloaded. Please try again later."), dialect);
    }
    return std::nullopt;
  }

  // Routes that belong to no dialect

  std::vector<Route> own_routes() {
    const auto get = [](std::string_view path, unsigned flags, std::string_view help, auto answer) {
      return Route{
          .method = "GET",
          .path = path,
          .flags = flags | Route::kQuick,
          .help = help,
          .handle = [answer](HttpRequest, RequestContext, std::shared_ptr<HttpReply> reply) { reply->send(answer()); }};
    };
    return {
        get("/", 0, "this list", [this] { return index(); }),
        get("/health", Route::kPublic, "200 while the engine makes progress, else 503", [this] { return health(); }),
        get("/ping", Route::kPublic, "the same", [this] { return health(); }),
        get("/version", 0, "the version",
            [] {
              return HttpResponse{.body = dump_json({{"version", kVersion}})};
            }),
        get("/metrics", 0, "Prometheus metrics", [this] { return exposition(); })};
  }

  HttpResponse index() const {
    Json routes = Json::array();
    for (const Route& route : router.routes()) {
      routes.push_back({{"method", route.method}, {"path", route.path}, {"help", route.help}});
    }
    return {.body = dump_json({{"name", "sluice"}, {"version", kVersion}, {"routes", std::move(routes)}})};
  }

  HttpResponse health() const {
    const Health health = engine.health();
    const char* status = health.failed ? "failed" : draining ? "draining" : health.alive ? "ok" : "stalled";
    const bool good = health.alive && !draining;
    return {.status = good ? 200 : 503,
            .body = dump_json({{"status", status},
                               {"running", health.running},
                               {"waiting", health.waiting},
                               {"seconds_since_step", health.seconds_since_step}}),
            .headers = good ? Headers() : Headers{{"Retry-After", "1"}}};
  }

  HttpResponse exposition() const {
    std::vector<MetricFamily> families = engine.metrics();
    for (MetricFamily& family : metrics.families(http.connections())) families.push_back(std::move(family));
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = prometheus_text(families)};
  }

  // An engine that failed will not come back: what is under way has its error, and the server ends.
  void watch() {
    http.after(kWatchEvery, [this] {
      if (!engine.health().failed) return watch();
      log::error("the engine failed: the server ends");
      shutdown();
    });
  }

  // The way down: drain, then abort what is left, then stop.

  void shutdown() {
    if (draining.exchange(true)) return;
    engine.stop_accepting();
    log::info("draining: up to {} ms for running requests", options.shutdown_timeout_ms);
    http.after(std::chrono::milliseconds(options.shutdown_timeout_ms), [this] { abort_running(); });
    http.drain([this] { http.stop(); });
  }

  void abort_running() {
    if (aborted.exchange(true)) return;
    log::warning("ending the requests that still run");
    api.abort_all(overloaded("The server is shutting down."));
    http.after(kFlushTimeout, [this] { http.stop(); });
  }

  void on_signal() {
    if (!draining) return shutdown();
    http.default_signals();
    abort_running();
  }

  void print_ready_line() const {
    const bool ipv6 = options.host.find(':') != std::string::npos;
    const std::string line =
        fmt::format("sluice: serving {} on {}://{}:{}\n", api.models().first()->name, http.tls() ? "https" : "http",
                    ipv6 ? fmt::format("[{}]", options.host) : options.host, http.port());
    std::fputs(line.c_str(), stdout);
    std::fflush(stdout);
  }

  // The order matters at the end: workers stop first, then connections go, then what they report to.
  Engine& engine;
  const ServerOptions options;
  std::atomic<bool> draining{false};
  std::atomic<bool> aborted{false};
  HttpMetrics metrics;
  Router router;
  Api api;
  HttpServer http;
  Gate gate;
  WorkerPool workers;
};

Server::Server(Engine& engine, const ServerOptions& options) : impl_(std::make_unique<Impl>(engine, options)) {}

Server::~Server() = default;

int Server::port() const { return impl_->http.port(); }

void Server::run() {
  impl_->http.on_signal([impl = impl_.get()] { impl->on_signal(); });
  impl_->print_ready_line();
  impl_->watch();
  impl_->http.run();
  impl_->workers.stop();
  impl_->api.detach_all();
  log::info("stopped");
}

void Server::shutdown() { impl_->shutdown(); }

}  // namespace sluice
