// A request to a server that computes a prompt, which another server goes on with. Its answer is of no interest: what
// the prompt gave goes from server to server.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "route/connection_pool.h"
#include "route/health.h"
#include "route/replica.h"
#include "route/replica_call.h"

namespace sluice::route {

// Lives until its answer is complete, on the I/O thread that started it.
class PrefillCall : public std::enable_shared_from_this<PrefillCall> {
 public:
  // `failed`: called at most once, when the server does not compute the prompt.
  PrefillCall(const Replicas& replicas, size_t replica, int64_t weight, HealthMonitor& health,
              std::function<void(const std::string& reason)> failed);

  void start(ConnectionPool& pool, const boost::asio::any_io_executor& executor, CallRequest request,
             const CallLimits& limits);
  // The client has left: the prompt is of no use.
  void cancel() noexcept;

 private:
  void on_answer(AnswerReader& answer);
  void fail(const std::string& reason);

  const std::shared_ptr<Replica> replica_;
  const size_t index_;
  HealthMonitor& health_;
  std::function<void(const std::string& reason)> failed_;
  std::optional<Assignment> in_flight_;
  std::shared_ptr<ReplicaCall> call_;  // null: ended
};

}  // namespace sluice::route
