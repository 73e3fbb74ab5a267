#include "server/http/addresses.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::server {

std::vector<std::string> listen_addresses(std::string_view host) {
  std::vector<std::string> addresses;
  for (size_t begin = 0; begin <= host.size();) {
    const size_t end = std::min(host.find(',', begin), host.size());
    addresses.emplace_back(host.substr(begin, end - begin));
    begin = end + 1;
  }
  return addresses;
}

std::string url_authority(std::string_view host, int port) {
  const std::string first = listen_addresses(host).front();
  return first.find(':') == std::string::npos ? fmt::format("{}:{}", first, port) : fmt::format("[{}]:{}", first, port);
}

}  // namespace sluice::server
