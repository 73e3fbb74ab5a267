// Reads bodies of HTTP requests, counted or chunked (RFC 9112, section 7.1), strictly and within limits. Chunks are
// decoded here because Boost.Beast 1.81 asserts on a final chunk that arrives in pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::server {

struct HttpLimits {
  int request_line_bytes = 8 << 10;
  int header_bytes = 64 << 10;  // with the request line
  int header_count = 100;
  int64_t body_bytes = 32 << 20;   // after chunked decoding
  int chunk_line_bytes = 4 << 10;  // size and extensions of one chunk; also all trailers together
};

// Why a message is refused. The connection cannot be used afterwards.
struct HttpRefusal {
  int status = 400;
  std::string code = {};  // code of the API error; may be empty
  std::string message = {};
};

HttpRefusal body_too_large(const HttpLimits& limits);

class BodyReader {
 public:
  // length: bytes; nullopt for a chunked body. The caller refuses a length over the limit.
  BodyReader(std::optional<uint64_t> length, const HttpLimits& limits);

  // Takes bytes up to the end of the body and returns how many. Takes none after a refusal.
  size_t feed(std::string_view bytes);

  bool done() const { return state_ == State::kDone; }
  const std::optional<HttpRefusal>& refusal() const { return refusal_; }
  std::string take() { return std::move(body_); }

 private:
  enum class State { kData, kSize, kDataEnd, kTrailer, kDone };

  void take_line_byte(char c);
  void end_line();
  void read_size();
  void refuse(std::string_view what);

  const HttpLimits& limits_;
  const bool chunked_;
  State state_;
  uint64_t remaining_ = 0;  // bytes of the body or the chunk that are still to come
  std::string line_;        // the part of a framing line that has arrived
  size_t trailer_bytes_ = 0;
  std::string body_;
  std::optional<HttpRefusal> refusal_;
};

}  // namespace sluice::server
