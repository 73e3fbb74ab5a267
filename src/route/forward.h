// One request of a client on its way: chooses a replica, tries again while nothing of an answer has been passed on, and
// passes the answer on as it comes. Where other servers compute prompts, one of them gets the prompt at the same time.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "route/connection_pool.h"
#include "route/health.h"
#include "route/metrics.h"
#include "route/options.h"
#include "route/policy.h"
#include "route/prefill_call.h"
#include "route/replica.h"
#include "route/replica_call.h"
#include "server/errors.h"
#include "server/http/http.h"

namespace sluice::route {

class Forward;

// What all requests share. It outlives them.
struct RouteContext {
  const RouteOptions& options;
  const Replicas& replicas;
  Policy& policy;
  ConnectionPool& pool;
  HealthMonitor& health;
  RouteMetrics& metrics;
  std::mutex mutex = {};
  std::set<Forward*> open = {};  // under the mutex
};

// Lives on the thread of the client's connection, which owns it until the answer is complete or the client is gone.
class Forward : public std::enable_shared_from_this<Forward> {
 public:
  Forward(RouteContext& context, server::HttpRequest request, std::shared_ptr<server::HttpReply> reply);
  ~Forward();

  void start();
  // Ends the request with an error. Any thread.
  void shut_down();

 private:
  void begin_prefill();
  void on_prefill_failure(const std::string& reason);
  CallLimits limits() const;
  void attempt();
  ReplicaCall::Listener listener();
  std::string head_for(const Replica& replica, const std::string& body) const;
  bool may_retry() const;
  void retry();

  void on_answer(AnswerReader& answer);
  void begin_answer(AnswerReader& answer);
  void pass_on(AnswerReader& answer);
  std::string whole_lines(std::string piece, bool done);
  void on_failure(ReplicaCall::Failure failure, const std::string& reason);
  void refuse(const server::ApiError& error);
  void break_off(const server::ApiError& error);
  void end_call() noexcept;

  RouteContext& context_;
  server::HttpRequest request_;  // without its body
  std::shared_ptr<const std::string> body_;
  const std::shared_ptr<server::HttpReply> reply_;
  const std::chrono::steady_clock::time_point arrived_ = std::chrono::steady_clock::now();
  Prompt prompt_;
  std::string session_;
  bool sticky_ = false;
  int64_t weight_ = 1;

  ReplicaMask tried_ = 0;
  int retries_ = 0;
  size_t replica_ = 0;  // the one that has the request
  std::shared_ptr<ReplicaCall> call_;
  std::optional<Assignment> in_flight_;
  std::weak_ptr<PrefillCall> prefill_;
  std::shared_ptr<const std::string> split_body_;  // for the replica while another server computes the prompt, or null

  bool answering_ = false;  // the head of the answer has been passed on
  bool finished_ = false;
  bool events_ = false;         // the answer is a stream of server-sent events, not compressed
  bool between_events_ = true;  // what has been passed on ends with a whole event
  std::string line_;            // the beginning of a line of events that has not been passed on
};

}  // namespace sluice::route
