// Sockets do not block; poll() waits for them with a time limit.
#include "parallel/tcp.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>

#include "sluice/error.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

constexpr int kWaitingConnections = 64;

// A file descriptor, closed at its end.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Returns whether one of the events came, or the connection ended. `woken`: returns when it is readable, too; -1: none.
bool wait_for(int fd, short events, milliseconds limit, int woken = -1) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
    pollfd watched[] = {{.fd = fd, .events = events, .revents = 0}, {.fd = woken, .events = POLLIN, .revents = 0}};
    const int n = ::poll(watched, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (n > 0) return watched[0].revents != 0;
    if (n == 0 || errno != EINTR) return false;
  }
}

// A machine that vanishes sends no end of its connections. The kernel then notices it within half a minute.
void watch_peer(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

class SocketStream final : public TcpStream {
 public:
  explicit SocketStream(Socket socket) : socket_(std::move(socket)), woken_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    watch_peer(socket_.fd());
  }

  std::string open(milliseconds) override { return {}; }
  int descriptor() const override { return socket_.fd(); }

  bool read(std::span<std::byte> bytes, milliseconds silence) override {
    return move(bytes, silence, POLLIN,
                [this](auto rest) { return ::recv(socket_.fd(), rest.data(), rest.size(), 0); });
  }
  bool write(std::span<const std::byte> bytes, milliseconds silence) override {
    return move(bytes, silence, POLLOUT,
                [this](auto rest) { return ::send(socket_.fd(), rest.data(), rest.size(), MSG_NOSIGNAL); });
  }
  bool readable(milliseconds limit) override {
    const bool ready = wait_for(socket_.fd(), POLLIN, limit, woken_.fd());
    eventfd_t count = 0;
    if (!ready) ::eventfd_read(woken_.fd(), &count);
    return ready;
  }
  void wake() override { ::eventfd_write(woken_.fd(), 1); }
  void shut_down() override { ::shutdown(socket_.fd(), SHUT_RDWR); }

 private:
  template <class Bytes, class Move>
  bool move(Bytes bytes, milliseconds silence, short event, const Move& some) {
    while (!bytes.empty()) {
      const ssize_t n = some(bytes);
      if (n > 0) {
        bytes = bytes.subspan(static_cast<size_t>(n));
      } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        return false;
      } else if (!wait_for(socket_.fd(), event, silence)) {
        return false;
      }
    }
    return true;
  }

  Socket socket_;
  Socket woken_;
};

// The addresses of a name; `failed` is called with the reason if there are none.
template <class F>
std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> resolve(const TcpAddress& address, int flags, const F& failed) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) failed(::gai_strerror(error));
  return {found, &::freeaddrinfo};
}

Socket socket_for(const addrinfo& address) {
  return Socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

// Returns 0, or why there is no connection.
int try_connect(const Socket& socket, const addrinfo& address, milliseconds limit) {
  if (socket.fd() < 0) return errno;
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket.fd(), POLLOUT, limit)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

TcpAddress TcpAddress::parse(const std::string& text, const std::string& option) {
  const size_t colon = text.rfind(':');
  TcpAddress address;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), address.port);
    const bool number = error == std::errc() && end == text.data() + text.size() && colon + 1 < text.size();
    if (!number || address.port > 65535 || address.port < 0) address.host.clear();
  }
  const bool bracketed = address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
  if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || (!bracketed && address.host.find_first_of(":[]") != std::string::npos)) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("{}: '{}' is not an address (expected HOST:PORT, or [HOST]:PORT for IPv6)", option, text));
  }
  return address;
}

std::string TcpAddress::str() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

std::unique_ptr<TcpStream> connect_tcp(const TcpAddress& address, milliseconds limit) {
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kInternal, fmt::format("no connection to {}: {}", address.str(), why));
  };
  const auto found = resolve(address, 0, fail);
  int error = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    Socket socket = socket_for(*one);
    error = try_connect(socket, *one, limit);
    if (error == 0) return std::make_unique<SocketStream>(std::move(socket));
  }
  fail(std::strerror(error));
  return nullptr;
}

TcpListener::TcpListener(const TcpAddress& address, const std::string& option) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: cannot listen on {}: {}", option, address.str(), why));
  };
  const auto found = resolve(address, AI_PASSIVE, refuse);
  Socket socket = socket_for(*found);
  if (socket.fd() < 0) refuse(std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.fd(), kWaitingConnections) != 0) {
    refuse(std::strerror(errno));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) refuse(std::strerror(errno));
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  socket_ = socket.take();
}

TcpListener::~TcpListener() { ::close(socket_); }

std::unique_ptr<TcpStream> TcpListener::accept(milliseconds limit) {
  if (!wait_for(socket_, POLLIN, limit)) return nullptr;
  Socket socket(::accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.fd() < 0) {
    // Without descriptors the connection stays in the queue, and poll() would return at once.
    if (errno != EAGAIN && errno != EINVAL) std::this_thread::sleep_for(std::min(limit, milliseconds(100)));
    return nullptr;
  }
  return std::make_unique<SocketStream>(std::move(socket));
}

void TcpListener::shut_down() { ::shutdown(socket_, SHUT_RDWR); }

}  // namespace sluice
