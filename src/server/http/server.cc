// The listeners, the I/O threads and TLS of the HTTP server.
#include "server/http/server.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread_group.h"
#include "server/http/connection.h"
#include "server/http/listen.h"
#include "sluice/error.h"

namespace sluice::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kLookEvery{100};   // at connections that asked for it
constexpr std::chrono::milliseconds kRetryAfter{100};  // out of file descriptors or memory
constexpr std::chrono::milliseconds kCloseFirst{1};    // other I/O threads have connections to close
constexpr int kMostClosing = 256;                      // connections

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(tcp::socket socket) : socket_(std::move(socket)) {}
  void handshake(std::function<void(error_code)> done) override { done({}); }
  void read_some(char* data, size_t size, Done done) override {
    socket_.async_read_some(asio::buffer(data, size), std::move(done));
  }
  void write_some(const char* data, size_t size, Done done) override {
    socket_.async_write_some(asio::buffer(data, size), std::move(done));
  }
  void finish_writing(std::function<void()> done) override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    done();
  }
  tcp::socket& socket() override { return socket_; }

 private:
  tcp::socket socket_;
};

class TlsStream : public ByteStream {
 public:
  TlsStream(tcp::socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}
  void handshake(std::function<void(error_code)> done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void read_some(char* data, size_t size, Done done) override {
    stream_.async_read_some(asio::buffer(data, size), std::move(done));
  }
  void write_some(const char* data, size_t size, Done done) override {
    stream_.async_write_some(asio::buffer(data, size), std::move(done));
  }
  void finish_writing(std::function<void()> done) override {
    stream_.async_shutdown([done = std::move(done)](error_code) { done(); });
  }
  tcp::socket& socket() override { return stream_.next_layer(); }

 private:
  asio::ssl::stream<tcp::socket> stream_;
};

asio::ssl::context make_tls(const HttpServerOptions& options) {
  asio::ssl::context context(asio::ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  // For TLS 1.2: forward secrecy and authenticated encryption only, as all suites of TLS 1.3 have.
  SSL_CTX_set_cipher_list(context.native_handle(), "ECDHE+AESGCM:ECDHE+CHACHA20");
  context.set_options(asio::ssl::context::default_workarounds | SSL_OP_NO_RENEGOTIATION);
  error_code error;
  context.use_certificate_chain_file(options.certificate_file, error);
  if (error) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--ssl-certfile {}: {}", options.certificate_file, error.message()), "ssl-certfile", "");
  }
  context.use_private_key_file(options.key_file, asio::ssl::context::pem, error);
  if (error) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("--ssl-keyfile {}: {}", options.key_file, error.message()),
                "ssl-keyfile", "");
  }
  return context;
}

// Sets a flag while an operation is outstanding. The operation's handler holds it: if memory runs out before the
// handler is called, Asio destroys the handler, and the operation can be started again.
class Pending {
 public:
  explicit Pending(bool& flag) : flag_(&flag) { flag = true; }
  Pending(Pending&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  Pending& operator=(Pending&&) = delete;
  ~Pending() { end(); }
  void end() {
    if (flag_ != nullptr) *std::exchange(flag_, nullptr) = false;
  }

 private:
  bool* flag_;
};

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& o, HttpHandler& handler)
      : options(o),
        context(options, handler),
        contexts(make_contexts(options.threads)),
        io(*contexts.front()),
        look_timer(io),
        signals(io) {
    context.on_idle = [this] { on_idle(); };
    if (!options.certificate_file.empty()) tls.emplace(make_tls(options));
    for (tcp::acceptor& acceptor : listen_on(io, options.host, options.port, options.listeners)) {
      listeners.emplace_back(std::move(acceptor), io);
    }
    accept();
    look();
  }

  // No I/O thread runs any more. Connections own themselves until they end.
  ~Impl() {
    context.on_idle = nullptr;
    std::vector<std::shared_ptr<Connection>> open;
    context.table.for_each([&](Connection& connection) {
      if (auto owner = connection.weak_from_this().lock()) open.push_back(std::move(owner));
    });
    for (const auto& connection : open) connection->end();
  }

  static std::vector<std::unique_ptr<asio::io_context>> make_contexts(int threads) {
    std::vector<std::unique_ptr<asio::io_context>> out;
    for (int i = 0; i < threads; ++i) out.push_back(std::make_unique<asio::io_context>(1));
    return out;
  }

  // The work of one I/O thread. What a handler throws ends its task, never the server.
  void work(asio::io_context& mine) {
    const auto guard = asio::make_work_guard(mine);
    for (;;) {
      try {
        if (&mine == &io) {
          accept();
          look();
          wait_signal();
        }
        mine.run();
        return;
      } catch (const std::exception& e) {
        report("an I/O task failed", e.what());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  static void report(const char* event, const char* reason) noexcept {
    try {
      log::warning("{}: {}", event, reason);
    } catch (...) {  // there may be no memory for the line either
    }
  }

  // A socket that listens, and what waits for its next connection.
  struct Listener {
    Listener(tcp::acceptor socket, asio::io_context& io) : acceptor(std::move(socket)), retry(io) {}
    tcp::acceptor acceptor;
    asio::steady_timer retry;
    bool accepting = false;
  };

  void accept() {
    for (Listener& listener : listeners) accept(listener);
  }

  // Waits for the next connection, if nothing does yet. The I/O threads take turns.
  void accept(Listener& listener) {
    if (context.table.closing() > kMostClosing) return accept_after(listener, kCloseFirst);
    start_once(listener.accepting, [this, &listener](Pending pending) {
      next_context = (next_context + 1) % contexts.size();
      listener.acceptor.async_accept(*contexts[next_context], [this, &listener, pending = std::move(pending)](
                                                                  error_code error, tcp::socket socket) mutable {
        if (error == asio::error::operation_aborted) return;
        pending.end();
        if (error) return retry_accept(listener, error);
        try {
          open(std::move(socket));
        } catch (const std::exception& e) {
          report("a new connection is dropped", e.what());
        }
        accept(listener);
      });
    });
  }

  // Out of file descriptors, most likely: some may be closed soon.
  void retry_accept(Listener& listener, const error_code& cause) {
    log::warning("cannot accept a connection: {}", cause.message());
    accept_after(listener, kRetryAfter);
  }

  void accept_after(Listener& listener, std::chrono::milliseconds wait) {
    start_once(listener.accepting, [this, &listener, wait](Pending pending) {
      listener.retry.expires_after(wait);
      listener.retry.async_wait([this, &listener, pending = std::move(pending)](error_code error) mutable {
        if (error) return;
        pending.end();
        accept(listener);
      });
    });
  }

  template <class F>
  static void start_once(bool& flag, F&& start) {
    if (!flag) start(Pending(flag));
  }

  void open(tcp::socket socket) {
    error_code error;
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;  // it has left
    const auto place = context.table.place_for(peer.address());
    if (place == ConnectionTable::Place::kNone) return;
    socket.set_option(tcp::no_delay(true), error);
    const auto executor = socket.get_executor();
    std::unique_ptr<ByteStream> stream;
    if (tls) {
      stream = std::make_unique<TlsStream>(std::move(socket), *tls);
    } else {
      stream = std::make_unique<PlainStream>(std::move(socket));
    }
    const auto connection = std::make_shared<Connection>(std::move(stream), context, place, peer.address());
    connection->enter_table();
    asio::post(executor, [connection, secure = tls.has_value()] { connection->start(secure); });
  }

  void look() {
    start_once(looking, [this](Pending pending) {
      look_timer.expires_after(kLookEvery);
      look_timer.async_wait([this, pending = std::move(pending)](error_code error) mutable {
        if (error) return;
        pending.end();
        if (context.flagged > 0) context.table.for_each([](Connection& connection) { connection.post_look(); });
        if (context.draining) on_idle();  // a call may have failed
        if (look_task) look_task();
        look();
      });
    });
  }

  void on_idle() noexcept {
    const std::lock_guard lock(idle_mutex);
    if (context.busy > 0 || !idle_task) return;
    try {
      asio::post(io, [task = idle_task] { task(); });
      idle_task = nullptr;
    } catch (const std::exception& e) {
      report("the end of the server is delayed", e.what());
    }
  }

  void wait_signal() {
    if (!signal_task) return;
    start_once(waiting, [this](Pending pending) {
      signals.async_wait([this, pending = std::move(pending)](error_code error, int) mutable {
        if (error) return;
        pending.end();
        signal_task();
        wait_signal();
      });
    });
  }

  // Destroying the contexts ends what is left of the connections' operations: they go before what these use.
  const HttpServerOptions options;
  std::mutex idle_mutex;
  std::function<void()> idle_task;
  ConnectionContext context;
  bool looking = false, waiting = false;  // used by the first I/O thread, as the listeners are
  // One context per I/O thread. A connection stays with its context, so its handlers never run at the same time, and,
  // unlike with strands, no completed operation needs memory before its handler runs.
  std::vector<std::unique_ptr<asio::io_context>> contexts;
  asio::io_context& io;  // the first one; also accepts, and runs timers and signals
  std::optional<asio::ssl::context> tls;
  std::deque<Listener> listeners;  // at least one
  asio::steady_timer look_timer;
  size_t next_context = 0;
  asio::signal_set signals;
  std::function<void()> signal_task, look_task;
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler) {
  try {
    impl_ = std::make_unique<Impl>(options, handler);
  } catch (const boost::system::system_error& e) {
    throw Error(ErrorCode::kInternal, fmt::format("cannot start the server: {}", e.what()));
  }
}

HttpServer::~HttpServer() = default;

std::vector<int> HttpServer::share_listeners() const {
  std::vector<int> shared;
  for (Impl::Listener& listener : impl_->listeners) {
    const int fd = ::fcntl(listener.acceptor.native_handle(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      const int error = errno;
      for (const int open : shared) ::close(open);
      throw Error(ErrorCode::kInternal, fmt::format("cannot share a listening socket: {}", std::strerror(error)));
    }
    shared.push_back(fd);
  }
  return shared;
}

int HttpServer::port() const { return impl_->listeners.front().acceptor.local_endpoint().port(); }
bool HttpServer::loopback() const {
  return std::all_of(impl_->listeners.begin(), impl_->listeners.end(), [](const Impl::Listener& listener) {
    return listener.acceptor.local_endpoint().address().is_loopback();
  });
}
bool HttpServer::tls() const { return impl_->tls.has_value(); }
int64_t HttpServer::body_bytes() const { return impl_->context.bodies.used(); }
int HttpServer::connections() const { return impl_->context.table.open(); }

void HttpServer::run() {
  ThreadGroup helpers([this] { stop(); });
  try {
    for (size_t i = 1; i < impl_->contexts.size(); ++i) {
      helpers.start([this, i] { impl_->work(*impl_->contexts[i]); });
    }
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--io-threads: cannot start {} threads: {}", impl_->options.threads, e.what()),
                "io-threads", "");
  }
  impl_->work(impl_->io);
}

void HttpServer::drain(std::function<void()> idle) {
  impl_->context.draining = true;
  {
    std::lock_guard lock(impl_->idle_mutex);
    impl_->idle_task = std::move(idle);
  }
  impl_->context.table.for_each([](Connection& connection) { connection.post_close_if_idle(); });
  impl_->on_idle();
}

void HttpServer::stop() {
  for (const auto& context : impl_->contexts) context->stop();
}

void HttpServer::on_look(std::function<void()> task) { impl_->look_task = std::move(task); }

void HttpServer::after(std::chrono::milliseconds delay, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, delay);
  timer->async_wait([timer, task = std::move(task)](error_code error) {
    if (!error) task();
  });
}

asio::any_io_executor HttpServer::executor() const { return impl_->io.get_executor(); }

void HttpServer::on_signal(std::function<void()> task) {
  impl_->signal_task = std::move(task);
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  // nohup ignores SIGHUP, and the server must then survive the end of its terminal.
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) impl_->signals.add(SIGHUP);
  impl_->wait_signal();
}

void HttpServer::default_signals() { impl_->signals.clear(); }

}  // namespace sluice::server
