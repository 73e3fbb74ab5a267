// A server with one answer, and the web page, which shows the progress.
#include "server/loading.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/json.h"
#include "server/errors.h"
#include "server/gate.h"
#include "server/http/server.h"
#include "server/page/page.h"
#include "server/transport_options.h"

namespace sluice {

using namespace server;

namespace {

// The time that clients get to read their last answers before the real server takes over.
constexpr std::chrono::milliseconds kEndWithin{1000};

bool asks_for_health(const HttpRequest& request) { return request.path == "/health" || request.path == "/ping"; }

HttpServerOptions one_thread(HttpServerOptions options) {
  options.threads = 1;
  return options;
}

}  // namespace

struct LoadingServer::Impl final : HttpHandler {
  explicit Impl(const ServerOptions& options)
      : http(one_thread(transport_options(options)), *this), shows_page(options.web_page) {
    thread = std::thread([this] { http.run(); });
  }
  ~Impl() override {
    http.stop();
    if (thread.joinable()) thread.join();
  }

  std::optional<HttpResponse> on_header(HttpRequest& request) override {
    request.id = request_id(&request);
    return answer(request);
  }
  void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) override { reply->send(answer(request)); }
  bool is_essential(const HttpRequest& request) override { return asks_for_health(request); }
  HttpResponse on_refused(std::string_view, int status, std::string_view code, std::string message) override {
    return to_response({.status = status, .message = std::move(message), .code = std::string(code)});
  }
  Headers common_headers(const HttpRequest* request) override {
    const bool has_id = request != nullptr && !request->id.empty();
    return {{"X-Request-Id", has_id ? request->id : request_id(request)}};
  }
  void on_finished(const HttpRequest&, int, double) override {}

  // Every answer closes its connection, so that the client's next request reaches the real server.
  HttpResponse answer(const HttpRequest& request) const {
    if (asks_for_health(request)) return health();
    const bool reads = request.method == "GET" || request.method == "HEAD";
    const PageFile* file = reads && shows_page ? find_page_file(request.path) : nullptr;
    if (file == nullptr) return refusal();
    HttpResponse response = page_response(*file, request);
    response.close = true;
    return response;
  }
  HttpResponse health() const {
    const double share = std::floor(loaded.load() * 1000) / 1000;
    return {.status = 503,
            .body = dump_json({{"status", "loading"}, {"progress", share}}),
            .headers = {{"Retry-After", "1"}},
            .close = true};
  }
  HttpResponse refusal() const {
    HttpResponse response = to_response(overloaded(
        fmt::format("The model is loading ({} %). Please try again later.", static_cast<int>(100 * loaded))));
    response.close = true;
    return response;
  }

  std::atomic<double> loaded{0};
  HttpServer http;
  const bool shows_page;
  std::thread thread;
};

LoadingServer::LoadingServer(const ServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}

LoadingServer::~LoadingServer() = default;

int LoadingServer::port() const { return impl_->http.port(); }

void LoadingServer::progress(double share) { impl_->loaded = share; }

std::vector<int> LoadingServer::release() {
  std::vector<int> listeners = impl_->http.share_listeners();
  HttpServer& http = impl_->http;
  http.after(kEndWithin, [&http] { http.stop(); });
  http.drain([&http] { http.stop(); });
  impl_->thread.join();
  impl_.reset();
  return listeners;
}

}  // namespace sluice
