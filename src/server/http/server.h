// The HTTP transport: listeners, their connections with their limits and timeouts, and TLS. It knows no routes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/http/http.h"
#include "server/http/parser.h"

namespace sluice::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // addresses or names, with commas between them
  int port = 0;
  // Sockets that listen already: the server takes them over, and host and port are not used. Empty: there are none.
  std::vector<int> listeners;
  std::string certificate_file, key_file;  // PEM; both empty: no TLS
  HttpLimits limits;
  int64_t total_body_bytes = 1 << 30;  // bodies of all requests together; 0: no limit
  int max_connections = 16384;
  int max_connections_per_address = 0;  // 0: half of max_connections, without a limit for loopback addresses
  int threads = 1;
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};         // without progress of a body or an answer
  std::chrono::milliseconds body_total_timeout{300'000};  // for a whole body
  int64_t min_body_rate = 1024;                           // bytes per second since the start of a body; 0: any
  std::chrono::milliseconds body_rate_grace{10'000};      // the rate is required after this time
  std::chrono::milliseconds keep_alive_timeout{75'000};
  size_t max_stream_backlog = 1 << 20;  // bytes of a stream its client has not read; more abandons the request
};

class HttpServer {
 public:
  // Binds and listens. Throws Error if the address or the TLS files cannot be used. `handler` must outlive the server.
  HttpServer(const HttpServerOptions& options, HttpHandler& handler);
  ~HttpServer();

  // Other descriptors of the listening sockets, for HttpServerOptions::listeners of the server that follows this one.
  // The caller owns them. Connections that wait to be accepted stay. Throws Error if there is no descriptor left.
  std::vector<int> share_listeners() const;

  int port() const;
  bool loopback() const;  // bound to addresses that only this machine reaches
  bool tls() const;
  int connections() const;
  int64_t body_bytes() const;  // of request bodies that are held now

  // Serves until stop(), on this thread and options.threads - 1 others. Throws Error if a thread cannot be started.
  void run();

  // From now on every answer closes its connection. Calls `idle` once, when no request is in progress.
  void drain(std::function<void()> idle);
  void stop();
  // Calls a task on the first I/O thread ten times a second, also after a failure. Set before run().
  void on_look(std::function<void()> task);
  // Runs a task on an I/O thread after `delay`. Any thread.
  void after(std::chrono::milliseconds delay, std::function<void()> task);
  boost::asio::any_io_executor executor() const;  // of the first I/O thread
  void on_signal(std::function<void()> task);  // at each SIGTERM, SIGINT and (unless it is ignored) SIGHUP until stop()
  void default_signals();                      // gives these signals their default action back

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::server
