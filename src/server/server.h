// The server: an engine's APIs over HTTP, with authentication, health, metrics and an orderly end.
#pragma once

#include <memory>
#include <string>

#include "sluice/engine.h"
#include "sluice/options.h"

namespace sluice {

class Server {
 public:
  // Binds and listens; throws Error when an option does not do (address in use, TLS files, API key file).
  // The engine must outlive the server.
  Server(Engine& engine, const ServerOptions& options);
  ~Server();

  int port() const;

  // Serves until shutdown() or the first SIGTERM or SIGINT, then drains: /health is 503 at once, new work is refused,
  // running requests get shutdown_timeout_ms to finish. A second signal ends them at once. Prints one line when ready:
  // "sluice: serving NAME on http://127.0.0.1:8000". Drains by itself when the engine has failed (Health::failed).
  void run();
  // Begins draining; run() returns when it is done. Any thread.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
