#include "server/http/listen.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/socket_base.hpp>
#include <utility>

#include "server/http/addresses.h"
#include "sluice/error.h"

namespace sluice::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

Error cannot_listen(std::string_view address, int port, const error_code& error) {
  return {ErrorCode::kInternal, fmt::format("cannot listen on {} port {}: {}", address, port, error.message()), "port",
          ""};
}

tcp::acceptor bind_to(asio::io_context& io, const std::string& address, int port, bool alone) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(address, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) throw cannot_listen(address, port, error);
  const tcp::endpoint endpoint = *found.begin();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  // "::" alone takes IPv4 clients, too. Beside "0.0.0.0" it must not claim the same port a second time.
  if (!error && !alone && endpoint.protocol() == tcp::v6()) acceptor.set_option(asio::ip::v6_only(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) throw cannot_listen(address, port, error);
  return acceptor;
}

tcp::acceptor take_over(asio::io_context& io, int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  error_code error;
  tcp::acceptor acceptor(io);
  acceptor.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), listener, error);
  if (!error) return acceptor;
  ::close(listener);
  throw Error(ErrorCode::kInternal, fmt::format("cannot take over a listening socket: {}", error.message()), "port",
              "");
}

}  // namespace

std::vector<tcp::acceptor> listen_on(asio::io_context& io, std::string_view host, int port,
                                     const std::vector<int>& listeners) {
  std::vector<tcp::acceptor> acceptors;
  for (const int listener : listeners) acceptors.push_back(take_over(io, listener));
  if (!acceptors.empty()) return acceptors;
  const std::vector<std::string> addresses = listen_addresses(host);
  for (const std::string& address : addresses) {
    if (address.empty()) {
      throw Error(ErrorCode::kInvalidRequest,
                  fmt::format("--host '{}': expected addresses with commas between them, none of them empty", host),
                  "host", "");
    }
    acceptors.push_back(bind_to(io, address, port, addresses.size() == 1));
    port = acceptors.front().local_endpoint().port();
  }
  return acceptors;
}

}  // namespace sluice::server
