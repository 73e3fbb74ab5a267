// Listener, I/O threads and TLS of the HTTP server.
#include "server/http/server.h"

#include <fmt/core.h>
#include <openssl/ssl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <csignal>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "server/http/connection.h"
#include "sluice/error.h"

namespace sluice::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Connections above the limit that are still told so; further ones are dropped.
constexpr int kMaxRefusedConnections = 64;

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

tcp::acceptor listen(asio::io_context& io, const HttpServerOptions& options) {
  const auto fail = [&](const error_code& error) -> Error {
    return Error(ErrorCode::kInvalidRequest,
                 fmt::format("cannot listen on {} port {}: {}", options.host, options.port, error.message()), "port",
                 "");
  };
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) throw fail(error);
  const tcp::endpoint endpoint = *found.begin();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) throw fail(error);
  return acceptor;
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& o, HttpHandler& handler)
      : options(o),
        context(options, handler),
        io(options.threads),
        acceptor(listen(io, options)),
        accept_retry(io),
        signals(io) {
    context.on_idle = [this] { on_idle(); };
    if (!options.certificate_file.empty()) tls.emplace(make_tls(options));
    endpoint = acceptor.local_endpoint();
    accept();
  }

  ~Impl() { context.on_idle = nullptr; }

  void accept() {
    acceptor.async_accept(asio::make_strand(io), [this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        // Out of file descriptors, most likely: wait for some to be closed.
        log::warning("cannot accept a connection: {}", error.message());
        accept_retry.expires_after(std::chrono::milliseconds(100));
        accept_retry.async_wait([this](error_code e) {
          if (!e) accept();
        });
        return;
      }
      open(std::move(socket));
      accept();
    });
  }

  void open(tcp::socket socket) {
    const int excess = context.open - options.max_connections;
    // Over TLS a refusal would cost a handshake.
    if (excess >= (tls ? 0 : kMaxRefusedConnections)) return;
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto executor = socket.get_executor();
    std::unique_ptr<ByteStream> stream;
    if (tls) {
      stream = std::make_unique<TlsStream>(std::move(socket), *tls);
    } else {
      stream = std::make_unique<PlainStream>(std::move(socket));
    }
    const auto connection = std::make_shared<Connection>(std::move(stream), context, excess >= 0);
    asio::post(executor, [connection, secure = tls.has_value()] { connection->start(secure); });
  }

  void on_idle() {
    std::function<void()> task;
    {
      std::lock_guard lock(idle_mutex);
      if (context.busy == 0) task = std::exchange(idle_task, nullptr);
    }
    if (task) asio::post(io, std::move(task));
  }

  void wait_signal() {
    signals.async_wait([this](error_code error, int) {
      if (error) return;
      wait_signal();
      signal_task();
    });
  }

  // Destroying the io_context ends what is left of the connections: it goes before what they use.
  const HttpServerOptions options;
  std::mutex idle_mutex;
  std::function<void()> idle_task;
  ConnectionContext context;
  asio::io_context io;
  std::optional<asio::ssl::context> tls;
  tcp::acceptor acceptor;
  asio::steady_timer accept_retry;
  tcp::endpoint endpoint;
  asio::signal_set signals;
  std::function<void()> signal_task;
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(options, handler)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->endpoint.port(); }
bool HttpServer::loopback() const { return impl_->endpoint.address().is_loopback(); }
bool HttpServer::tls() const { return impl_->tls.has_value(); }
int HttpServer::connections() const { return impl_->context.open; }

void HttpServer::run() {
  std::vector<std::thread> helpers;
  for (int i = 1; i < impl_->options.threads; ++i) helpers.emplace_back([this] { impl_->io.run(); });
  impl_->io.run();
  for (std::thread& helper : helpers) helper.join();
}

void HttpServer::drain(std::function<void()> idle) {
  impl_->context.draining = true;
  {
    std::lock_guard lock(impl_->idle_mutex);
    impl_->idle_task = std::move(idle);
  }
  {
    std::lock_guard lock(impl_->context.mutex);
    for (Connection* connection : impl_->context.connections) connection->post_close_if_idle();
  }
  impl_->on_idle();
}

void HttpServer::stop() { impl_->io.stop(); }

void HttpServer::after(std::chrono::milliseconds delay, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, delay);
  timer->async_wait([timer, task = std::move(task)](error_code error) {
    if (!error) task();
  });
}

void HttpServer::on_signal(std::function<void()> task) {
  impl_->signal_task = std::move(task);
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  impl_->wait_signal();
}

void HttpServer::default_signals() { impl_->signals.clear(); }

}  // namespace sluice::server
