// Tests the reader of replicas' answers, with the bytes cut in every way.
#include "route/answer_reader.h"

#include <gtest/gtest.h>

namespace sluice::route {
namespace {

struct Read {
  int status = 0;
  std::string type, body, problem, rest;
  server::Headers headers;
  bool done = false, keep_alive = false;
};

// Feeds the text in pieces of `size` bytes; `closed`: the connection ends after it.
Read read_answer(std::string_view text, size_t size, bool head_only = false, bool closed = false, int limit = 4096) {
  AnswerReader reader(head_only, limit);
  Read out;
  std::string input;
  while (!text.empty()) {
    input += text.substr(0, size);
    text.remove_prefix(std::min(size, text.size()));
    reader.feed(input);
    out.body += reader.take_body();
  }
  if (closed) reader.end();
  if (reader.has_head()) {
    out.status = reader.head().status;
    out.type = reader.head().content_type;
    out.headers = reader.head().headers;
  }
  out.problem = reader.problem();
  out.done = reader.done();
  out.keep_alive = reader.keep_alive();
  out.rest = input;
  return out;
}

TEST(AnswerReader, Counted) {
  for (size_t size = 1; size < 99; ++size) {
    const Read read = read_answer(
        "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 5\r\nX-A: b\r\n"
        "Date: now\r\nX-Request-Id: 1\r\n\r\nhello",
        size);
    EXPECT_EQ(read.status, 404);
    EXPECT_EQ(read.type, "application/json");
    EXPECT_EQ(read.body, "hello");
    EXPECT_EQ(read.headers, (server::Headers{{"X-A", "b"}}));
    EXPECT_TRUE(read.done && read.keep_alive);
  }
}

TEST(AnswerReader, Chunked) {
  for (size_t size = 1; size < 99; ++size) {
    const Read read = read_answer(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nT: "
        "t\r\n\r\nmore",
        size);
    EXPECT_EQ(read.body, "abc0123456789abcdef");
    EXPECT_TRUE(read.done && read.keep_alive);
    EXPECT_EQ(read.rest, "more");
  }
}

TEST(AnswerReader, UntilTheEndOfTheConnection) {
  const std::string text = "HTTP/1.1 200 OK\r\n\r\nabc";
  EXPECT_FALSE(read_answer(text, 7).done);
  const Read read = read_answer(text, 7, false, /*closed=*/true);
  EXPECT_EQ(read.body, "abc");
  EXPECT_TRUE(read.done);
  EXPECT_FALSE(read.keep_alive);
}

TEST(AnswerReader, WithoutBody) {
  EXPECT_TRUE(read_answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 9, /*head_only=*/true).done);
  EXPECT_TRUE(read_answer("HTTP/1.1 204 No Content\r\n\r\n", 9).done);
  EXPECT_TRUE(read_answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 9).done);
}

TEST(AnswerReader, SkipsInterimAnswers) {
  const Read read = read_answer(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
      "2\r\n\r\nok",
      11);
  EXPECT_EQ(read.status, 200);
  EXPECT_EQ(read.body, "ok");
}

TEST(AnswerReader, ConnectionHeader) {
  EXPECT_FALSE(read_answer("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 9).keep_alive);
  EXPECT_FALSE(read_answer("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 9).keep_alive);
}

TEST(AnswerReader, AnAnswerThatIsCutIsNotDone) {
  for (const char* text : {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "HTTP/1.1 200 OK\r\nContent-Le",
                           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"}) {
    EXPECT_FALSE(read_answer(text, 4, false, /*closed=*/true).done) << text;
  }
}

TEST(AnswerReader, RefusesWhatIsNotHttp) {
  for (const char* text :
       {"SSH-2.0-x\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    EXPECT_FALSE(read_answer(text, 5).problem.empty()) << text;
  }
  const std::string large = "HTTP/1.1 200 OK\r\nA: " + std::string(5000, 'a');
  EXPECT_NE(read_answer(large, 100).problem.find("longer than 4096 bytes"), std::string::npos);
}

}  // namespace
}  // namespace sluice::route
