// The connection's state machine. Everything here runs on the connection's I/O thread unless the header says otherwise.
#include "server/http/connection.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <ctime>
#include <utility>

#include "base/log.h"

namespace sluice::server {
namespace {

constexpr size_t kHeaderReadBytes = 4 << 10;
constexpr size_t kBodyReadBytes = 64 << 10;
constexpr size_t kFreeReadAhead = 64 << 10;     // read while an answer is in progress; more counts as a body
constexpr size_t kMaxReadAhead = 256 << 10;     // reading pauses there
constexpr size_t kMaxDiscardedBody = 64 << 10;  // a refused request's body that is read to keep the connection
constexpr size_t kMaxLingerBytes = 1 << 20;
constexpr const char* kBodiesExhausted = "The server holds too many request bodies. Please try again later.";
constexpr std::chrono::milliseconds kLingerTimeout{1000};
constexpr std::chrono::milliseconds kReserveTimeout{1000};  // for the header of a request on a reserve connection

void report(const char* event, const char* reason) noexcept {
  try {
    log::warning("{}: {}", event, reason);
  } catch (...) {  // there may be no memory for the line either
  }
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

}  // namespace

ConnectionContext::ConnectionContext(const HttpServerOptions& o, HttpHandler& h)
    : options(o),
      handler(h),
      table({.connections = o.max_connections, .per_address = o.max_connections_per_address}),
      bodies(o.total_body_bytes) {}

// Forwards to the connection's I/O thread. Holds the connection weakly, so that a forgotten reply keeps nothing open.
// If a call cannot be passed on for lack of memory, the connection is closed.
class Connection::Reply : public HttpReply {
 public:
  Reply(const std::shared_ptr<Connection>& connection, uint64_t answer)
      : connection_(connection), executor_(connection->stream_->socket().get_executor()), answer_(answer) {}

  ~Reply() override {
    if (used_) return;
    // A reply that is dropped without an answer is a fault of the handler. The client must not wait for it.
    on_connection([](Connection& c) {
      if (c.state_ == State::kAnswering)
        c.send(c.context_.handler.on_refused(c.request_.path, 500, "", "The request was dropped."));
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

  void on_written(std::function<void()> callback) override {
    on_connection([callback = std::move(callback)](Connection& c) mutable { c.on_written(std::move(callback)); });
  }
  void abort() override {
    used_ = true;
    on_connection([](Connection& c) { c.abort(); });
  }
  boost::asio::any_io_executor executor() const override { return executor_; }

  void run(std::function<void()> task) override {
    guarded([&] {
      boost::asio::post(executor_, [connection = connection_, answer = answer_, task = std::move(task)] {
        const auto c = connection.lock();
        if (c && c->answer_ == answer) return c->guarded(task);
        try {
          task();
        } catch (const std::exception& e) {
          report("a task of an ended request", e.what());
        }
      });
    });
  }

  void on_abandoned(std::function<void()> callback) override {
    const auto shared = std::make_shared<std::function<void()>>(std::move(callback));
    const bool passed_on = guarded([&] {
      boost::asio::dispatch(executor_, [connection = connection_, answer = answer_, shared] {
        const auto c = connection.lock();
        if (c && c->answer_ == answer && c->state_ != State::kClosed) {
          c->abandoned_ = std::move(*shared);
        } else {
          (*shared)();
        }
      });
    });
    if (!passed_on) (*shared)();
  }

 private:
  template <class F>
  void on_connection(F task) {
    guarded([&] {
      boost::asio::dispatch(executor_, [connection = connection_, answer = answer_, task = std::move(task)]() mutable {
        const auto c = connection.lock();
        if (!c || c->answer_ != answer) return;
        // An earlier part is missing. What follows would look like a whole answer.
        if (c->broken_answer_ == answer) return c->fail("out of memory");
        c->guarded([&] { task(*c); });
      });
    });
  }

  // False if the call threw. The connection then closes soon.
  template <class F>
  bool guarded(F&& call) noexcept {
    try {
      call();
      return true;
    } catch (...) {
      used_ = true;  // no other answer follows
      if (const auto c = connection_.lock()) {
        c->broken_answer_ = answer_;
        c->request_look();
      }
      return false;
    }
  }

  const std::weak_ptr<Connection> connection_;
  const boost::asio::any_io_executor executor_;
  const uint64_t answer_;
  std::atomic<bool> used_{false};
};

Connection::Connection(std::unique_ptr<ByteStream> stream, ConnectionContext& context, ConnectionTable::Place place,
                       const boost::asio::ip::address& peer)
    : stream_(std::move(stream)),
      context_(context),
      entry_(this, place, ConnectionTable::network_of(peer)),
      input_charge_(context.bodies),
      parser_(std::make_unique<HttpParser>(context.options.limits)),
      timer_(stream_->socket().get_executor()) {}

Connection::~Connection() {
  abandon();
  context_.table.remove(entry_);
  if (look_requested_) --context_.flagged;
}

void Connection::start(bool tls) {
  if (state_ == State::kClosed) return;
  self_ = shared_from_this();
  guarded([&] {
    set_state(State::kHandshake);
    const bool reserve = entry_.place != ConnectionTable::Place::kNormal;
    set_timeout(reserve ? std::min(context_.options.header_timeout, kReserveTimeout) : context_.options.header_timeout);
    const auto begin = [this] {
      set_state(State::kIdle);
      read();
    };
    if (!tls) return begin();
    stream_->handshake([self = self_, this, begin](boost::system::error_code error) {
      if (state_ == State::kClosed) return;
      if (error) return close();
      guarded(begin);
    });
  });
}

// Closes the connection if its state is `latest` or an earlier one.
void Connection::post_close(State latest) {
  boost::asio::post(stream_->socket().get_executor(), [latest, weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && self->state_ <= latest) self->close();
  });
}

void Connection::set_state(State state) {
  state_ = state;
  if (state == State::kClosed) return context_.table.set_closing(entry_);
  context_.table.set_waiting(entry_, state <= State::kHeader);
}

// Faults

template <class F>
void Connection::guarded(F&& task) noexcept {
  try {
    task();
  } catch (const std::exception& e) {
    fail(e.what());
  } catch (...) {
    fail("unknown exception");
  }
}

void Connection::fail(const char* what) noexcept {
  if (state_ == State::kClosed) return;
  report("a connection is closed", what);
  abandon();
}

// Some things cannot be waited for: a call that a reply could not pass on, and the end of a connection whose bytes are
// not read. The server looks at such connections a few times per second.
void Connection::request_look() noexcept {
  if (!look_requested_.exchange(true)) ++context_.flagged;
}

void Connection::post_look() {
  if (!look_requested_) return;
  boost::asio::post(stream_->socket().get_executor(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->guarded([&] { self->look(); });
  });
}

void Connection::look() {
  if (look_requested_.exchange(false)) --context_.flagged;
  if (broken_answer_ == answer_) return fail("out of memory");
  if (!paused_since_ || (state_ != State::kAnswering && state_ != State::kStreaming)) return;
  pollfd socket{.fd = stream_->socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&socket, 1, 0) > 0) return abandon();
  // The end may be stuck behind bytes that the socket's full buffer keeps at the client.
  if (Clock::now() - *paused_since_ > context_.options.body_timeout) {
    log::info("{}: the client sent more than {} bytes during an answer; abandoned", request_.id, kMaxReadAhead);
    return abandon();
  }
  request_look();
}

// Reading

void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  const bool answering = state_ == State::kAnswering || state_ == State::kStreaming || state_ == State::kFlushing;
  if (answering && !may_read_ahead()) {
    if (!paused_since_) paused_since_ = Clock::now();
    return request_look();
  }
  paused_since_.reset();
  reading_ = true;
  const size_t size = state_ == State::kBody ? kBodyReadBytes : kHeaderReadBytes;
  if (read_buffer_.size() != size) {
    read_buffer_.resize(size);
    read_buffer_.shrink_to_fit();
  }
  stream_->read_some(read_buffer_.data(), read_buffer_.size(),
                     [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
                       self->guarded([&] { self->on_read(error, bytes); });
                     });
}

// Requests may follow while an answer is in progress. Only by reading on is the end of the connection seen behind them.
bool Connection::may_read_ahead() {
  return input_.size() < kMaxReadAhead &&
         input_charge_.resize(input_.size() < kFreeReadAhead ? 0 : static_cast<int64_t>(input_.size()));
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
    set_state(State::kHeader);
    if (entry_.place == ConnectionTable::Place::kNormal) set_timeout(context_.options.header_timeout);
  }
  if (state_ == State::kHeader) {
    parser_->feed(input_);
    if (parser_->state() == HttpParser::State::kBody || parser_->state() == HttpParser::State::kDone) on_header();
  }
  if (state_ == State::kBody) read_body();
  if (parser_->state() == HttpParser::State::kRefused && (state_ == State::kHeader || state_ == State::kBody)) {
    const HttpRefusal refusal = parser_->refusal();
    refuse(refusal.status, refusal.code, refusal.message);
  }
}

void Connection::on_header() {
  set_state(State::kBody);
  HttpRequest& request = parser_->request();
  busy_ = true;
  ++context_.busy;
  request_start_ = body_start_ = Clock::now();
  body_bytes_ = 0;
  set_body_deadline();
  body_wanted_ = request.method != "HEAD";
  close_after_ = !parser_->keep_alive();
  rejection_ = context_.handler.on_header(request);
  const std::optional<uint64_t> length = parser_->content_length();
  if (!rejection_ && entry_.place != ConnectionTable::Place::kNormal) {
    close_after_ = true;
    if (!context_.handler.is_essential(request)) {
      rejection_ = context_.handler.on_refused(request.path, 503, "server_is_overloaded",
                                               entry_.place == ConnectionTable::Place::kReserve
                                                   ? "The server has too many connections."
                                                   : "Your address has too many connections to this server.");
    }
  } else if (!rejection_ && !context_.bodies.fits(static_cast<int64_t>(length.value_or(0)))) {
    rejection_ = context_.handler.on_refused(request.path, 503, "server_is_overloaded", kBodiesExhausted);
  }
  if (parser_->state() == HttpParser::State::kDone) return;
  if (rejection_) {
    // Reading a small body keeps the connection usable; a large one is not worth it.
    if (parser_->expects_continue() || !length || *length > kMaxDiscardedBody) {
      close_after_ = true;
      finish_reject();
    }
  } else if (parser_->expects_continue() && input_.empty()) {
    enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

void Connection::read_body() {
  const size_t before = input_.size();
  parser_->feed(input_);
  if (const auto bytes = static_cast<int64_t>(before - input_.size()); bytes > 0) {
    body_bytes_ += bytes;
    set_body_deadline();
    if (charge_ == nullptr) charge_ = std::make_shared<BodyCharge>(context_.bodies);
    if (!charge_->resize(body_bytes_)) return refuse(503, "server_is_overloaded", kBodiesExhausted);
  }
  if (parser_->state() == HttpParser::State::kDone) dispatch();
}

void Connection::dispatch() {
  if (rejection_) return finish_reject();
  set_state(State::kAnswering);
  clear_deadline();
  HttpRequest request = std::move(parser_->request());
  std::string body = std::move(request.body);
  request_ = request;
  request.body = std::move(body);
  request.body_charge = std::move(charge_);
  context_.handler.on_request(std::move(request), std::make_shared<Reply>(shared_from_this(), answer_));
}

void Connection::finish_reject() {
  set_state(State::kAnswering);
  request_ = std::move(parser_->request());
  charge_ = nullptr;
  HttpResponse response = std::move(*rejection_);
  rejection_.reset();
  send(std::move(response));
}

// Answers what is not a request to be served, and ends the connection.
void Connection::refuse(int status, const std::string& code, const std::string& message) {
  request_ = std::move(parser_->request());
  parser_ = std::make_unique<HttpParser>(context_.options.limits);  // frees what has arrived of the body
  charge_ = nullptr;
  set_state(State::kAnswering);
  close_after_ = true;
  send(context_.handler.on_refused(request_.path, status, code, message));
}

// Writing

void Connection::send(HttpResponse response) {
  if (state_ != State::kAnswering) return;
  if (response.close) close_after_ = true;
  const bool bodyless = response.status == 204 || response.status == 304;
  std::string bytes = head(response, bodyless ? "" : fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (body_wanted_ && !bodyless) bytes += response.body;
  set_state(State::kFlushing);
  enqueue(std::move(bytes));
}

void Connection::start_stream(HttpResponse response) {
  if (state_ != State::kAnswering) return;
  if (response.close) close_after_ = true;
  chunked_ = request_.version == 11;
  if (!chunked_) close_after_ = true;
  std::string bytes = head(response, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  if (body_wanted_ && !response.body.empty()) bytes += framed(response.body);
  set_state(State::kStreaming);
  enqueue(std::move(bytes));
}

std::string Connection::framed(const std::string& data) const {
  return chunked_ ? fmt::format("{:x}\r\n{}\r\n", data.size(), data) : data;
}

void Connection::write_stream(const std::string& data) {
  if (state_ != State::kStreaming || data.empty() || !body_wanted_) return;
  if (out_.size() + writing_.size() - written_ > context_.options.max_stream_backlog) {
    log::info("{}: the client does not read its stream; abandoned", request_.id);
    return abandon();
  }
  enqueue(framed(data));
}

void Connection::end_stream(bool close) {
  if (state_ != State::kStreaming) return;
  if (close) close_after_ = true;
  set_state(State::kFlushing);
  enqueue(chunked_ && body_wanted_ ? "0\r\n\r\n" : "");
}

void Connection::on_written(std::function<void()> callback) {
  if (state_ != State::kStreaming) return;
  written_callback_ = std::move(callback);
  if (out_.empty() && writing_.empty()) std::exchange(written_callback_, nullptr)();
}

// A reset, because a client of HTTP/1.0 takes an orderly end for the end of the answer.
void Connection::abort() {
  if (state_ != State::kAnswering && state_ != State::kStreaming) return;
  boost::system::error_code ignored;
  stream_->socket().set_option(boost::asio::socket_base::linger(true, 0), ignored);
  abandon();
}

std::string Connection::head(const HttpResponse& response, const std::string& framing) {
  if (context_.draining) close_after_ = true;
  status_ = response.status;
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status, reason_phrase(response.status), http_date());
  if (response.status != 204 && !response.content_type.empty())
    text += fmt::format("Content-Type: {}\r\n", response.content_type);
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
  if (state_ != State::kBody) set_timeout(context_.options.body_timeout);
  on_write({}, 0);
}

void Connection::on_write(boost::system::error_code error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) return abandon();
  written_ += bytes;
  if (bytes > 0 && state_ != State::kBody) set_timeout(context_.options.body_timeout);
  if (written_ < writing_.size()) {
    stream_->write_some(writing_.data() + written_, writing_.size() - written_,
                        [self = shared_from_this()](boost::system::error_code e, size_t n) {
                          self->guarded([&] { self->on_write(e, n); });
                        });
    return;
  }
  writing_.clear();
  written_ = 0;
  if (writing_.capacity() > kBodyReadBytes) writing_.shrink_to_fit();
  if (state_ == State::kAnswering || state_ == State::kStreaming) clear_deadline();
  write();
  if (state_ == State::kStreaming && writing_.empty() && written_callback_) {
    std::exchange(written_callback_, nullptr)();
  }
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
  paused_since_.reset();
  input_charge_.resize(0);
  set_state(State::kIdle);
  set_timeout(context_.options.keep_alive_timeout);
  if (out_.capacity() > kBodyReadBytes) out_ = {};
  // From a fresh stack: the next request may be here already, and the one after it, and so on.
  boost::asio::post(stream_->socket().get_executor(), [self = shared_from_this()] {
    if (self->state_ != State::kIdle) return;
    self->guarded([&] {
      self->on_input();
      self->read();
    });
  });
}

// Ends

// Whatever the handler throws, the request is over.
void Connection::end_request() noexcept {
  ++answer_;
  abandoned_ = nullptr;
  written_callback_ = nullptr;
  if (!busy_) return;
  busy_ = false;
  --context_.busy;
  try {
    const double seconds = std::chrono::duration<double>(Clock::now() - request_start_).count();
    context_.handler.on_finished(request_, status_ == 0 ? 499 : status_, seconds);
  } catch (const std::exception& e) {
    report("the end of a request is not counted", e.what());
  }
  status_ = 0;
  if (context_.busy == 0 && context_.on_idle) context_.on_idle();
}

void Connection::abandon() noexcept {
  if (state_ == State::kClosed) return;
  const auto callback = std::move(abandoned_);
  close();
  try {
    if (callback) callback();
  } catch (const std::exception& e) {
    report("an abandoned request is not cancelled", e.what());
  }
}

// Closing a socket with unread bytes resets it, and the client may lose the answer. So the client closes first, or a
// second passes.
void Connection::linger() {
  set_state(State::kLingering);
  set_timeout(kLingerTimeout);
  input_.clear();
  stream_->finish_writing([self = shared_from_this()] {});
  read();
}

void Connection::close() noexcept {
  if (state_ == State::kClosed) return;
  set_state(State::kClosed);
  boost::system::error_code ignored;
  stream_->socket().close(ignored);
  timer_.cancel();
  charge_ = nullptr;
  input_charge_.resize(0);
  end_request();
  self_ = nullptr;  // may be the last owner: nothing follows
}

// Time

// The earliest of three ends: no progress for body_timeout, too low a rate since the start, too long altogether.
void Connection::set_body_deadline() {
  const HttpServerOptions& o = context_.options;
  const std::chrono::milliseconds at_least_rate(o.min_body_rate > 0 ? body_bytes_ * 1000 / o.min_body_rate : INT_MAX);
  const auto whole = std::min(o.body_total_timeout, std::max(o.body_rate_grace, at_least_rate));
  set_deadline(std::min(Clock::now() + o.body_timeout, body_start_ + whole));
}

void Connection::set_deadline(Clock::time_point deadline) {
  deadline_ = deadline;
  // A pending wait is left alone unless it would be late: it looks at deadline_ again when it ends.
  if (!timer_waiting_ || timer_.expiry() > deadline_) wait_timer();
}

void Connection::wait_timer() {
  timer_waiting_ = true;
  timer_.expires_at(deadline_);
  timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const auto self = weak.lock();
    if (!self || error || self->state_ == State::kClosed) return;
    self->guarded([&] {
      self->timer_waiting_ = false;
      if (Clock::now() >= self->deadline_) return self->on_deadline();
      if (self->deadline_ != Clock::time_point::max()) self->wait_timer();
    });
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
