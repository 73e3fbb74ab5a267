// Holds the server's port while a model loads, which may take minutes: a port that is taken is reported before the
// load, and load balancers see the progress.
#pragma once

#include <memory>
#include <vector>

#include "sluice/options.h"

namespace sluice {

class LoadingServer {
 public:
  // Binds, listens and serves on a thread of its own. /health and /ping answer 503 with the status "loading" and the
  // progress. The files of the web page are served. Every other request gets 503 with Retry-After. Throws Error if an
  // option cannot be used.
  explicit LoadingServer(const ServerOptions& options);
  ~LoadingServer();
  LoadingServer(const LoadingServer&) = delete;
  LoadingServer& operator=(const LoadingServer&) = delete;

  int port() const;
  void progress(double share);  // from 0 to 1; any thread

  // Stops serving and returns the listening sockets for Server. Connections that wait to be accepted stay.
  std::vector<int> release();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
