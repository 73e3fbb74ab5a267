// Boost.Beast reads the head, the server's reader of bodies the rest.
#include "route/answer_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <utility>
#include <vector>

#include "base/ascii.h"

namespace sluice::route {
namespace {

namespace http = boost::beast::http;
using server::equals_ignoring_case;

server::HttpLimits unlimited_body() {
  server::HttpLimits limits;
  limits.body_bytes = INT64_MAX;
  return limits;
}

// Headers that are about one connection, not about the message, and those that the router writes itself.
bool is_own_header(std::string_view name) {
  constexpr std::string_view kOwn[] = {"connection", "keep-alive",   "proxy-connection",  "te",
                                       "trailer",    "upgrade",      "transfer-encoding", "content-length",
                                       "date",       "content-type", "x-request-id"};
  return std::ranges::any_of(kOwn, [&](std::string_view own) { return equals_ignoring_case(name, own); });
}

}  // namespace

AnswerReader::AnswerReader(bool head_only, int max_header_bytes)
    : head_only_(head_only), max_header_bytes_(static_cast<size_t>(max_header_bytes)), no_limits_(unlimited_body()) {}

void AnswerReader::feed(std::string& input) {
  begun_ |= !input.empty();
  while (!has_head_ && problem_.empty()) {
    if (!read_head(input)) return;
  }
  if (!done_ && problem_.empty()) read_body(input);
}

// False if the head is not complete or not valid.
bool AnswerReader::read_head(std::string& input) {
  const size_t end = input.find("\r\n\r\n");
  const size_t bytes = end == std::string::npos ? input.size() : end + 4;
  if (bytes > max_header_bytes_) {
    problem_ = fmt::format("its header is longer than {} bytes", max_header_bytes_);
    return false;
  }
  if (end == std::string::npos) return false;
  http::response_parser<http::empty_body> parser;
  parser.header_limit(static_cast<uint32_t>(max_header_bytes_));
  parser.body_limit(boost::none);
  parser.skip(head_only_);
  boost::beast::error_code error;
  parser.put(boost::asio::buffer(input.data(), bytes), error);
  if (error || !parser.is_header_done()) {
    problem_ = error.message();
    return false;
  }
  input.erase(0, bytes);
  const auto& message = parser.get();
  const int status = static_cast<int>(message.result_int());
  if (status < 200) return true;  // 100 Continue and others announce the final answer
  has_head_ = true;
  head_.status = status;
  head_.content_type = std::string(message[http::field::content_type]);
  for (const auto& field : message) {
    const std::string_view name(field.name_string());
    if (!is_own_header(name)) head_.headers.emplace_back(std::string(name), std::string(field.value()));
  }
  const bool bodyless = head_only_ || status == 204 || status == 304;
  const auto length = parser.content_length();
  keep_alive_ = parser.keep_alive() && (bodyless || parser.chunked() || length);
  if (bodyless) {
    done_ = true;
  } else if (parser.chunked()) {
    body_.emplace(std::nullopt, no_limits_);
  } else if (length) {
    body_.emplace(*length, no_limits_);
    done_ = body_->done();
  }
  return true;
}

void AnswerReader::read_body(std::string& input) {
  if (!body_) {
    piece_ += std::exchange(input, {});
    return;
  }
  input.erase(0, body_->feed(input));
  piece_ += body_->take();
  if (body_->refusal()) problem_ = "a chunk is malformed";
  done_ = body_->done();
}

void AnswerReader::end() {
  if (has_head_ && !body_ && problem_.empty()) done_ = true;
}

}  // namespace sluice::route
