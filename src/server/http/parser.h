// Incremental parser of one HTTP/1.1 request (RFC 9112). Boost.Beast reads the grammar. Checks of our own make it
// strict: CRLF only, no folded lines, no doubled framing headers, one transfer coding. Every size has a limit.
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

  // Takes the bytes that belong to this request from the front of `input`. Stops once when the header is complete
  // (state kBody or kDone), so that the caller can check it before the body is read.
  void feed(std::string& input);

  State state() const { return state_; }
  const HttpRefusal& refusal() const { return refusal_; }
  HttpRequest& request() { return request_; }  // headers from kBody on, the body at kDone
  bool keep_alive() const;                     // what the client wants
  bool expects_continue() const;
  // Bytes of the body; 0 if the header does not say, nullopt for a chunked body.
  std::optional<uint64_t> content_length() const;

 private:
  struct Impl;
  void feed_header(std::string& input);
  void feed_body(std::string& input);
  void read_header_fields();
  void read_absolute_target();
  bool check_header_block(std::string_view block, size_t from);
  bool check_framing();
  void refuse(int status, std::string code, std::string message);

  const HttpLimits limits_;
  State state_ = State::kHeader;
  HttpRequest request_;
  HttpRefusal refusal_;
  size_t scanned_ = 0;  // bytes of an incomplete header that were checked
  int lines_ = 0;       // line ends among these bytes
  std::unique_ptr<Impl> impl_;
  std::optional<BodyReader> body_;  // set when the header is complete
};

}  // namespace sluice::server
