// A state machine over framing lines and data.
#include "server/http/body.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace sluice::server {

HttpRefusal body_too_large(const HttpLimits& limits) {
  return {413, "request_too_large", fmt::format("The request body is larger than {} bytes.", limits.body_bytes)};
}

BodyReader::BodyReader(std::optional<uint64_t> length, const HttpLimits& limits)
    : limits_(limits),
      chunked_(!length),
      state_(chunked_       ? State::kSize
             : *length == 0 ? State::kDone
                            : State::kData),
      remaining_(length.value_or(0)) {}

void BodyReader::refuse(std::string_view what) {
  refusal_ = HttpRefusal{.message = fmt::format("The request is not valid HTTP: {}.", what)};
}

size_t BodyReader::feed(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size() && !done() && !refusal_) {
    if (state_ != State::kData) {
      take_line_byte(bytes[at++]);
      continue;
    }
    const size_t n = static_cast<size_t>(std::min<uint64_t>(remaining_, bytes.size() - at));
    body_.append(bytes.substr(at, n));
    at += n;
    remaining_ -= n;
    if (remaining_ == 0) state_ = chunked_ ? State::kDataEnd : State::kDone;
  }
  return at;
}

// Lines end in CRLF. Neither of the two bytes may stand alone.
void BodyReader::take_line_byte(char c) {
  const bool after_cr = line_.ends_with('\r');
  if (after_cr != (c == '\n')) return refuse("a chunk's line ends without CRLF");
  if (after_cr) {
    line_.pop_back();
    end_line();
    line_.clear();
    return;
  }
  if (state_ == State::kDataEnd && c != '\r') return refuse("a chunk is longer than its size");
  line_ += c;
  if (state_ == State::kTrailer) ++trailer_bytes_;
  if (std::max(line_.size(), trailer_bytes_) > static_cast<size_t>(limits_.chunk_line_bytes)) {
    refuse("a chunk header or the trailers are too long");
  }
}

void BodyReader::end_line() {
  const auto control = [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; };
  if (std::any_of(line_.begin(), line_.end(), control)) return refuse("control characters between chunks");
  switch (state_) {
    case State::kSize:
      return read_size();
    case State::kDataEnd:
      state_ = State::kSize;
      return;
    case State::kTrailer: {
      const size_t colon = line_.find(':');
      if (line_.empty()) {
        state_ = State::kDone;
      } else if (colon == 0 || colon == std::string::npos || line_.find_first_of(" \t") < colon) {
        refuse("a trailer is malformed");
      }
      return;
    }
    default:
      return;
  }
}

// chunk-size [ ";" extensions ]
void BodyReader::read_size() {
  constexpr size_t kMaxDigits = 16;
  uint64_t size = 0;
  const char* end = line_.data() + line_.size();
  const auto [stop, error] = std::from_chars(line_.data(), end, size, 16);
  const auto digits = static_cast<size_t>(stop - line_.data());
  // from_chars accepts a minus sign for some types, and any number of zeros.
  if (error != std::errc() || digits > kMaxDigits || line_[0] == '-' || (stop != end && *stop != ';')) {
    return refuse("a chunk size is malformed");
  }
  if (size > static_cast<uint64_t>(limits_.body_bytes) - body_.size()) {
    refusal_ = body_too_large(limits_);
    return;
  }
  remaining_ = size;
  state_ = size == 0 ? State::kTrailer : State::kData;
}

}  // namespace sluice::server
