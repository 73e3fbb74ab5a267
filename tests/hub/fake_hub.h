// A fake hub on 127.0.0.1 for tests. It serves repositories from memory over HTTP, or over TLS with its own certificate
// authority, and can misbehave in every way.
#pragma once

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "support/certificate.h"

namespace sluice::testing {

inline std::string hex_digest(const EVP_MD* kind, std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, kind, nullptr);
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}
inline std::string sha256(std::string_view bytes) { return hex_digest(EVP_sha256(), bytes); }
inline std::string git_sha1(std::string_view bytes) {
  return hex_digest(EVP_sha1(), fmt::format("blob {}{}{}", bytes.size(), '\0', bytes));
}

struct Request {
  std::string method, target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string header(const std::string& name) const { return headers.contains(name) ? headers.at(name) : ""; }
};
struct Answer {
  int status = 200;
  std::map<std::string, std::string> headers{};
  std::string body{};
  size_t cut_after = std::string::npos;  // bytes of the body to send before the connection closes
};

// Answers every request with `handler`, one connection per request.
class FakeServer {
 public:
  using Handler = std::function<Answer(const Request&)>;

  explicit FakeServer(Handler handler, const std::string& certificate = {}, const std::string& key = {})
      : handler_(std::move(handler)) {
    if (!certificate.empty()) {
      tls_ = SSL_CTX_new(TLS_server_method());
      CHECK(SSL_CTX_use_certificate_file(tls_, certificate.c_str(), SSL_FILETYPE_PEM) == 1);
      CHECK(SSL_CTX_use_PrivateKey_file(tls_, key.c_str(), SSL_FILETYPE_PEM) == 1);
    }
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    CHECK(::listen(listener_, 64) == 0);
    CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~FakeServer() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& t : connections_) t.join();
    ::close(listener_);
    SSL_CTX_free(tls_);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  std::string url() const { return fmt::format("{}://127.0.0.1:{}", tls_ != nullptr ? "https" : "http", port_); }
  std::vector<Request> requests() const {
    const std::scoped_lock lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0 && !stopping_;) {
      connections_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    SSL* ssl = tls_ != nullptr ? SSL_new(tls_) : nullptr;
    if (ssl != nullptr) SSL_set_fd(ssl, fd);
    if (ssl == nullptr || SSL_accept(ssl) == 1) exchange(fd, ssl);
    if (ssl != nullptr) SSL_free(ssl);
    ::close(fd);
  }

  void exchange(int fd, SSL* ssl) {
    std::string text;
    char bytes[4096];
    while (text.find("\r\n\r\n") == std::string::npos) {
      const auto n = ssl != nullptr ? SSL_read(ssl, bytes, sizeof bytes) : ::recv(fd, bytes, sizeof bytes, 0);
      if (n <= 0) return;
      text.append(bytes, static_cast<size_t>(n));
    }
    const Request request = parse(text);
    {
      const std::scoped_lock lock(mutex_);
      requests_.push_back(request);
    }
    Answer answer = handler_(request);
    std::string out = fmt::format("HTTP/1.1 {} X\r\n", answer.status);
    answer.headers.emplace("Content-Length", std::to_string(answer.body.size()));
    for (const auto& [name, value] : answer.headers) out += fmt::format("{}: {}\r\n", name, value);
    out += "Connection: close\r\n\r\n";
    if (request.method != "HEAD") out += answer.body.substr(0, answer.cut_after);
    for (size_t at = 0; at < out.size();) {
      const int left = static_cast<int>(out.size() - at);
      const auto n =
          ssl != nullptr ? SSL_write(ssl, out.data() + at, left) : ::send(fd, out.data() + at, left, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
    if (ssl != nullptr) SSL_shutdown(ssl);
  }

  static Request parse(const std::string& text) {
    Request request;
    const size_t line_end = text.find("\r\n");
    const std::string line = text.substr(0, line_end);
    request.method = line.substr(0, line.find(' '));
    request.target = line.substr(line.find(' ') + 1, line.rfind(' ') - line.find(' ') - 1);
    for (size_t at = line_end + 2; at < text.size();) {
      const size_t end = text.find("\r\n", at);
      const std::string header = text.substr(at, end - at);
      if (header.empty()) break;
      std::string name = header.substr(0, header.find(':'));
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      request.headers[name] = header.substr(header.find(':') + 2);
      at = end + 2;
    }
    return request;
  }

  Handler handler_;
  SSL_CTX* tls_ = nullptr;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;
  std::vector<std::thread> connections_;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
};

inline const std::string kCommit(40, 'c');

// Answers for one repository, org/name. Small files are served with their Git checksum. Large files (above 100 bytes)
// use SHA-256, with a redirect to `elsewhere` when it is set.
struct FakeRepository {
  std::map<std::string, std::string> files;
  std::string elsewhere{};  // "http://127.0.0.1:1234"

  Answer operator()(const Request& request) const {
    const std::string resolve = "/org/name/resolve/" + kCommit + "/";
    if (request.target == "/api/models/org/name/revision/main" ||
        request.target == "/api/models/org/name/revision/refs%2Fpr%2F1") {
      std::string siblings;
      for (const auto& [name, content] : files)
        siblings += fmt::format(R"({}{{"rfilename": "{}"}})", siblings.empty() ? "" : ", ", name);
      return {.body = fmt::format(R"({{"sha": "{}", "siblings": [{}]}})", kCommit, siblings)};
    }
    if (!request.target.starts_with(resolve)) return {.status = 404};
    const auto file = files.find(request.target.substr(resolve.size()));
    if (file == files.end()) return {.status = 404};
    const std::string& content = file->second;
    if (content.size() <= 100)
      return with_range(request, {.headers = {{"ETag", '"' + git_sha1(content) + '"'}}, .body = content});
    Answer answer{
        .status = 302,
        .headers = {{"X-Linked-Etag", '"' + sha256(content) + '"'}, {"X-Linked-Size", std::to_string(content.size())}}};
    if (!elsewhere.empty()) {
      answer.headers["Location"] = elsewhere + "/content/" + file->first;
      return answer;
    }
    answer.status = 200;
    answer.body = content;
    return with_range(request, std::move(answer));
  }

  // Serves a file's content from the requested offset.
  static Answer with_range(const Request& request, Answer answer) {
    const std::string range = request.header("range");
    if (range.empty() || request.method == "HEAD") return answer;
    const size_t begin = std::stoull(range.substr(6));
    if (begin >= answer.body.size()) return {.status = 416};
    answer.headers["Content-Range"] = fmt::format("bytes {}-{}/{}", begin, answer.body.size() - 1, answer.body.size());
    answer.body = answer.body.substr(begin);
    answer.status = 206;
    return answer;
  }
};

}  // namespace sluice::testing
