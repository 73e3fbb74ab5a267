// Stacks of sockets.
#include "route/connection_pool.h"

#include <sys/socket.h>

#include <boost/asio/execution.hpp>
#include <boost/asio/query.hpp>

namespace sluice::route {
namespace {

constexpr size_t kMaxIdle = 256;                  // of one replica and thread
constexpr std::chrono::seconds kMaxIdleTime{20};  // servers close theirs after a minute or so

// An idle connection has nothing to read. An end of the stream, or bytes that nobody asked for, end its use.
bool is_quiet(ConnectionPool::Socket& socket) {
  char byte;
  const ssize_t n = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

ConnectionPool::Key ConnectionPool::key_of(const Replica& replica, const boost::asio::any_io_executor& executor) {
  return {&replica, &boost::asio::query(executor, boost::asio::execution::context)};
}

std::optional<ConnectionPool::Socket> ConnectionPool::take(const Replica& replica,
                                                           const boost::asio::any_io_executor& executor) {
  const auto oldest = std::chrono::steady_clock::now() - kMaxIdleTime;
  const std::lock_guard lock(mutex_);
  const auto found = idle_.find(key_of(replica, executor));
  if (found == idle_.end()) return std::nullopt;
  std::deque<Idle>& stack = found->second;
  while (!stack.empty()) {
    Idle idle = std::move(stack.back());
    stack.pop_back();
    if (idle.since > oldest && is_quiet(idle.socket)) return std::move(idle.socket);
  }
  return std::nullopt;
}

void ConnectionPool::give_back(const Replica& replica, Socket socket) {
  const Key key = key_of(replica, socket.get_executor());
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  std::deque<Idle>& stack = idle_[key];
  if (stack.size() >= kMaxIdle) stack.pop_front();
  stack.push_back({std::move(socket), std::chrono::steady_clock::now()});
}

void ConnectionPool::close_old() {
  const auto oldest = std::chrono::steady_clock::now() - kMaxIdleTime;
  const std::lock_guard lock(mutex_);
  for (auto& [key, stack] : idle_) {
    while (!stack.empty() && stack.front().since <= oldest) stack.pop_front();
  }
}

void ConnectionPool::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  idle_.clear();
}

size_t ConnectionPool::idle() const {
  const std::lock_guard lock(mutex_);
  size_t n = 0;
  for (const auto& [key, stack] : idle_) n += stack.size();
  return n;
}

}  // namespace sluice::route
