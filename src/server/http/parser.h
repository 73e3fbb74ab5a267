// Incremental parser of one HTTP/1.1 request: the grammar is Boost.Beast's, made strict by checks of its own (CRLF
// only, no folded lines, no doubled framing headers, one transfer coding) and bounded in every dimension.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/http/body.h"
#include "server/http/http.h"

namespace sluice::server {

class HttpParser {
 public:
  enum class State { kHeader, kBody, kDone, kRefused };

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Takes bytes from the front of `input`, as many as belong to this request, and stops once when the header is
  // complete (state kBody or kDone), so that the caller can judge it before the body is read.
  void feed(std::string& input);

  State state() const { return state_; }
  const HttpRefusal& refusal() const { return refusal_; }
  HttpRequest& request() { return request_; }  // headers are there from kBody on, the body at kDone
  bool keep_alive() const;                     // what the client wants
  bool expects_continue() const;
  // Bytes of the body, if the header says; nullopt: chunked.
  std::optional<uint64_t> content_length() const;

 private:
  struct Impl;
  void feed_header(std::string& input);
  void feed_body(std::string& input);
  void read_header_fields();
  bool check_header_block(std::string_view block, size_t from);
  bool check_framing();
  void refuse(int status, std::string code, std::string message);

  const HttpLimits limits_;
  State state_ = State::kHeader;
  HttpRequest request_;
  HttpRefusal refusal_;
  size_t scanned_ = 0;  // bytes of an incomplete header already looked at
  int lines_ = 0;       // line ends among them
  std::unique_ptr<Impl> impl_;
  std::optional<BodyReader> body_;  // once the header is complete
};

}  // namespace sluice::server
