// The HTTP transport: a listener, its connections, their limits and timeouts, TLS. Knows nothing about what it serves.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/http/http.h"
#include "server/http/parser.h"

namespace sluice::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string certificate_file, key_file;  // PEM; both empty: no TLS
  HttpLimits limits;
  int max_connections = 4096;
  int threads = 1;
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};  // without progress, reading a body or writing an answer
  std::chrono::milliseconds keep_alive_timeout{75'000};
  size_t max_stream_backlog = 1 << 20;  // bytes of a stream its client has not read; more abandons the request
};

class HttpServer {
 public:
  // Binds and listens; throws Error when the address or the TLS files do not do. `handler` must outlive the server.
  HttpServer(const HttpServerOptions& options, HttpHandler& handler);
  ~HttpServer();

  int port() const;
  bool loopback() const;  // bound to an address only this machine reaches
  bool tls() const;
  int connections() const;

  // Serves until stop(), on this thread and options.threads - 1 others.
  void run();

  // From here on every answer closes its connection; `idle` is called once when no request is being served.
  void drain(std::function<void()> idle);
  void stop();
  // All thread-safe: runs a task on an I/O thread, after a while or on SIGTERM and SIGINT (each one, until stop()).
  void after(std::chrono::milliseconds delay, std::function<void()> task);
  void on_signal(std::function<void()> task);
  void default_signals();  // gives SIGTERM and SIGINT their default action back

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::server
