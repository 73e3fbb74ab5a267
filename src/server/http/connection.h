// One connection of the HTTP server, a state machine on its own strand: one read is always outstanding (that is how a
// client that leaves is noticed), at most one write, one timer. Private to the transport: includes Asio.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

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

class Connection;

// What connections share. Owned by the server, outlives them.
struct ConnectionContext {
  ConnectionContext(const HttpServerOptions& options, HttpHandler& handler) : options(options), handler(handler) {}

  const HttpServerOptions& options;
  HttpHandler& handler;
  std::atomic<int> open{0};
  std::atomic<int> busy{0};  // requests between header and the last byte of the answer
  std::atomic<bool> draining{false};
  std::function<void()> on_idle;  // called whenever `busy` falls to 0
  std::mutex mutex;
  std::unordered_set<Connection*> connections;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // With `refused`, the connection is only told that there are too many.
  Connection(std::unique_ptr<ByteStream> stream, ConnectionContext& context, bool refused);
  ~Connection();
  void start(bool tls);
  void post_close_if_idle();  // for draining; any thread, under context.mutex

 private:
  class Reply;
  using Clock = std::chrono::steady_clock;
  enum class State {
    kHandshake,
    kIdle,  // no byte of a request seen
    kHeader,
    kBody,
    kAnswering,  // a reply is out; its head is not written yet
    kStreaming,  // the head of a stream is written
    kFlushing,   // the answer is complete, not all of it is written
    kLingering,  // everything is written; waiting for the client to close
    kClosed,
  };

  void read();
  void on_read(boost::system::error_code error, size_t bytes);
  void on_input();
  void on_header();
  void dispatch();
  void refuse(int status, const std::string& code, const std::string& message);
  void finish_reject();

  void send(HttpResponse response);
  void start_stream(HttpResponse head);
  void write_stream(const std::string& data);
  void end_stream(bool close);
  std::string head(const HttpResponse& response, const std::string& framing);
  void enqueue(std::string bytes);
  void write();
  void on_write(boost::system::error_code error, size_t bytes);
  void answer_complete();
  void next_request();

  void abandon();  // the client is gone or too slow
  void linger();
  void close();
  void end_request();

  void set_deadline(std::chrono::milliseconds timeout);
  void clear_deadline() { deadline_ = Clock::time_point::max(); }
  void wait_timer();
  void on_deadline();

  std::unique_ptr<ByteStream> stream_;
  ConnectionContext& context_;
  const bool refused_;
  State state_ = State::kHandshake;

  std::string read_buffer_;  // where the outstanding read puts its bytes
  std::string input_;        // read, not consumed yet
  bool reading_ = false;
  size_t lingered_ = 0;  // bytes thrown away while lingering
  std::unique_ptr<HttpParser> parser_;
  std::optional<HttpResponse> rejection_;  // sent as soon as the small body is read

  HttpRequest request_;      // of the answer in progress, without its body
  bool busy_ = false;        // counted in context_.busy
  bool body_wanted_ = true;  // false: HEAD
  bool close_after_ = false;
  bool chunked_ = false;
  int status_ = 0;
  Clock::time_point request_start_;
  uint64_t answer_ = 0;  // number of the answer in progress: late calls of earlier replies are ignored
  std::function<void()> abandoned_;

  std::string out_;      // waiting to be written
  std::string writing_;  // being written, from written_ on
  size_t written_ = 0;

  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool timer_waiting_ = false;
};

}  // namespace sluice::server
