// One timer and at most one call per replica, all on one thread.
#include "route/health.h"

#include <fmt/core.h>

#include <boost/asio/post.hpp>

#include "base/log.h"

namespace sluice::route {

using Failure = ReplicaCall::Failure;

namespace {

constexpr int kSilentToLeave = 2;  // polls in a row without an answer in time: a busy machine may miss one
constexpr int kSilentToBeLost = 5;
constexpr size_t kMostHealth = 16 << 10;  // bytes of an answer that are read

}  // namespace

struct HealthMonitor::Watch {
  Watch(HealthMonitor& m, const boost::asio::any_io_executor& executor) : monitor(&m), timer(executor) {}
  HealthMonitor* monitor;  // null after stop()
  boost::asio::steady_timer timer;
  std::shared_ptr<ReplicaCall> call;
  std::string body;  // of the answer, as far as it is read
  int silent = 0;    // polls in a row without an answer
  bool asked = false;
};

HealthMonitor::HealthMonitor(const RouteOptions& options, const Replicas& replicas, Policy& policy,
                             ConnectionPool& pool, const boost::asio::any_io_executor& executor)
    : options_(options), replicas_(replicas), policy_(policy), pool_(pool), executor_(executor) {
  for (size_t i = 0; i < replicas.size(); ++i) watches_.push_back(std::make_shared<Watch>(*this, executor));
}

HealthMonitor::~HealthMonitor() { stop(); }

void HealthMonitor::start(std::function<void()> first_round) {
  first_round_ = std::move(first_round);
  unknown_ = replicas_.size();
  for (size_t i = 0; i < replicas_.size(); ++i) poll_after(i, {});
}

void HealthMonitor::stop() {
  for (const auto& watch : watches_) {
    watch->monitor = nullptr;
    watch->timer.cancel();
    if (watch->call) watch->call->cancel();
    watch->call = nullptr;
  }
}

void HealthMonitor::poll_after(size_t i, std::chrono::milliseconds delay) {
  watches_[i]->timer.expires_after(delay);
  watches_[i]->timer.async_wait([i, watch = watches_[i]](boost::system::error_code error) {
    if (!error && watch->monitor != nullptr) watch->monitor->poll(i);
  });
}

// Polling goes on whatever happens: without memory, the next poll is tried later.
void HealthMonitor::poll(size_t i) {
  if (watches_[i]->call) return;
  try {
    ask(i);
  } catch (const std::exception& e) {
    log::warning("replica {} is not asked for its health: {}", replicas_[i]->url, e.what());
    watches_[i]->call = nullptr;
    poll_after(i, std::chrono::milliseconds(options_.health_interval_ms));
  }
}

void HealthMonitor::ask(size_t i) {
  Watch& watch = *watches_[i];
  const std::chrono::milliseconds timeout(options_.health_timeout_ms);
  CallRequest request{
      .head = fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", replicas_[i]->authority),
      .body = nullptr};
  watch.body.clear();
  // A connection of its own shows whether the replica still accepts connections.
  watch.call = std::make_shared<ReplicaCall>(
      replicas_[i], nullptr, executor_, std::move(request), CallLimits{.connect = timeout, .silence = timeout},
      ReplicaCall::Listener{
          .on_answer =
              [this, i](AnswerReader& answer) {
                Watch& own = *watches_[i];
                if (answer.has_head()) own.body += answer.take_body();
                // Where a server gives keys and values is in the body.
                const bool reads_body = replicas_[i]->role == Role::kPrefill && own.body.size() < kMostHealth;
                if (!answer.has_head() || (reads_body && !answer.done())) return own.call->read();
                if (reads_body) replicas_[i]->set_transfer(transfer_address(own.body));
                on_answer(i, answer.head().status);
              },
          .on_failure = [this, i](Failure failure, const std::string& reason) { on_failure(i, failure, reason); }});
  watch.call->start();
}

void HealthMonitor::on_answer(size_t i, int status) {
  Replica& replica = *replicas_[i];
  watches_[i]->silent = 0;
  replica.lost = false;
  if (status >= 500) {
    leave(i, fmt::format("/health answers {}", status));
  } else if (!replica.healthy.exchange(true)) {
    log::info("replica {} is healthy", replica.url);
  }
  done(i);
}

void HealthMonitor::on_failure(size_t i, Failure failure, const std::string& reason) {
  // A server that drains may refuse connections and still finish its requests: it is not lost.
  const bool refused = failure == Failure::kRefused || failure == Failure::kClosed;
  const int silent = refused ? 0 : ++watches_[i]->silent;
  if (refused || silent >= kSilentToLeave) leave(i, reason);
  replicas_[i]->lost = silent >= kSilentToBeLost;
  if (refused || replicas_[i]->lost) policy_.forget(i);
  done(i);
}

void HealthMonitor::done(size_t i) {
  Watch& watch = *watches_[i];
  // The call is still running this function.
  boost::asio::post(executor_, [call = std::exchange(watch.call, nullptr)] { call->cancel(); });
  if (i == 0) pool_.close_old();
  poll_after(i, std::chrono::milliseconds(options_.health_interval_ms));
  if (!std::exchange(watch.asked, true) && --unknown_ == 0 && first_round_) std::exchange(first_round_, nullptr)();
}

void HealthMonitor::leave(size_t i, const std::string& reason) {
  if (replicas_[i]->healthy.exchange(false)) {
    ++replicas_[i]->left;
    log::warning("replica {} leaves the rotation: {}", replicas_[i]->url, reason);
  } else if (!watches_[i]->asked) {
    log::warning("replica {} is not healthy: {}", replicas_[i]->url, reason);
  }
}

void HealthMonitor::refused(size_t i) {
  policy_.forget(i);
  if (!replicas_[i]->healthy.exchange(false)) return;
  ++replicas_[i]->left;
  log::warning("replica {} leaves the rotation: it refuses connections", replicas_[i]->url);
}

void HealthMonitor::suspected(size_t i) {
  boost::asio::post(executor_, [i, watch = watches_[i]] {
    if (watch->monitor != nullptr) watch->monitor->poll(i);
  });
}

}  // namespace sluice::route
