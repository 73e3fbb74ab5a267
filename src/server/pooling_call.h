// A request for vectors or scores in progress. Carries the result from the engine's thread to the reply of one client.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/dialect.h"
#include "server/generation.h"
#include "server/http/http.h"
#include "sluice/engine.h"

namespace sluice::server {

struct PoolingJob {
  PoolingRequest request;
  std::function<std::string(const PoolingResult&)> body;  // prints the answer
  Headers headers;
  const Dialect* dialect = nullptr;  // prints errors
  std::optional<RequestLog> log = {};
};

class PoolingCall final : public RunningCall, public std::enable_shared_from_this<PoolingCall> {
 public:
  // Submits the request. The reply gets the answer or the error. The request is cancelled when the client leaves.
  static void start(std::shared_ptr<Engine> engine, PoolingJob job, std::shared_ptr<HttpReply> reply,
                    const std::shared_ptr<RunningGenerations>& running);
  ~PoolingCall() override;

  void abort(const ApiError& error) override;
  void detach() override;

 private:
  PoolingCall(std::shared_ptr<Engine> engine, PoolingJob job, std::shared_ptr<HttpReply> reply,
              std::shared_ptr<RunningGenerations> running);
  void submit();
  void push(PoolingResult result);
  void cancel();
  void answer(const HttpResponse& response);  // on the reply's thread; only the first call has an effect
  HttpResponse response_to(const PoolingResult& result);
  std::shared_ptr<HttpReply> reply();

  const std::shared_ptr<Engine> engine_;
  PoolingJob job_;
  const std::shared_ptr<RunningGenerations> running_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;

  std::mutex posting_mutex_;          // held while the engine's thread posts to the reply; locked before mutex_
  std::mutex mutex_;                  // guards the following three
  std::shared_ptr<HttpReply> reply_;  // null once detached
  std::optional<RequestId> id_;
  bool cancelled_ = false;

  bool done_ = false;  // used on the reply's thread only
};

}  // namespace sluice::server
