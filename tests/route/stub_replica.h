// A replica under a test's control: a plain server with a thread per connection, and a router in front of some.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "route/route_server.h"
#include "server/http_client.h"

namespace sluice::route {

inline bool eventually(const std::function<bool()>& condition, int timeout_ms = 5000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class StubReplica {
 public:
  struct Request {
    std::string head, body;
    std::string path() const {
      const size_t at = head.find(' ') + 1;
      return head.substr(at, head.find(' ', at) - at);
    }
  };
  // Writes an answer. The connection closes afterwards if it returns false.
  using Answer = std::function<bool(StubReplica&, int fd, const Request&)>;

  explicit StubReplica(Answer answer, int port = 0) : answer_(std::move(answer)) { listen(port); }
  ~StubReplica() { die(); }
  StubReplica(const StubReplica&) = delete;

  int port() const { return port_; }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }

  // As kill -9: no more connections, and the open ones end.
  void die() {
    if (dead_.exchange(true)) return;
    accepting_.join();
    ::close(listener_);
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }
  bool dead() const { return dead_; }

  std::atomic<int> health{200};
  std::string health_body = "{}";   // set before the router starts
  std::atomic<bool> silent{false};  // /health gets no answer
  std::atomic<int> requests{0};     // without those for /health
  std::atomic<int> connections{0};  // all that were accepted
  std::atomic<int> left{0};         // clients that closed while they were waited for (wait_for_client_to_leave)

  static bool send(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  static bool answer(int fd, int status, std::string_view body, std::string_view headers = "") {
    return send(fd, fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                                status, body.size(), headers, body));
  }
  static bool start_events(int fd) {
    return send(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  static bool chunk(int fd, std::string_view data) {
    return send(fd, fmt::format("{:x}\r\n{}\r\n", data.size(), data));
  }
  void wait_for_client_to_leave(int fd) {
    char byte;
    if (::recv(fd, &byte, 1, 0) <= 0 && !dead_) ++left;
  }

 private:
  void listen(int port) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    const int one = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ::listen(listener_, 128);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { accept(); });
  }

  void accept() {
    while (!dead_) {
      pollfd p{listener_, POLLIN, 0};
      if (::poll(&p, 1, 10) <= 0) continue;
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      ++connections;
      const std::lock_guard lock(mutex_);
      open_.insert(fd);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    std::string input;
    Request request;
    while (read_request(fd, input, request) && handle(fd, request)) {
    }
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
    ::close(fd);
  }

  bool handle(int fd, const Request& request) {
    if (request.path() == "/health") {
      while (silent && !dead_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return answer(fd, health, health_body);
    }
    ++requests;
    return answer_(*this, fd, request);
  }

  static bool read_request(int fd, std::string& input, Request& request) {
    size_t end;
    while ((end = input.find("\r\n\r\n")) == std::string::npos) {
      if (!fill(fd, input)) return false;
    }
    request.head = input.substr(0, end + 4);
    input.erase(0, end + 4);
    const size_t at = request.head.find("Content-Length: ");
    const size_t length = at == std::string::npos ? 0 : std::stoul(request.head.substr(at + 16));
    while (input.size() < length) {
      if (!fill(fd, input)) return false;
    }
    request.body = input.substr(0, length);
    input.erase(0, length);
    return true;
  }

  static bool fill(int fd, std::string& input) {
    char bytes[16384];
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    input.append(bytes, static_cast<size_t>(n));
    return true;
  }

  const Answer answer_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> dead_{false};
  std::thread accepting_;
  std::mutex mutex_;
  std::set<int> open_;
  std::vector<std::thread> threads_;
};

// A router in front of the replicas of a test.
class RouteTest : public ::testing::Test {
 protected:
  RouteTest() {
    options.port = 0;
    options.health_interval_ms = 20;
    options.health_timeout_ms = 500;
    options.shutdown_timeout_ms = 5000;
    options.log_level = "error";
  }
  ~RouteTest() override {
    stop();
    replicas.clear();
  }

  StubReplica& add(StubReplica::Answer answer, int port = 0) {
    return add_to(options.replica, std::move(answer), port);
  }
  StubReplica& add_to(std::vector<std::string>& urls, StubReplica::Answer answer, int port = 0) {
    replicas.push_back(std::make_unique<StubReplica>(std::move(answer), port));
    urls.push_back(replicas.back()->url());
    return *replicas.back();
  }
  void start(int healthy = -1) {
    router = std::make_unique<RouteServer>(options);
    port = router->port();
    thread = std::thread([this] { router->run(); });
    const int wanted = healthy < 0 ? static_cast<int>(replicas.size()) : healthy;
    ASSERT_TRUE(wait_healthy(wanted));
  }
  void stop() {
    if (!router) return;
    router->shutdown();
    join();
    router.reset();
  }
  void join() {
    if (thread.joinable()) thread.join();
  }

  TestResponse send(std::string_view bytes, bool head = false) {
    TestClient client(port);
    client.send(bytes);
    return client.read_response(head);
  }
  TestResponse get(std::string_view path) { return send(get_text(path)); }
  TestResponse post(std::string_view body, std::string_view headers = "") {
    return send(post_text("/v1/completions", body, headers));
  }
  int healthy() { return get("/health").json().value("healthy", -1); }
  bool wait_healthy(int n) {
    return eventually([&] { return healthy() == n; });
  }
  // The sum of a metric's samples.
  double metric(const std::string& name) {
    const std::string text = get("/metrics").body;
    double sum = 0;
    for (size_t at = text.find("\n" + name); at != std::string::npos; at = text.find("\n" + name, at + 1)) {
      const size_t after = at + 1 + name.size();
      if (text[after] != ' ' && text[after] != '{') continue;
      const size_t space = text.find(' ', text[after] == '{' ? text.find('}', after) : after);
      sum += std::stod(text.substr(space + 1));
    }
    return sum;
  }

  RouteOptions options;
  std::vector<std::unique_ptr<StubReplica>> replicas;
  std::unique_ptr<RouteServer> router;
  std::thread thread;
  int port = 0;
};

}  // namespace sluice::route
