// Responses that are computed while no client waits for them, and how they are cancelled.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/generation.h"
#include "server/http/http.h"

namespace sluice::server {

// Answers a client when something was stored. Thread-safe.
class LateAnswer final : public RunningCall {
 public:
  static std::shared_ptr<LateAnswer> start(std::shared_ptr<HttpReply> reply,
                                           std::shared_ptr<RunningGenerations> running);
  ~LateAnswer() override { running_->remove(this); }

  void send(HttpResponse response);
  void abort(const ApiError& error) override;
  void detach() override;

 private:
  LateAnswer(std::shared_ptr<HttpReply> reply, std::shared_ptr<RunningGenerations> running)
      : running_(std::move(running)), reply_(std::move(reply)) {}

  const std::shared_ptr<RunningGenerations> running_;
  std::mutex mutex_;  // held while the reply is used
  std::shared_ptr<HttpReply> reply_;
};

// Takes the place of a client's reply. Tasks run in order on the thread of the connection that asked; the answer goes
// nowhere, as the format keeps it.
class BackgroundReply final : public HttpReply {
 public:
  explicit BackgroundReply(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // Ends the computation, as when a client leaves. What it made is not kept.
  void cancel();
  bool cancelled() const { return cancelled_.load(); }

  void send(HttpResponse) override {}
  void start_stream(HttpResponse) override {}
  void write(std::string) override {}
  void end_stream(bool) override {}
  void abort() override {}
  void on_written(std::function<void()> callback) override { run(std::move(callback)); }
  void run(std::function<void()> task) override;
  void on_abandoned(std::function<void()> callback) override;
  boost::asio::any_io_executor executor() const override { return executor_; }

 private:
  const boost::asio::any_io_executor executor_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::function<void()> abandoned_;
};

// Those that run, by the response's id. Thread-safe. Clients share one through SharedState.
class BackgroundResponses {
 public:
  void add(const std::string& id, const std::shared_ptr<BackgroundReply>& reply);
  bool runs(std::string_view id);
  bool cancel(std::string_view id);  // false: it does not run

 private:
  std::shared_ptr<BackgroundReply> find(std::string_view id);

  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<BackgroundReply>> replies_;
};

}  // namespace sluice::server
