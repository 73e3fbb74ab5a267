// Connects the HTTP transport with the replicas. Answers health and metrics itself, and ends the router.
#include "route/route_server.h"

#include <fmt/core.h>

#include <atomic>
#include <bit>
#include <boost/asio/any_io_executor.hpp>
#include <cstdio>
#include <string>

#include "base/json.h"
#include "base/log.h"
#include "route/forward.h"
#include "server/dialect.h"
#include "server/gate.h"
#include "server/http/addresses.h"
#include "server/http/server.h"
#include "server/metrics.h"
#include "server/transport_options.h"

namespace sluice::route {

using server::ApiError;
using server::Headers;
using server::HttpReply;
using server::HttpRequest;
using server::HttpResponse;

namespace {

// The time that the last bytes of aborted requests may take.
constexpr std::chrono::milliseconds kFlushTimeout{2000};

server::HttpServerOptions route_transport(const RouteOptions& o) {
  visit_ranges(
      [](const char* name, int64_t value, int64_t least, int64_t most) {
        if (value >= least && value <= most) return;
        throw Error(ErrorCode::kInvalidRequest,
                    fmt::format("--{}: {} is out of range (expected {} to {})", name, value, least, most), name, "");
      },
      o);
  ServerOptions out;
  out.host = o.host;
  out.port = o.port;
  out.ssl_certfile = o.ssl_certfile;
  out.ssl_keyfile = o.ssl_keyfile;
  out.max_body_bytes = o.max_body_bytes;
  out.max_total_body_bytes = o.max_total_body_bytes;
  out.max_header_bytes = o.max_header_bytes;
  out.max_connections = o.max_connections;
  out.max_connections_per_address = o.max_connections_per_address;
  out.header_timeout_ms = o.header_timeout_ms;
  out.body_timeout_ms = o.body_timeout_ms;
  out.keep_alive_timeout_ms = o.keep_alive_timeout_ms;
  out.io_threads = o.io_threads;
  return server::transport_options(out);
}

// Paths that the router answers itself.
bool is_own_path(std::string_view path) { return path == "/health" || path == "/ping" || path == "/metrics"; }

}  // namespace

struct RouteServer::Impl final : server::HttpHandler {
  explicit Impl(const RouteOptions& o)
      : options(o),
        replicas(replicas_of(o)),
        policy(options, replicas),
        http(route_transport(options), *this),
        host_check(o.host, o.allowed_hosts, http.loopback()),
        health(options, replicas, policy, pool, http.executor()) {}

  // Sockets end before the transport.
  ~Impl() override {
    health.stop();
    pool.end();
  }

  // HttpHandler

  std::optional<HttpResponse> on_header(HttpRequest& request) override {
    request.id = server::request_id(&request);
    if (auto refused = host_check.refuse(request)) return refused;
    if (!draining || is_own_path(request.path)) return std::nullopt;
    HttpResponse response =
        server::to_response(server::overloaded("The server is shutting down."), server::dialect_of(request.path));
    response.close = true;
    return response;
  }

  bool is_essential(const HttpRequest& request) override { return is_own_path(request.path); }

  void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    if (is_own_path(request.path) && (request.method == "GET" || request.method == "HEAD")) {
      return reply->send(request.path == "/metrics" ? exposition() : health_answer());
    }
    std::make_shared<Forward>(context, std::move(request), std::move(reply))->start();
  }

  HttpResponse on_refused(std::string_view path, int status, std::string_view code, std::string message) override {
    ApiError error{.status = status, .message = std::move(message), .code = std::string(code)};
    if (status == 503) error = server::overloaded(error.message);
    if (status == 500) error.type = "server_error";
    return server::to_response(error, server::dialect_of(path));
  }

  Headers common_headers(const HttpRequest* request) override {
    const bool has_id = request != nullptr && !request->id.empty();
    return {{"X-Request-Id", has_id ? request->id : server::request_id(request)}};
  }

  void on_finished(const HttpRequest& request, int status, double seconds) override {
    http_metrics.count(is_own_path(request.path) ? request.path : "forwarded", request.method, status, seconds);
    log::debug("{} {} {} {} {:.1f} ms", request.id, request.method, server::quotable(request.path), status,
               seconds * 1000);
  }

  // Own paths

  int healthy() const { return std::popcount(healthy_of(replicas)); }

  HttpResponse health_answer() const {
    const int n = healthy();
    const bool good = n > 0 && !draining;
    const Json body = {{"status", draining ? "draining"
                                  : n > 0  ? "ok"
                                           : "no replica is healthy"},
                       {"replicas", replicas.size()},
                       {"healthy", n}};
    return {.status = good ? 200 : 503,
            .body = dump_json(body),
            .headers = good ? Headers() : Headers{{"Retry-After", "1"}}};
  }

  HttpResponse exposition() const {
    std::vector<MetricFamily> families = metrics.families(replicas, policy, pool);
    for (MetricFamily& family : http_metrics.families(http.connections(), http.body_bytes())) {
      families.push_back(std::move(family));
    }
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = server::prometheus_text(families)};
  }

  // The end: drain, then end the requests that are left, then stop.

  void shutdown() {
    draining = true;
    if (ending.exchange(true)) return;
    try {
      log::info("draining: up to {} ms for running requests", options.shutdown_timeout_ms);
      http.after(std::chrono::milliseconds(options.shutdown_timeout_ms), [this] { end_running(); });
      http.drain([this] { http.stop(); });
    } catch (...) {
      ending = false;  // the next look goes on
      throw;
    }
  }

  void end_running() {
    if (aborted.exchange(true)) return;
    log::warning("aborting the requests that still run");
    std::vector<std::shared_ptr<Forward>> open;
    {
      const std::lock_guard lock(context.mutex);
      for (Forward* forward : context.open) {
        if (auto alive = forward->weak_from_this().lock()) open.push_back(std::move(alive));
      }
    }
    for (const auto& forward : open) forward->shut_down();
    http.after(kFlushTimeout, [this] { http.stop(); });
  }

  void on_signal() {
    if (!draining) return shutdown();
    http.default_signals();
    end_running();
  }

  void print_ready_line() const {
    fmt::print("sluice: routing on {}://{} ({} of {} replicas are healthy)\n", http.tls() ? "https" : "http",
               server::url_authority(options.host, http.port()), healthy(), replicas.size());
    std::fflush(stdout);
  }

  // Members are destroyed in reverse order: the transport ends requests, which use what is above it.
  const RouteOptions options;
  const Replicas replicas;
  std::atomic<bool> draining{false};
  std::atomic<bool> ending{false};  // every step of the end has been started
  std::atomic<bool> aborted{false};
  server::HttpMetrics http_metrics;
  RouteMetrics metrics;
  ConnectionPool pool;
  Policy policy;
  RouteContext context{options, replicas, policy, pool, health, metrics};
  server::HttpServer http;
  server::HostCheck host_check;
  HealthMonitor health;
};

RouteServer::RouteServer(const RouteOptions& options) : impl_(std::make_unique<Impl>(options)) {}

RouteServer::~RouteServer() = default;

int RouteServer::port() const { return impl_->http.port(); }

void RouteServer::run() {
  Impl& impl = *impl_;
  impl.http.on_signal([&impl] { impl.on_signal(); });
  impl.http.on_look([&impl] {
    if (impl.draining) impl.shutdown();
  });
  impl.health.start([&impl] { impl.print_ready_line(); });
  impl.http.run();
  log::info("stopped");
}

void RouteServer::shutdown() { impl_->shutdown(); }

}  // namespace sluice::route
