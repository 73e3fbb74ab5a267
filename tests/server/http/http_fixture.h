// An HTTP server on a free port over a handler that tests control, without routes or an engine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/allocations.h"
#include "server/http/server.h"
#include "server/http_client.h"

namespace sluice::server {

inline bool soon(const std::function<bool()>& condition, int timeout_ms = 5000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Answers by path: /wait never, /stream with one chunk and no end, /big with kBigBytes, /lost with a stream whose
// second part finds no memory, others with the request's body.
class PathHandler final : public HttpHandler {
 public:
  static constexpr size_t kBigBytes = 32 << 20;
  std::atomic<int> started{0}, abandoned{0}, finished{0};

  std::optional<HttpResponse> on_header(HttpRequest& request) override {
    request.id = "id";
    return std::nullopt;
  }
  void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    ++started;
    reply->on_abandoned([this] { ++abandoned; });
    if (request.path == "/stream") {
      reply->start_stream({.content_type = "text/plain"});
      reply->write("first");
    } else if (request.path == "/big") {
      reply->send({.content_type = "text/plain", .body = std::string(kBigBytes, 'b')});
    } else if (request.path == "/lost") {
      std::thread([reply] { lose_a_part(*reply); }).join();  // as an engine, which has threads of its own
      return;
    } else if (request.path != "/wait") {
      return reply->send({.content_type = "text/plain", .body = request.body});
    }
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(reply));
    request_ = std::move(request);
  }
  bool is_essential(const HttpRequest& request) override { return request.path == "/health"; }
  HttpResponse on_refused(std::string_view, int status, std::string_view, std::string message) override {
    return {.status = status, .content_type = "text/plain", .body = std::move(message)};
  }
  Headers common_headers(const HttpRequest*) override { return {}; }
  void on_finished(const HttpRequest&, int, double) override { ++finished; }

  // Forgets the replies and the last request that are kept.
  void release() {
    std::vector<std::shared_ptr<HttpReply>> kept;
    HttpRequest request;
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
    std::swap(request, request_);
  }

 private:
  static void lose_a_part(HttpReply& reply) {
    reply.start_stream({.content_type = "text/plain"});
    reply.write("first");
    Allocations::left = 0;
    reply.write("second");
    EXPECT_LT(Allocations::left.exchange(-1), 0);
    reply.write("third");
    reply.end_stream(false);
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpReply>> kept_;
  HttpRequest request_;
};

class HttpTest : public ::testing::Test {
 protected:
  ~HttpTest() override { stop(); }

  void start() {
    server = std::make_unique<HttpServer>(options, handler);
    port = server->port();
    thread = std::thread([this] { server->run(); });
  }
  void stop() {
    if (!server) return;
    server->stop();
    thread.join();
    handler.release();  // before the server ends, as HttpReply asks
    server.reset();
  }

  PathHandler handler;
  HttpServerOptions options;
  std::unique_ptr<HttpServer> server;
  std::thread thread;
  int port = 0;
};

}  // namespace sluice::server
