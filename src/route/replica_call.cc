// Connects, writes, reads. Asio's handlers keep the call alive until they have run.
#include "route/replica_call.h"

#include <fmt/core.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "base/log.h"

namespace sluice::route {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 32 << 10;
constexpr std::chrono::milliseconds kLookEvery{1000};  // whether the replica is lost

// A machine that vanishes sends no end of its connections. The kernel then notices it within half a minute.
void watch_peer(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, 10);
  set(TCP_KEEPINTVL, 5);
  set(TCP_KEEPCNT, 3);
  set(TCP_USER_TIMEOUT, 30'000);
}

}  // namespace

ReplicaCall::ReplicaCall(std::shared_ptr<Replica> replica, ConnectionPool* pool, const asio::any_io_executor& executor,
                         CallRequest request, const CallLimits& limits, Listener listener)
    : replica_(std::move(replica)),
      pool_(pool),
      request_(std::move(request)),
      limits_(limits),
      listener_(std::move(listener)),
      socket_(executor),
      resolver_(executor),
      timer_(executor),
      reader_(request_.head_only, limits.header_bytes),
      buffer_(new char[kReadBytes]) {}

template <class F>
void ReplicaCall::guarded(F&& task) noexcept {
  if (ended_) return;
  try {
    try {
      task();
    } catch (const std::exception& e) {
      fail(Failure::kFault, e.what());
    }
  } catch (const std::exception&) {
    cancel();
  }
}

void ReplicaCall::start() {
  guarded([&] {
    if (pool_ != nullptr) {
      if (auto idle = pool_->take(*replica_, socket_.get_executor())) {
        socket_ = std::move(*idle);
        reused_ = true;
        return send();
      }
    }
    connect();
  });
}

void ReplicaCall::connect() {
  connected_ = false;
  set_limit(limits_.connect);
  error_code error;
  const auto address = asio::ip::make_address(replica_->host, error);
  if (!error) {
    const tcp::endpoint endpoint(address, static_cast<unsigned short>(std::stoi(replica_->port)));
    return connect_to(Results::create(endpoint, replica_->host, replica_->port));
  }
  resolver_.async_resolve(replica_->host, replica_->port,
                          [self = shared_from_this()](error_code failed, const Results& found) {
                            self->guarded([&] {
                              if (failed) return self->fail(Failure::kUnreachable, failed.message());
                              self->connect_to(found);
                            });
                          });
}

void ReplicaCall::connect_to(const Results& endpoints) {
  asio::async_connect(socket_, endpoints, [self = shared_from_this()](error_code error, const tcp::endpoint&) {
    self->guarded([&] { self->on_connected(error); });
  });
}

void ReplicaCall::on_connected(error_code error) {
  if (error) {
    return fail(error == asio::error::connection_refused ? Failure::kRefused : Failure::kUnreachable, error.message());
  }
  watch_peer(socket_);
  send();
}

void ReplicaCall::send() {
  connected_ = true;
  if (sent_at_ == Clock::time_point()) sent_at_ = Clock::now();
  set_limit(limits_.silence);
  const std::string_view body = request_.body != nullptr ? std::string_view(*request_.body) : std::string_view();
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(request_.head), asio::buffer(body)};
  asio::async_write(socket_, buffers, [self = shared_from_this(), reused = reused_](error_code error, size_t) {
    // If the replica takes no more, the read tells why.
    if (reused == self->reused_) self->written_ = !error;
  });
  read();  // an answer may come before the whole request is written
}

void ReplicaCall::read() {
  if (ended_ || reading_) return;
  reading_ = true;
  set_limit(limits_.silence);
  socket_.async_read_some(asio::buffer(buffer_.get(), kReadBytes),
                          [self = shared_from_this()](error_code error, size_t bytes) {
                            self->guarded([&] { self->on_read(error, bytes); });
                          });
}

void ReplicaCall::on_read(error_code error, size_t bytes) {
  reading_ = false;
  if (error) return on_end(error);
  input_.append(buffer_.get(), bytes);
  reader_.feed(input_);
  on_progress();
}

void ReplicaCall::on_end(const error_code& error) {
  if (reused_ && !reader_.begun()) {
    // The replica closed the idle connection just when the request came.
    reused_ = written_ = false;  // a late end of the write does not count any more
    error_code ignored;
    socket_.close(ignored);
    socket_ = tcp::socket(socket_.get_executor());
    return connect();
  }
  if (error == asio::error::eof) reader_.end();
  if (!reader_.done()) return fail(Failure::kClosed, error.message());
  on_progress();
}

void ReplicaCall::on_progress() {
  if (!reader_.problem().empty()) return fail(Failure::kInvalid, reader_.problem());
  const auto self = shared_from_this();  // the listener may let go of it
  deadline_ = Clock::time_point::max();
  if (reader_.done()) {
    ended_ = true;
    timer_.cancel();
    if (pool_ != nullptr && written_ && reader_.keep_alive() && input_.empty()) {
      pool_->give_back(*replica_, std::move(socket_));
    }
    const Listener listener = std::exchange(listener_, {});
    return listener.on_answer(reader_);
  }
  Listener listener = std::exchange(listener_, {});  // cancel() must not destroy what is running
  listener.on_answer(reader_);
  if (!ended_) listener_ = std::move(listener);
}

void ReplicaCall::fail(Failure failure, const std::string& reason) {
  if (ended_) return;
  const auto self = shared_from_this();
  const Listener listener = std::exchange(listener_, {});
  cancel();
  if (listener.on_failure) listener.on_failure(failure, reason);
}

void ReplicaCall::cancel() noexcept {
  ended_ = true;
  listener_ = {};
  error_code ignored;
  socket_.close(ignored);
  resolver_.cancel();
  timer_.cancel();
}

// Time

void ReplicaCall::set_limit(std::chrono::milliseconds limit) {
  deadline_ = limit.count() > 0 ? Clock::now() + limit : Clock::time_point::max();
  if (timer_.expiry() == Clock::time_point() || timer_.expiry() > deadline_) wait_timer();
}

void ReplicaCall::wait_timer() {
  timer_.expires_at(std::min(deadline_, Clock::now() + kLookEvery));
  timer_.async_wait([weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (self && !error) self->guarded([&] { self->on_timer(); });
  });
}

void ReplicaCall::on_timer() {
  const bool late = Clock::now() >= deadline_;
  if (late && !connected_) return fail(Failure::kUnreachable, "the connection took too long");
  if (late) return fail(Failure::kTimeout, "no byte for too long");
  if (connected_ && reading_ && replica_->lost) return fail(Failure::kLost, "its /health does not answer either");
  wait_timer();
}

}  // namespace sluice::route
