// The connection's state machine. Everything here runs on the connection's strand.
#include "server/http/connection.h"

#include <fmt/core.h>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <ctime>

#include "base/log.h"

namespace sluice::server {
namespace {

constexpr size_t kHeaderReadBytes = 4 << 10;
constexpr size_t kBodyReadBytes = 64 << 10;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while an answer is in progress
constexpr size_t kMaxDiscardedBody = 64 << 10;   // a refused request's body that is read to keep the connection
constexpr size_t kMaxLingerBytes = 1 << 20;
constexpr std::chrono::milliseconds kLingerTimeout{1000};

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

}  // namespace

// Forwards to the connection's strand; holds the connection weakly, so that a forgotten reply keeps nothing open.
class Connection::Reply : public HttpReply {
 public:
  Reply(const std::shared_ptr<Connection>& connection, uint64_t answer)
      : connection_(connection), executor_(connection->stream_->socket().get_executor()), answer_(answer) {}

  ~Reply() override {
    if (used_) return;
    // A reply dropped without an answer is a fault of the handler; the client must not wait for it.
    on_connection([](Connection& c) {
      if (c.state_ == State::kAnswering) c.send(c.context_.handler.on_refused(500, "", "The request was dropped."));
    });
  }

  void send(HttpResponse response) override {
    used_ = true;
    on_connection([response = std::move(response)](Connection& c) mutable { c.send(std::move(response)); });
  }
  void start_stream(HttpResponse head) override {
    used_ = true;
    on_connection([head = std::move(head)](Connection& c) mutable { c.start_stream(std::move(head)); });
  }
  void write(std::string data) override {
    on_connection([data = std::move(data)](Connection& c) { c.write_stream(data); });
  }
  void end_stream(bool close) override {
    on_connection([close](Connection& c) { c.end_stream(close); });
  }
  void run(std::function<void()> task) override { boost::asio::post(executor_, std::move(task)); }

  void on_abandoned(std::function<void()> callback) override {
    boost::asio::dispatch(executor_, [connection = connection_, answer = answer_, callback = std::move(callback)] {
      const auto c = connection.lock();
      if (c && c->answer_ == answer && c->state_ != State::kClosed) {
        c->abandoned_ = callback;
      } else {
        callback();
      }
    });
  }

 private:
  template <class F>
  void on_connection(F task) {
    boost::asio::dispatch(executor_, [connection = connection_, answer = answer_, task = std::move(task)]() mutable {
      const auto c = connection.lock();
      if (c && c->answer_ == answer) task(*c);
    });
  }

  const std::weak_ptr<Connection> connection_;
  const boost::asio::any_io_executor executor_;
  const uint64_t answer_;
  std::atomic<bool> used_{false};
};

Connection::Connection(std::unique_ptr<ByteStream> stream, ConnectionContext& context, bool refused)
    : stream_(std::move(stream)),
      context_(context),
      refused_(refused),
      parser_(std::make_unique<HttpParser>(context.options.limits)),
      timer_(stream_->socket().get_executor()) {
  ++context_.open;
  std::lock_guard lock(context_.mutex);
  context_.connections.insert(this);
}

Connection::~Connection() {
  {
    std::lock_guard lock(context_.mutex);
    context_.connections.erase(this);
  }
  end_request();
  --context_.open;
}

void Connection::start(bool tls) {
  set_deadline(context_.options.header_timeout);
  const auto begin = [this] {
    state_ = State::kIdle;
    if (refused_) return refuse(503, "server_is_overloaded", "The server has too many connections.");
    read();
  };
  if (!tls) return begin();
  stream_->handshake([self = shared_from_this(), this, begin](boost::system::error_code error) {
    if (state_ == State::kClosed) return;
    if (error) return close();
    begin();
  });
}

void Connection::post_close_if_idle() {
  boost::asio::post(stream_->socket().get_executor(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->state_ == State::kIdle) self->close();
  });
}

// Reading

void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  const bool answering = state_ == State::kAnswering || state_ == State::kStreaming || state_ == State::kFlushing;
  if (answering && input_.size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  const size_t size = state_ == State::kBody ? kBodyReadBytes : kHeaderReadBytes;
  if (read_buffer_.size() != size) {
    read_buffer_.resize(size);
    read_buffer_.shrink_to_fit();
  }
  stream_->read_some(
      read_buffer_.data(), read_buffer_.size(),
      [self = shared_from_this()](boost::system::error_code error, size_t bytes) { self->on_read(error, bytes); });
}

void Connection::on_read(boost::system::error_code error, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error == boost::asio::error::eof && state_ == State::kFlushing) {
    close_after_ = true;  // the client asked, closed its side and still reads
    return;
  }
  if (error) return abandon();
  if (state_ == State::kLingering) {
    lingered_ += bytes;
    if (lingered_ > kMaxLingerBytes) return close();
    return read();
  }
  input_.append(read_buffer_.data(), bytes);
  on_input();
  read();
}

// Consumes what a request needs of input_.
void Connection::on_input() {
  if (state_ == State::kIdle && !input_.empty()) {
    state_ = State::kHeader;
    set_deadline(context_.options.header_timeout);
  }
  if (state_ == State::kHeader) {
    parser_->feed(input_);
    if (parser_->state() == HttpParser::State::kBody || parser_->state() == HttpParser::State::kDone) on_header();
  }
  if (state_ == State::kBody) {
    const size_t before = input_.size();
    parser_->feed(input_);
    if (before > 0) set_deadline(context_.options.body_timeout);
    if (parser_->state() == HttpParser::State::kDone) dispatch();
  }
  if (parser_->state() == HttpParser::State::kRefused && (state_ == State::kHeader || state_ == State::kBody)) {
    const HttpRefusal refusal = parser_->refusal();
    refuse(refusal.status, refusal.code, refusal.message);
  }
}

void Connection::on_header() {
  state_ = State::kBody;
  set_deadline(context_.options.body_timeout);
  HttpRequest& request = parser_->request();
  busy_ = true;
  ++context_.busy;
  request_start_ = Clock::now();
  body_wanted_ = request.method != "HEAD";
  close_after_ = !parser_->keep_alive();
  rejection_ = context_.handler.on_header(request);
  if (parser_->state() == HttpParser::State::kDone) return;
  if (rejection_) {
    // Reading a small body keeps the connection usable; a large one is not worth it.
    const auto length = parser_->content_length();
    if (parser_->expects_continue() || !length || *length > kMaxDiscardedBody) {
      close_after_ = true;
      finish_reject();
    }
  } else if (parser_->expects_continue() && input_.empty()) {
    enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

void Connection::dispatch() {
  if (rejection_) return finish_reject();
  state_ = State::kAnswering;
  clear_deadline();
  HttpRequest request = std::move(parser_->request());
  std::string body = std::move(request.body);
  request_ = request;
  request.body = std::move(body);
  context_.handler.on_request(std::move(request), std::make_shared<Reply>(shared_from_this(), answer_));
}

void Connection::finish_reject() {
  state_ = State::kAnswering;
  request_ = std::move(parser_->request());
  HttpResponse response = std::move(*rejection_);
  rejection_.reset();
  send(std::move(response));
}

// Answers what is not a request to be served, and ends the connection.
void Connection::refuse(int status, const std::string& code, const std::string& message) {
  request_ = std::move(parser_->request());
  state_ = State::kAnswering;
  close_after_ = true;
  send(context_.handler.on_refused(status, code, message));
}

// Writing

void Connection::send(HttpResponse response) {
  if (state_ != State::kAnswering) return;
  if (response.close) close_after_ = true;
  const bool bodyless = response.status == 204;
  std::string bytes = head(response, bodyless ? "" : fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (body_wanted_ && !bodyless) bytes += response.body;
  state_ = State::kFlushing;
  enqueue(std::move(bytes));
}

void Connection::start_stream(HttpResponse response) {
  if (state_ != State::kAnswering) return;
  if (response.close) close_after_ = true;
  chunked_ = request_.version == 11;
  if (!chunked_) close_after_ = true;
  state_ = State::kStreaming;
  enqueue(head(response, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""));
}

void Connection::write_stream(const std::string& data) {
  if (state_ != State::kStreaming || data.empty() || !body_wanted_) return;
  if (out_.size() + writing_.size() - written_ > context_.options.max_stream_backlog) {
    log::info("{}: the client does not read its stream; abandoned", request_.id);
    return abandon();
  }
  enqueue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", data.size(), data) : data);
}

void Connection::end_stream(bool close) {
  if (state_ != State::kStreaming) return;
  if (close) close_after_ = true;
  state_ = State::kFlushing;
  enqueue(chunked_ && body_wanted_ ? "0\r\n\r\n" : "");
}

std::string Connection::head(const HttpResponse& response, const std::string& framing) {
  if (context_.draining) close_after_ = true;
  status_ = response.status;
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status, reason_phrase(response.status), http_date());
  if (response.status != 204) text += fmt::format("Content-Type: {}\r\n", response.content_type);
  text += framing;
  const auto add = [&](const Headers& headers) {
    for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  };
  add(response.headers);
  add(context_.handler.common_headers(request_.method.empty() ? nullptr : &request_));
  if (close_after_) {
    text += "Connection: close\r\n";
  } else if (request_.version == 10) {
    text += "Connection: keep-alive\r\n";
  }
  return text + "\r\n";
}

void Connection::enqueue(std::string bytes) {
  out_ += bytes;
  write();
}

void Connection::write() {
  if (!writing_.empty() || state_ == State::kClosed) return;
  if (out_.empty()) {
    if (state_ == State::kFlushing) answer_complete();
    return;
  }
  writing_.swap(out_);
  out_.clear();
  if (state_ != State::kBody) set_deadline(context_.options.body_timeout);
  on_write({}, 0);
}

void Connection::on_write(boost::system::error_code error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) return abandon();
  written_ += bytes;
  if (bytes > 0 && state_ != State::kBody) set_deadline(context_.options.body_timeout);
  if (written_ < writing_.size()) {
    stream_->write_some(writing_.data() + written_, writing_.size() - written_,
                        [self = shared_from_this()](boost::system::error_code e, size_t n) { self->on_write(e, n); });
    return;
  }
  writing_.clear();
  written_ = 0;
  if (writing_.capacity() > kBodyReadBytes) writing_.shrink_to_fit();
  if (state_ == State::kAnswering || state_ == State::kStreaming) clear_deadline();
  write();
}

void Connection::answer_complete() {
  end_request();
  if (close_after_ || context_.draining) return linger();
  next_request();
}

void Connection::next_request() {
  parser_ = std::make_unique<HttpParser>(context_.options.limits);
  request_ = {};
  body_wanted_ = true;
  state_ = State::kIdle;
  set_deadline(context_.options.keep_alive_timeout);
  if (out_.capacity() > kBodyReadBytes) out_ = {};
  // From a fresh stack: the next request may be here already, and the one after it, and so on.
  boost::asio::post(stream_->socket().get_executor(), [self = shared_from_this()] {
    if (self->state_ != State::kIdle) return;
    self->on_input();
    self->read();
  });
}

// Ends

void Connection::end_request() {
  ++answer_;
  abandoned_ = nullptr;
  if (!busy_) return;
  busy_ = false;
  const double seconds = std::chrono::duration<double>(Clock::now() - request_start_).count();
  context_.handler.on_finished(request_, status_ == 0 ? 499 : status_, seconds);
  status_ = 0;
  if (--context_.busy == 0 && context_.on_idle) context_.on_idle();
}

void Connection::abandon() {
  if (state_ == State::kClosed) return;
  const auto callback = std::move(abandoned_);
  close();
  if (callback) callback();
}

// Closing a socket with unread bytes resets it, and the client may lose the answer: so the client closes first, or a
// second passes.
void Connection::linger() {
  state_ = State::kLingering;
  set_deadline(kLingerTimeout);
  input_.clear();
  stream_->finish_writing([self = shared_from_this()] {});
  read();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  boost::system::error_code ignored;
  stream_->socket().close(ignored);
  timer_.cancel();
  end_request();
}

// Time

void Connection::set_deadline(std::chrono::milliseconds timeout) {
  deadline_ = Clock::now() + timeout;
  // A pending wait is left alone unless it would be late: it looks at deadline_ again when it ends.
  if (!timer_waiting_ || timer_.expiry() > deadline_) wait_timer();
}

void Connection::wait_timer() {
  timer_waiting_ = true;
  timer_.expires_at(deadline_);
  timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const auto self = weak.lock();
    if (!self || error || self->state_ == State::kClosed) return;
    self->timer_waiting_ = false;
    if (Clock::now() >= self->deadline_) return self->on_deadline();
    if (self->deadline_ != Clock::time_point::max()) self->wait_timer();
  });
}

void Connection::on_deadline() {
  clear_deadline();
  switch (state_) {
    case State::kHeader:
      return refuse(408, "timeout", "The request header did not arrive in time.");
    case State::kBody:
      return refuse(408, "timeout", "The request body did not arrive in time.");
    case State::kAnswering:
    case State::kStreaming:
    case State::kFlushing:
      return abandon();
    default:
      return close();
  }
}

}  // namespace sluice::server
