// The sockets that a server listens on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string_view>
#include <vector>

namespace sluice::server {

// Binds a socket to each address of `host` (http/addresses.h) and listens. With port 0, all get the port that the first
// one was given. Sockets of `listeners` listen already: if there are any, they are taken over, and host and port are
// not used. Throws Error that names the address.
std::vector<boost::asio::ip::tcp::acceptor> listen_on(boost::asio::io_context& io, std::string_view host, int port,
                                                      const std::vector<int>& listeners);

}  // namespace sluice::server
