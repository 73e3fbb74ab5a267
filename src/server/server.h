// The server: the APIs of an engine over HTTP, with authentication, health, metrics and an orderly end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sluice/engine.h"
#include "sluice/options.h"

namespace sluice {

namespace server {
class Models;
class Pulls;
}  // namespace server

class Server {
 public:
  // Binds and listens, or takes over sockets that listen already (LoadingServer::release) if there are any. Throws
  // Error if an option cannot be used: the address, TLS files, the API key file, a value that is out of range. The
  // engine must outlive the server.
  Server(Engine& engine, const ServerOptions& options, std::vector<int> listeners = {});
  // Serves several models. served_model_name is not used: the table has the names. Without `pulls`, requests may not
  // download models.
  Server(std::shared_ptr<server::Models> models, const ServerOptions& options, std::vector<int> listeners = {},
         std::shared_ptr<server::Pulls> pulls = {});
  ~Server();

  int port() const;

  // Prints one line, "sluice: serving NAME on http://127.0.0.1:8000", and serves until shutdown() or the first SIGTERM,
  // SIGINT or SIGHUP (ignored under nohup). Then it drains: /health is 503, new work is refused, running requests have
  // shutdown_timeout_ms to finish. A second signal ends them at once. Also drains if an engine fails (Health::failed).
  void run();
  // Begins to drain; run() returns when that is done. Any thread.
  void shutdown();
  bool failed() const;  // an engine failed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
