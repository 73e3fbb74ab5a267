// Checks what Beast's parser would accept too freely, then passes the bytes on to it.
#include "server/http/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <utility>

namespace sluice::server {

namespace http = boost::beast::http;

struct HttpParser::Impl {
  http::request_parser<http::empty_body> parser;
};

HttpParser::HttpParser(const HttpLimits& limits) : limits_(limits), impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<uint32_t>(limits.header_bytes));
  impl_->parser.body_limit(static_cast<uint64_t>(limits.body_bytes));
}

HttpParser::~HttpParser() = default;

bool HttpParser::keep_alive() const { return impl_->parser.keep_alive(); }

bool HttpParser::expects_continue() const {
  const auto expect = request_.header("Expect");
  return expect && request_.version == 11;
}

std::optional<uint64_t> HttpParser::content_length() const {
  if (impl_->parser.chunked()) return std::nullopt;
  const auto length = impl_->parser.content_length();
  return length ? *length : 0;
}

void HttpParser::refuse(int status, std::string code, std::string message) {
  state_ = State::kRefused;
  refusal_ = {status, std::move(code), std::move(message)};
}

void HttpParser::feed(std::string& input) {
  if (state_ == State::kHeader) {
    feed_header(input);
  } else if (state_ == State::kBody) {
    feed_body(input);
  }
}

void HttpParser::feed_header(std::string& input) {
  if (scanned_ == 0) {
    // Empty lines before a request are tolerated (RFC 9112, 2.2).
    size_t empty = 0;
    while (input.compare(empty, 2, "\r\n") == 0) empty += 2;
    input.erase(0, empty);
    if (input.empty() || input == "\r") return;
  }
  const size_t scanned = std::exchange(scanned_, input.size());
  const size_t end = input.find("\r\n\r\n", scanned < 3 ? 0 : scanned - 3);
  const size_t line_end = input.find('\n');
  const size_t line_bytes = line_end == std::string::npos ? input.size() : line_end;
  if (line_bytes > static_cast<size_t>(limits_.request_line_bytes)) {
    return refuse(414, "request_too_large",
                  fmt::format("The request line is longer than {} bytes.", limits_.request_line_bytes));
  }
  const size_t bytes = end == std::string::npos ? input.size() : end + 4;
  if (bytes > static_cast<size_t>(limits_.header_bytes)) {
    return refuse(431, "request_too_large",
                  fmt::format("The request header is longer than {} bytes.", limits_.header_bytes));
  }
  // An incomplete header is checked, too: a line that ends in a bare LF must not wait for an end that never comes.
  if (!check_header_block(std::string_view(input).substr(0, bytes), scanned) || end == std::string::npos) return;

  boost::beast::error_code error;
  impl_->parser.eager(false);
  impl_->parser.put(boost::asio::buffer(input.data(), bytes), error);
  if (error == http::error::body_limit) {
    read_header_fields();  // they are complete, and the answer depends on them
    state_ = State::kRefused;
    refusal_ = body_too_large(limits_);
    return;
  }
  if (error == http::error::bad_version) {
    return refuse(505, "", "The HTTP version is not supported (expected HTTP/1.0 or HTTP/1.1).");
  }
  if (error || !impl_->parser.is_header_done()) {
    return refuse(400, "", fmt::format("The request is not valid HTTP: {}.", error.message()));
  }
  input.erase(0, bytes);
  read_header_fields();
  if (!check_framing()) return;
  body_.emplace(content_length(), limits_);
  state_ = body_->done() ? State::kDone : State::kBody;
}

// Refuses line ends and folded lines that a lenient reader and a strict one would read differently. Each byte is
// checked once, together with the byte before it.
bool HttpParser::check_header_block(std::string_view block, size_t from) {
  for (size_t at = from; at < block.size(); ++at) {
    const char c = block[at];
    const char before = at == 0 ? ' ' : block[at - 1];
    const bool bad_line_end = (c == '\n') != (before == '\r');
    const bool folded = before == '\n' && (c == ' ' || c == '\t');
    if (bad_line_end || folded || c == '\0') {
      refuse(400, "", "The request is not valid HTTP: its header lines are malformed.");
      return false;
    }
    if (c == '\n') ++lines_;
  }
  if (lines_ - 2 > limits_.header_count) {
    refuse(431, "request_too_large", fmt::format("The request has more than {} headers.", limits_.header_count));
    return false;
  }
  return true;
}

void HttpParser::read_header_fields() {
  const auto& message = impl_->parser.get();
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  request_.path = request_.target.substr(0, request_.target.find('?'));
  request_.version = static_cast<int>(message.version());
  for (const auto& field : message) {
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  read_absolute_target();
}

// "http://host/path" as proxies send it (RFC 9112, section 3.2.2): its host replaces the one of the Host header.
void HttpParser::read_absolute_target() {
  const std::string_view target = request_.target;
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos || !(equals_ignoring_case(target.substr(0, scheme), "http") ||
                                            equals_ignoring_case(target.substr(0, scheme), "https"))) {
    return;
  }
  const std::string_view rest = target.substr(scheme + 3);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  const std::string_view path = rest.substr(end, rest.find('?') - end);
  request_.path = path.empty() ? "/" : std::string(path);
  const std::string authority(rest.substr(0, end));
  if (request_.version == 10 && request_.count("Host") == 0) request_.headers.emplace_back("Host", authority);
  for (auto& [name, value] : request_.headers) {
    if (equals_ignoring_case(name, "Host")) value = authority;
  }
}

// Request smuggling needs two readers that see different bodies. So whatever could be read in two ways is refused.
bool HttpParser::check_framing() {
  const int lengths = request_.count("Content-Length");
  const int codings = request_.count("Transfer-Encoding");
  const auto digits_only = [](std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  std::string problem;
  if (lengths + codings > 1) {
    problem = "it has more than one Content-Length or Transfer-Encoding header";
  } else if (lengths == 1 && !digits_only(*request_.header("Content-Length"))) {
    problem = "Content-Length is not a number";
  } else if (codings == 1 && !equals_ignoring_case(*request_.header("Transfer-Encoding"), "chunked")) {
    problem = "its transfer coding is not supported (expected chunked)";
  } else if (codings == 1 && request_.version == 10) {
    problem = "HTTP/1.0 has no transfer codings";
  } else if (request_.count("Host") > 1 || (request_.version == 11 && request_.count("Host") == 0)) {
    problem = "it needs exactly one Host header";
  }
  if (!problem.empty()) {
    refuse(400, "", fmt::format("The request is not valid HTTP: {}.", problem));
    return false;
  }
  const auto expect = request_.header("Expect");
  if (request_.count("Expect") > 1 || (expect && !equals_ignoring_case(*expect, "100-continue"))) {
    refuse(417, "", "The expectation is not supported (expected 100-continue).");
    return false;
  }
  return true;
}

void HttpParser::feed_body(std::string& input) {
  input.erase(0, body_->feed(input));
  if (body_->refusal()) {
    state_ = State::kRefused;
    refusal_ = *body_->refusal();
  } else if (body_->done()) {
    request_.body = body_->take();
    state_ = State::kDone;
  }
}

}  // namespace sluice::server
