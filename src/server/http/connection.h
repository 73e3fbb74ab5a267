// One connection of the HTTP server: a state machine on one I/O thread with at most one read, one write and one timer
// outstanding. Private to the transport because it includes Asio.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/body_budget.h"
#include "server/http/connection_table.h"
#include "server/http/server.h"

namespace sluice::server {

// A TCP or TLS socket.
class ByteStream {
 public:
  using Done = std::function<void(boost::system::error_code, size_t)>;
  virtual ~ByteStream() = default;
  virtual void handshake(std::function<void(boost::system::error_code)> done) = 0;
  virtual void read_some(char* data, size_t size, Done done) = 0;
  virtual void write_some(const char* data, size_t size, Done done) = 0;
  virtual void finish_writing(std::function<void()> done) = 0;  // tells the peer that nothing more comes
  virtual boost::asio::ip::tcp::socket& socket() = 0;
};

// What connections share. The server owns it, and it outlives them.
struct ConnectionContext {
  ConnectionContext(const HttpServerOptions& options, HttpHandler& handler);

  const HttpServerOptions& options;
  HttpHandler& handler;
  ConnectionTable table;
  BodyBudget bodies;
  std::atomic<int> busy{0};     // requests between their header and the last byte of their answer
  std::atomic<int> flagged{0};  // connections that look() must be called for
  std::atomic<bool> draining{false};
  std::function<void()> on_idle;  // called whenever `busy` falls to 0; throws nothing
};

// A connection owns itself from start() to close(). Whatever a handler throws closes the connection and abandons its
// request.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<ByteStream> stream, ConnectionContext& context, ConnectionTable::Place place,
             const boost::asio::ip::address& peer);
  ~Connection();
  void enter_table() { context_.table.add(entry_); }  // before start(); from then on other threads know the connection
  void start(bool tls);

  // Closes the connection unless it serves a request. Any thread; under the table's lock.
  void post_close_if_waiting() { post_close(State::kHeader); }
  // Closes the connection if no byte of a request has arrived. Any thread; under the table's lock.
  void post_close_if_idle() { post_close(State::kIdle); }
  // Calls look() on the connection's thread if the connection asked for it. Any thread; under the table's lock.
  void post_look();
  // For the end of the server, when no I/O thread runs any more.
  void end() noexcept { abandon(); }

 private:
  class Reply;
  static constexpr uint64_t kNoAnswer = ~uint64_t{0};
  using Clock = std::chrono::steady_clock;
  enum class State {
    kHandshake,
    kIdle,  // no byte of a request has arrived
    kHeader,
    kBody,
    kAnswering,  // a handler has the request; the head of its answer is not written yet
    kStreaming,  // the head of a stream is written
    kFlushing,   // the answer is complete, but not all of it is written
    kLingering,  // everything is written; the client has to close
    kClosed,
  };

  void post_close(State latest);
  void set_state(State state);
  template <class F>
  void guarded(F&& task) noexcept;
  void fail(const char* what) noexcept;
  void request_look() noexcept;
  void look();

  void read();
  bool may_read_ahead();
  void on_read(boost::system::error_code error, size_t bytes);
  void on_input();
  void on_header();
  void read_body();
  void dispatch();
  void refuse(int status, const std::string& code, const std::string& message);
  void finish_reject();

  void send(HttpResponse response);
  void start_stream(HttpResponse head);
  void write_stream(const std::string& data);
  void end_stream(bool close);
  void on_written(std::function<void()> callback);
  void abort();
  std::string head(const HttpResponse& response, const std::string& framing);
  std::string framed(const std::string& data) const;  // bytes of a stream
  void enqueue(std::string bytes);
  void write();
  void on_write(boost::system::error_code error, size_t bytes);
  void answer_complete();
  void next_request();

  void abandon() noexcept;  // the client is gone or too slow
  void linger();
  void close() noexcept;
  void end_request() noexcept;

  void set_deadline(Clock::time_point deadline);
  void set_timeout(std::chrono::milliseconds timeout) { set_deadline(Clock::now() + timeout); }
  void set_body_deadline();
  void clear_deadline() { deadline_ = Clock::time_point::max(); }
  void wait_timer();
  void on_deadline();

  std::unique_ptr<ByteStream> stream_;
  ConnectionContext& context_;
  ConnectionTable::Entry entry_;
  std::shared_ptr<Connection> self_;  // from start() to close()
  State state_ = State::kHandshake;
  std::atomic<bool> look_requested_{false};         // counted in context_.flagged
  std::atomic<uint64_t> broken_answer_{kNoAnswer};  // an answer whose reply could not pass something on

  std::string read_buffer_;  // where the outstanding read puts its bytes
  std::string input_;        // read, but not consumed yet
  BodyCharge input_charge_;
  bool reading_ = false;
  std::optional<Clock::time_point> paused_since_;  // reading waits for the end of the answer
  size_t lingered_ = 0;                            // bytes thrown away while lingering
  std::unique_ptr<HttpParser> parser_;
  std::optional<HttpResponse> rejection_;  // sent as soon as the small body has arrived
  Clock::time_point body_start_;
  int64_t body_bytes_ = 0;              // bytes of the body's messages that have arrived
  std::shared_ptr<BodyCharge> charge_;  // of the body that is being read

  HttpRequest request_;      // the request of the answer in progress, without its body
  bool busy_ = false;        // counted in context_.busy
  bool body_wanted_ = true;  // false: HEAD
  bool close_after_ = false;
  bool chunked_ = false;
  int status_ = 0;
  Clock::time_point request_start_;
  uint64_t answer_ = 0;  // number of the answer in progress: late calls of earlier replies are ignored
  std::function<void()> abandoned_;
  std::function<void()> written_callback_;

  std::string out_;      // waiting to be written
  std::string writing_;  // being written, from written_ on
  size_t written_ = 0;

  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool timer_waiting_ = false;
};

}  // namespace sluice::server
