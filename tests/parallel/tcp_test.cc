// Connections between servers: bytes come whole, and whoever waits is woken when the other side ends.
#include "parallel/tcp.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "sluice/error.h"

namespace sluice::tcp_test {
namespace {

using std::chrono_literals::operator""ms, std::chrono_literals::operator""s;
using Clock = std::chrono::steady_clock;

struct Pair {
  TcpListener listener{{.host = "127.0.0.1", .port = 0}, "--listen"};
  std::unique_ptr<ByteStream> near = connect_tcp({.host = "127.0.0.1", .port = listener.port()}, 2s);
  std::unique_ptr<ByteStream> far = listener.accept(2s);
};

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

TEST(Tcp, BytesComeWholeAndInOrder) {
  Pair pair;
  ASSERT_NE(pair.far, nullptr);
  std::vector<uint32_t> sent(4 << 20), got(sent.size());
  std::iota(sent.begin(), sent.end(), 5u);
  std::thread writer([&] { EXPECT_TRUE(pair.near->write(std::as_bytes(std::span(sent)), 5s)); });
  EXPECT_TRUE(pair.far->read(std::as_writable_bytes(std::span(got)), 5s));
  writer.join();
  EXPECT_EQ(sent, got);
}

TEST(Tcp, SilenceEndsAWait) {
  Pair pair;
  std::byte byte{};
  EXPECT_FALSE(pair.far->readable(10ms));
  const Clock::time_point before = Clock::now();
  EXPECT_FALSE(pair.far->read({&byte, 1}, 50ms));
  EXPECT_GE(Clock::now() - before, 40ms);
  EXPECT_LT(Clock::now() - before, 5s);
}

TEST(Tcp, ThePeersEndAndShutDownWakeReaders) {
  for (const bool own : {false, true}) {
    Pair pair;
    std::thread other([&] {
      std::this_thread::sleep_for(30ms);
      (own ? pair.far : pair.near)->shut_down();
    });
    const Clock::time_point before = Clock::now();
    std::byte byte{};
    EXPECT_TRUE(pair.far->readable(10s));
    EXPECT_FALSE(pair.far->read({&byte, 1}, 10s));
    EXPECT_LT(Clock::now() - before, 5s);
    other.join();
  }
}

TEST(Tcp, WakeEndsReadableOnce) {
  Pair pair;
  pair.far->wake();
  const Clock::time_point before = Clock::now();
  EXPECT_FALSE(pair.far->readable(10s));
  EXPECT_LT(Clock::now() - before, 5s);
  EXPECT_FALSE(pair.far->readable(20ms)) << "the wake is used up";
  EXPECT_GE(Clock::now() - before, 15ms);
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
