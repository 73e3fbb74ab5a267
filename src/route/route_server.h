// The router: one address in front of several replicas of an OpenAI-compatible server. See docs/route.md.
#pragma once

#include <memory>

#include "route/options.h"

namespace sluice::route {

class RouteServer {
 public:
  // Binds and listens. Throws Error(kInvalidRequest) that names the option if one cannot be used.
  explicit RouteServer(const RouteOptions& options);
  ~RouteServer();

  int port() const;

  // Serves until shutdown() or the first SIGTERM, SIGINT or SIGHUP. When every replica has been asked for its health,
  // prints one line: "sluice: routing on http://127.0.0.1:8080 (2 of 3 replicas are healthy)". At the end it drains as
  // `sluice serve` does (server/server.h). A second signal ends running requests at once.
  void run();
  // Begins to drain; run() returns when that is done. Any thread.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::route
