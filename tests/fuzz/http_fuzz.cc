// Fuzzes the HTTP parser with arbitrary bytes. However the bytes are split, it must give the same verdict and request
// within the limits.
#include "base/check.h"
#include "server/http/parser.h"

namespace {

using sluice::server::HttpLimits;
using sluice::server::HttpParser;

constexpr HttpLimits kLimits{
    .request_line_bytes = 256, .header_bytes = 1024, .header_count = 16, .body_bytes = 512, .chunk_line_bytes = 128};

// Feeds the text in pieces of length `piece`; returns how many bytes were left.
size_t feed(HttpParser& parser, std::string_view text, size_t piece) {
  std::string input;
  while (!text.empty() && parser.state() != HttpParser::State::kRefused) {
    input += text.substr(0, piece);
    text.remove_prefix(std::min(piece, text.size()));
    for (auto before = HttpParser::State::kRefused; before != parser.state();) {
      before = parser.state();
      parser.feed(input);
    }
  }
  return input.size() + text.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  HttpParser whole(kLimits), cut(kLimits);
  const size_t left = feed(whole, text, size);
  const size_t left_of_cut = feed(cut, text, 1 + data[0] % 16);
  const bool done = whole.state() == HttpParser::State::kDone;
  CHECK(done == (cut.state() == HttpParser::State::kDone), "cutting changes the verdict");
  if (!done) return 0;
  CHECK(left == left_of_cut && whole.request().body == cut.request().body, "cutting changes the body");
  CHECK(whole.request().headers == cut.request().headers, "cutting changes the headers");
  CHECK(whole.request().body.size() <= static_cast<size_t>(kLimits.body_bytes), "the body is over its limit");
  CHECK(whole.request().headers.size() <= static_cast<size_t>(kLimits.header_count), "too many headers");
  return 0;
}
