// Reads the answer of a replica piece by piece: a head, then a body that is counted, chunked or ends with the
// connection (RFC 9112, section 6.3). Nothing of the body is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "server/http/body.h"
#include "server/http/http.h"

namespace sluice::route {

struct AnswerHead {
  int status = 0;
  std::string content_type;  // empty: there is none
  server::Headers headers;   // for the client: without those of the connection, Content-Type, Date and X-Request-Id
};

class AnswerReader {
 public:
  // head_only: the answer to a HEAD request, which has no body.
  AnswerReader(bool head_only, int max_header_bytes);

  // Takes what has arrived from the front of `input`. Answers of status 1xx before the final one are skipped.
  void feed(std::string& input);
  // The connection has ended. That is the end of a body that is neither counted nor chunked.
  void end();

  // The head is complete. It may be moved from.
  bool has_head() const { return has_head_; }
  AnswerHead& head() { return head_; }
  std::string take_body() { return std::exchange(piece_, {}); }  // what has arrived since the last call

  bool begun() const { return begun_; }  // a byte of the answer has arrived
  bool done() const { return done_; }
  bool keep_alive() const { return keep_alive_; }          // the connection may be used again when done() is true
  const std::string& problem() const { return problem_; }  // why the answer is not valid HTTP; empty: it is

 private:
  bool read_head(std::string& input);
  void read_body(std::string& input);

  const bool head_only_;
  const size_t max_header_bytes_;
  const server::HttpLimits no_limits_;
  AnswerHead head_;
  bool begun_ = false, has_head_ = false, done_ = false, keep_alive_ = false;
  std::optional<server::BodyReader> body_;  // nullopt: until the end of the connection
  std::string piece_, problem_;
};

}  // namespace sluice::route
