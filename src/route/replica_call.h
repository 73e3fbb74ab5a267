// One request to one replica, and its answer piece by piece: a state machine on one I/O thread with at most one write,
// one read and one timer outstanding.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "route/answer_reader.h"
#include "route/connection_pool.h"
#include "route/replica.h"

namespace sluice::route {

// Bytes for a replica. Several calls may share the body.
struct CallRequest {
  std::string head;  // with the empty line at its end
  std::shared_ptr<const std::string> body;
  bool head_only = false;  // the method is HEAD
};

struct CallLimits {
  std::chrono::milliseconds connect{1000};
  std::chrono::milliseconds silence{0};  // without a byte from the replica; 0: no limit
  int header_bytes = 64 << 10;
};

class ReplicaCall : public std::enable_shared_from_this<ReplicaCall> {
 public:
  enum class Failure {
    kRefused,      // its machine refuses the connection
    kUnreachable,  // no connection, for another reason
    kClosed,       // the replica closed the connection before the end of its answer, or before its first byte
    kTimeout,      // no byte for too long
    kLost,         // the replica does not answer /health either
    kInvalid,      // the answer is not valid HTTP
    kFault,        // out of memory, most likely
  };
  struct Listener {
    // More of the answer has arrived. If it is not done, read() asks for the rest.
    std::function<void(AnswerReader&)> on_answer;
    // The last call of a listener if there is one. `reason` is for the log.
    std::function<void(Failure, const std::string& reason)> on_failure;
  };

  // With a pool, an idle connection is used if there is one, and the connection goes back when the answer is done.
  // Without one, the call has a connection of its own. `pool` must outlive the call.
  ReplicaCall(std::shared_ptr<Replica> replica, ConnectionPool* pool, const boost::asio::any_io_executor& executor,
              CallRequest request, const CallLimits& limits, Listener listener);

  void start();
  void read();
  // Closes the connection. The listener is not called any more.
  void cancel() noexcept;

  const AnswerReader& answer() const { return reader_; }
  // When the first byte of the request went to the replica.
  std::chrono::steady_clock::time_point sent_at() const { return sent_at_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Results = boost::asio::ip::tcp::resolver::results_type;

  template <class F>
  void guarded(F&& task) noexcept;
  void connect();
  void connect_to(const Results& endpoints);
  void on_connected(boost::system::error_code error);
  void send();
  void on_read(boost::system::error_code error, size_t bytes);
  void on_end(const boost::system::error_code& error);
  void on_progress();
  void fail(Failure failure, const std::string& reason);
  void set_limit(std::chrono::milliseconds limit);
  void wait_timer();
  void on_timer();

  const std::shared_ptr<Replica> replica_;
  ConnectionPool* const pool_;
  const CallRequest request_;
  const CallLimits limits_;
  Listener listener_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point sent_at_;
  AnswerReader reader_;
  std::unique_ptr<char[]> buffer_;
  std::string input_;
  bool reused_ = false;  // the connection was idle before
  bool connected_ = false;
  bool written_ = false;  // the replica's kernel has the whole request
  bool reading_ = false;
  bool ended_ = false;
};

}  // namespace sluice::route
