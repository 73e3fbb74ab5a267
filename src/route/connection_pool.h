// Idle connections to replicas, kept for the next request.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "route/replica.h"

namespace sluice::route {

// A connection is used by the I/O thread that opened it. Thread-safe.
class ConnectionPool {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // The connection of this thread's executor that was used last, if there is one that the replica has not closed.
  std::optional<Socket> take(const Replica& replica, const boost::asio::any_io_executor& executor);
  void give_back(const Replica& replica, Socket socket);
  // Closes connections that have been idle for long.
  void close_old();
  // Closes all and keeps none from then on.
  void end();

  size_t idle() const;

 private:
  struct Idle {
    Socket socket;
    std::chrono::steady_clock::time_point since;
  };
  using Key = std::pair<const Replica*, const void*>;  // with the execution context
  static Key key_of(const Replica& replica, const boost::asio::any_io_executor& executor);

  mutable std::mutex mutex_;
  std::map<Key, std::deque<Idle>> idle_;  // the last used one at the back
  bool ended_ = false;
};

}  // namespace sluice::route
