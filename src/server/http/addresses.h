// The value of a --host option.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::server {

// Its addresses or names: "127.0.0.1,::1" has two.
std::vector<std::string> listen_addresses(std::string_view host);

// "127.0.0.1:8000" or "[::1]:8000": the first of them, as URLs have it.
std::string url_authority(std::string_view host, int port);

}  // namespace sluice::server
