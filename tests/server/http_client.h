// A plain socket and just enough HTTP for tests: what is sent is under the test's control to the byte.
#pragma once

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/json.h"

namespace sluice {

struct TestResponse {
  int status = 0;                              // 0: the connection ended without one
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  Json json() const { return parse_json(body); }
};

class TestClient {
 public:
  explicit TestClient(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void finish_writing() { ::shutdown(fd_, SHUT_WR); }
  void reset() {  // RST instead of FIN
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Sends until the kernel's buffers have been full for a while.
  void send_what_fits(std::string_view bytes) {
    pollfd p{fd_, POLLOUT, 0};
    while (!bytes.empty() && ::poll(&p, 1, 50) > 0) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  // Reads more into the buffer; false at the end of the connection or after the timeout.
  bool fill(int timeout_ms = 10'000) {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, timeout_ms) <= 0) {
      timed_out_ = true;
      return false;
    }
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  // Everything up to and with `end`; what there is when the connection ends first.
  std::string read_until(std::string_view end, int timeout_ms = 10'000) {
    size_t at;
    while ((at = buffer_.find(end)) == std::string::npos) {
      if (!fill(timeout_ms)) return std::exchange(buffer_, {});
    }
    std::string out = buffer_.substr(0, at + end.size());
    buffer_.erase(0, at + end.size());
    return out;
  }
  std::string read_all(int timeout_ms = 10'000) {
    while (fill(timeout_ms)) {
    }
    return std::exchange(buffer_, {});
  }
  // True when the server closes (or resets) the connection in time.
  bool closed_by_server(int timeout_ms = 10'000) {
    timed_out_ = false;
    while (fill(timeout_ms)) {
    }
    return !timed_out_;
  }

  TestResponse read_response(bool head = false, int timeout_ms = 10'000) {
    TestResponse response;
    std::string text = read_until("\r\n\r\n", timeout_ms);
    if (!text.starts_with("HTTP/1.1 ") || !text.ends_with("\r\n\r\n")) return response;
    response.status = std::stoi(text.substr(9, 3));
    size_t at = text.find("\r\n") + 2;
    while (at < text.size()) {
      const size_t end = text.find("\r\n", at);
      const std::string line = text.substr(at, end - at);
      at = end + 2;
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) continue;
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      response.headers[name] = line.substr(colon + 2);
    }
    if (head || response.status == 100 || response.status == 204 || response.status == 304) return response;
    if (response.headers.contains("content-length")) {
      const auto length = static_cast<size_t>(std::stoul(response.headers["content-length"]));
      while (buffer_.size() < length && fill(timeout_ms)) {
      }
      response.body = buffer_.substr(0, length);
      buffer_.erase(0, length);
    } else if (response.headers.contains("transfer-encoding")) {
      for (;;) {
        const std::string line = read_until("\r\n", timeout_ms);
        if (line.empty()) break;
        const size_t size = std::stoul(line, nullptr, 16);
        while (buffer_.size() < size + 2 && fill(timeout_ms)) {
        }
        response.body += buffer_.substr(0, size);
        buffer_.erase(0, size + 2);
        if (size == 0) break;
      }
    } else {
      response.body = read_all(timeout_ms);
    }
    return response;
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
  bool timed_out_ = false;
  std::string buffer_;
};

inline std::string post_text(std::string_view path, std::string_view body, std::string_view headers = "") {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", path,
      body.size(), headers, body);
}
inline std::string get_text(std::string_view path, std::string_view headers = "", std::string_view method = "GET") {
  return fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", method, path, headers);
}

// The data of server-sent events.
inline std::vector<std::string> sse_data(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    const std::string_view event = body.substr(0, end);
    if (event.starts_with("data: ")) out.emplace_back(event.substr(6));
    if (end == std::string_view::npos) break;
    body.remove_prefix(end + 2);
  }
  return out;
}

}  // namespace sluice
