// The strict HTTP parser: what it takes, what it refuses with which status, whatever way the bytes are cut.
#include "server/http/parser.h"

#include <gtest/gtest.h>

namespace sluice::server::parser_test {
namespace {

using State = HttpParser::State;

// Feeds a text in pieces and returns the parser; `rest` gets what it left.
std::unique_ptr<HttpParser> feed(std::string_view text, size_t piece, std::string* rest = nullptr,
                                 HttpLimits limits = {}) {
  auto parser = std::make_unique<HttpParser>(limits);
  std::string input;
  while (!text.empty()) {
    input += text.substr(0, piece);
    text.remove_prefix(std::min(piece, text.size()));
    for (State before = State::kRefused; before != parser->state();) {
      before = parser->state();
      parser->feed(input);
    }
    if (parser->state() == State::kRefused) break;
  }
  if (rest != nullptr) *rest = input + std::string(text);
  return parser;
}

constexpr std::string_view kPost = "POST /x?q=1 HTTP/1.1\r\nHost: a\r\n";

TEST(HttpParser, ReadsBodiesHoweverTheyArrive) {
  const std::string counted = std::string(kPost) + "Content-Length: 5\r\n\r\nhelloGET /next";
  const std::string chunked =
      std::string(kPost) +
      "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n003;a=b\r\nllo\r\n0\r\nTrailer: x\r\n\r\nGET /next";
  for (const std::string& text : {counted, chunked}) {
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{64}, size_t{1000}}) {
      std::string rest;
      const auto parser = feed(text, piece, &rest);
      ASSERT_EQ(parser->state(), State::kDone) << parser->refusal().message << " piece " << piece;
      EXPECT_EQ(parser->request().body, "hello");
      EXPECT_EQ(parser->request().path, "/x");
      EXPECT_EQ(parser->request().target, "/x?q=1");
      EXPECT_EQ(rest, "GET /next");
      EXPECT_TRUE(parser->keep_alive());
    }
  }
}

TEST(HttpParser, ToleratesEmptyLinesBeforeARequest) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
    EXPECT_EQ(feed("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", piece)->state(), State::kDone) << piece;
    EXPECT_EQ(feed("\r\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", piece)->state(), State::kRefused) << piece;
    EXPECT_EQ(feed("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", piece)->state(), State::kRefused) << piece;
  }
}

TEST(HttpParser, KeepsAliveAsTheVersionSays) {
  EXPECT_TRUE(feed("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 99)->keep_alive());
  EXPECT_FALSE(feed("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 99)->keep_alive());
  EXPECT_FALSE(feed("GET / HTTP/1.0\r\n\r\n", 99)->keep_alive());
  EXPECT_TRUE(feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 99)->keep_alive());
}

struct Refused {
  const char* what;
  std::string text;
  int status;
};

class HttpParserRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(HttpParserRefuses, InAnyPieces) {
  for (const size_t piece : {size_t{1}, size_t{5}, size_t{100000}}) {
    const auto parser = feed(GetParam().text, piece);
    ASSERT_EQ(parser->state(), State::kRefused) << GetParam().what << " piece " << piece;
    EXPECT_EQ(parser->refusal().status, GetParam().status) << GetParam().what << " piece " << piece;
    EXPECT_FALSE(parser->refusal().message.empty());
  }
}

std::string with_header(const std::string& lines, const std::string& body = "") {
  return "POST / HTTP/1.1\r\nHost: a\r\n" + lines + "\r\n" + body;
}
std::string chunks(const std::string& body) { return with_header("Transfer-Encoding: chunked\r\n", body); }

INSTANTIATE_TEST_SUITE_P(
    All, HttpParserRefuses,
    ::testing::Values(
        Refused{"CL and TE", with_header("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
        Refused{"TE and CL", with_header("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), 400},
        Refused{"two CL", with_header("Content-Length: 5\r\nContent-Length: 6\r\n"), 400},
        Refused{"two equal CL", with_header("Content-Length: 5\r\nContent-Length: 5\r\n"), 400},
        Refused{"CL list", with_header("Content-Length: 5, 5\r\n"), 400},
        Refused{"CL sign", with_header("Content-Length: +5\r\n"), 400},
        Refused{"CL negative", with_header("Content-Length: -5\r\n"), 400},
        Refused{"CL hex", with_header("Content-Length: 0x5\r\n"), 400},
        Refused{"CL overflow", with_header("Content-Length: 99999999999999999999\r\n"), 400},
        Refused{"CL empty", with_header("Content-Length: \r\n"), 400},
        Refused{"CL over the limit", with_header("Content-Length: 33554433\r\n"), 413},
        Refused{"two TE", with_header("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400},
        Refused{"TE gzip", with_header("Transfer-Encoding: gzip\r\n"), 400},
        Refused{"TE gzip, chunked", with_header("Transfer-Encoding: gzip, chunked\r\n"), 400},
        Refused{"TE identity", with_header("Transfer-Encoding: identity\r\n"), 400},
        Refused{"TE xchunked", with_header("Transfer-Encoding: xchunked\r\n"), 400},
        Refused{"TE in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        Refused{"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
        Refused{"two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
        Refused{"bare LF", "GET / HTTP/1.1\nHost: a\n\n", 400},
        Refused{"LF in the middle", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400},
        Refused{"bare CR", "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400},
        Refused{"folded line", with_header("X: a\r\n b\r\n"), 400},
        Refused{"NUL", with_header(std::string("X: a") + '\0' + "\r\n"), 400},
        Refused{"space before colon", with_header("X : a\r\n"), 400}, Refused{"no colon", with_header("X\r\n"), 400},
        Refused{"empty name", with_header(": a\r\n"), 400},
        Refused{"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400}, Refused{"no version", "GET /\r\n\r\n", 400},
        Refused{"HTTP/2", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        Refused{"lower case", "GET / http/1.1\r\nHost: a\r\n\r\n", 505},
        Refused{"garbage", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), 400},
        Refused{"long line", "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
        Refused{"long header", with_header("X: " + std::string(70000, 'a') + "\r\n"), 431},
        Refused{"endless header", "GET / HTTP/1.1\r\nX: " + std::string(70000, 'a'), 431},
        Refused{"many headers", with_header([] {
                  std::string lines;
                  for (int i = 0; i < 101; ++i) lines += "X: y\r\n";
                  return lines;
                }()),
                431},
        Refused{"expectation", with_header("Expect: 200-maybe\r\nContent-Length: 1\r\n"), 417},
        Refused{"chunk -1", chunks("-1\r\n"), 400}, Refused{"chunk -2", chunks("-2\r\n"), 400},
        Refused{"chunk 0x10", chunks("0x10\r\n\r\n"), 400}, Refused{"chunk +5", chunks("+5\r\n"), 400},
        Refused{"chunk overflow", chunks("FFFFFFFFFFFFFFFFF\r\n"), 400},
        Refused{"chunk huge", chunks("FFFFFFFFFFFFFFFF\r\n"), 413},
        Refused{"chunk space", chunks(" 5\r\nhello\r\n"), 400}, Refused{"chunk LF", chunks("5\nhello\n"), 400},
        Refused{"chunk without end", chunks("5\r\nhelloX\r\n0\r\n\r\n"), 400},
        Refused{"chunk line too long", chunks("5;" + std::string(70000, 'a')), 400},
        Refused{"chunk empty", chunks("\r\n\r\n"), 400}, Refused{"chunk name", chunks("zz\r\n"), 400}));

TEST(HttpParser, ChunkedBodiesHaveTheSameLimit) {
  HttpLimits limits;
  limits.body_bytes = 10;
  EXPECT_EQ(feed(chunks("5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n"), 3, nullptr, limits)->state(), State::kDone);
  const auto parser = feed(chunks("5\r\nhello\r\n6\r\nhello!\r\n0\r\n\r\n"), 3, nullptr, limits);
  EXPECT_EQ(parser->state(), State::kRefused);
  EXPECT_EQ(parser->refusal().status, 413);
}

// Boost.Beast asserts on a final chunk that comes first and in pieces.
TEST(HttpParser, EmptyChunkedBodies) {
  for (size_t piece = 1; piece < 8; ++piece) {
    const auto parser = feed(chunks("0\r\n\r\n"), piece);
    EXPECT_EQ(parser->state(), State::kDone) << piece;
    EXPECT_EQ(parser->request().body, "");
  }
}

// No input may crash the parser or make it take more than there is.
TEST(HttpParser, SurvivesMutations) {
  const std::string base = chunks("5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n");
  uint64_t seed = 1;
  const auto random = [&seed] {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
  };
  for (int round = 0; round < 20000; ++round) {
    std::string text = base;
    for (uint64_t k = 0; k < 1 + random() % 3; ++k) text[random() % text.size()] = static_cast<char>(random());
    const auto whole = feed(text, text.size());
    const auto pieces = feed(text, 1 + random() % 9);
    EXPECT_EQ(whole->state() == State::kDone, pieces->state() == State::kDone) << text;
    if (whole->state() == State::kDone && pieces->state() == State::kDone) {
      EXPECT_EQ(whole->request().body, pieces->request().body);
    }
  }
}

}  // namespace
}  // namespace sluice::server::parser_test
