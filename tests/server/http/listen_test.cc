// Several addresses of one server.
#include "server/http/listen.h"

#include <gtest/gtest.h>

#include "server/http/addresses.h"
#include "sluice/error.h"

namespace sluice::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

TEST(Addresses, AreDividedByCommas) {
  EXPECT_EQ(listen_addresses("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(listen_addresses("127.0.0.1,::1"), (std::vector<std::string>{"127.0.0.1", "::1"}));
  EXPECT_EQ(listen_addresses(",a,"), (std::vector<std::string>{"", "a", ""}));
}

TEST(Addresses, TheFirstIsInUrls) {
  EXPECT_EQ(url_authority("localhost,::1", 80), "localhost:80");
  EXPECT_EQ(url_authority("::1,127.0.0.1", 8000), "[::1]:8000");
}

TEST(ListenOn, EveryAddressAnswersOnOnePort) {
  asio::io_context io;
  const std::vector<tcp::acceptor> acceptors = listen_on(io, "127.0.0.1,127.0.0.2", 0, {});
  ASSERT_EQ(acceptors.size(), 2u);
  const uint16_t port = acceptors[0].local_endpoint().port();
  EXPECT_EQ(acceptors[1].local_endpoint().port(), port);
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    tcp::socket socket(io);
    boost::system::error_code error;
    socket.connect({asio::ip::make_address(address), port}, error);
    EXPECT_FALSE(error) << address << ": " << error.message();
  }
}

TEST(ListenOn, SaysWhichAddressCannotBeUsed) {
  asio::io_context io;
  const auto message = [&](const char* host) -> std::string {
    try {
      listen_on(io, host, 0, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_NE(message("127.0.0.1,").find("--host '127.0.0.1,': expected addresses"), std::string::npos);
  EXPECT_NE(message("127.0.0.1,192.0.2.1").find("cannot listen on 192.0.2.1"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server
