// Addresses of TCP, and errors that name them. How connections behave is in byte_stream_test.cc.
#include "parallel/tcp.h"

#include <gtest/gtest.h>

#include <string>

#include "sluice/error.h"

namespace sluice::tcp_test {
namespace {

using std::chrono_literals::operator""s;

std::string problem_of(const std::string& text) {
  try {
    TcpAddress::parse(text, "--option");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Tcp, Addresses) {
  EXPECT_EQ(TcpAddress::parse("host:80", "").host, "host");
  EXPECT_EQ(TcpAddress::parse("host:80", "").port, 80);
  EXPECT_EQ(TcpAddress::parse("[::1]:65535", "").host, "::1");
  EXPECT_EQ(TcpAddress::parse("[::1]:65535", "").str(), "[::1]:65535");
  EXPECT_EQ(TcpAddress::parse("127.0.0.1:0", "").str(), "127.0.0.1:0");
  for (const char* wrong : {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8x", "::1:80", "[]:80"}) {
    EXPECT_NE(problem_of(wrong).find("--option: '" + std::string(wrong) + "' is not an address"), std::string::npos)
        << problem_of(wrong);
  }
}

TEST(Tcp, ErrorsNameTheAddress) {
  int port = 0;
  {
    const TcpListener listener({.host = "127.0.0.1", .port = 0}, "--listen");
    port = listener.port();
    try {
      TcpListener({.host = "127.0.0.1", .port = port}, "--listen");
      FAIL() << "two listeners have one address";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("--listen: cannot listen on 127.0.0.1:"), std::string::npos) << e.what();
    }
  }
  try {
    connect_tcp({.host = "127.0.0.1", .port = port}, 2s);
    FAIL() << "nobody listens";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no connection to 127.0.0.1:"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sluice::tcp_test
