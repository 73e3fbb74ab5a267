// Keeps the state of the replicas: asks each for /health at intervals, and takes note of what requests find out.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "route/connection_pool.h"
#include "route/options.h"
#include "route/policy.h"
#include "route/replica.h"
#include "route/replica_call.h"

namespace sluice::route {

// A replica is in the rotation while the last answer of its /health was below 500. It leaves at once when it refuses a
// connection or answers 5xx, and after two requests without an answer in time. After five of these it is lost.
class HealthMonitor {
 public:
  // Works on `executor`, which must outlive the monitor's sockets: call stop() before its end.
  HealthMonitor(const RouteOptions& options, const Replicas& replicas, Policy& policy, ConnectionPool& pool,
                const boost::asio::any_io_executor& executor);
  ~HealthMonitor();

  // Calls `first_round` once every replica has been asked. On the executor's thread, or before it runs.
  void start(std::function<void()> first_round);
  // No I/O thread runs any more.
  void stop();

  // What requests find out. Any thread.
  void refused(size_t replica);    // no connection: it leaves the rotation until its /health answers
  void suspected(size_t replica);  // it closed a connection or answered 503: asks for its /health soon

 private:
  struct Watch;

  void poll(size_t i);
  void ask(size_t i);
  void poll_after(size_t i, std::chrono::milliseconds delay);
  void on_answer(size_t i, int status);
  void on_failure(size_t i, ReplicaCall::Failure failure, const std::string& reason);
  void done(size_t i);
  void leave(size_t i, const std::string& reason);

  const RouteOptions options_;
  const Replicas& replicas_;
  Policy& policy_;
  ConnectionPool& pool_;
  const boost::asio::any_io_executor executor_;
  std::vector<std::shared_ptr<Watch>> watches_;
  std::function<void()> first_round_;
  size_t unknown_ = 0;  // replicas that have not been asked yet
};

}  // namespace sluice::route
