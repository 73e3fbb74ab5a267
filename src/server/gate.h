// The checks of every request before its body is read: Host, route, method, CORS, API key, content type.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/auth.h"
#include "server/errors.h"
#include "server/http/http.h"
#include "server/router.h"
#include "sluice/options.h"

namespace sluice::server {

// The host of a "host" or "host:port" (RFC 9110, section 7.2), in lower case. nullopt when it is malformed or the port
// is above 65535.
std::optional<std::string> parse_host(std::string_view header);

// 32 random hexadecimal digits.
std::string random_id();

// The client's X-Request-Id if it is [A-Za-z0-9._-]{1,128}, else a new random one.
std::string request_id(const HttpRequest* request);

// The check of the Host header. A server on a loopback address answers only to local names, to the names that it is
// bound to and to `allowed` ones, which stops DNS rebinding.
class HostCheck {
 public:
  // bound: the addresses that the server was told to listen on (listen_addresses). "*" in `allowed`: any name. Throws
  // Error when a name is malformed.
  HostCheck(const std::string& bound, const std::vector<std::string>& allowed, bool loopback);
  // The response that refuses the request; nullopt if its Host is right.
  std::optional<HttpResponse> refuse(const HttpRequest& request) const;

 private:
  const bool loopback_;
  std::vector<std::string> bound_;
  const std::vector<std::string> allowed_;
};

class Gate {
 public:
  // loopback: the server listens on a loopback address. Throws Error when hosts, origins or keys are malformed.
  Gate(const ServerOptions& options, bool loopback, const Router& router);

  struct Admission {
    const Route* route = nullptr;
    RequestContext context;
  };
  // The route, or the response that refuses the request (or answers an OPTIONS request).
  std::optional<HttpResponse> check(const HttpRequest& request, Admission& admission) const;

  // CORS headers for an answer; none unless the Origin is an allowed one.
  Headers cors(const HttpRequest& request) const;

  bool requires_key() const { return keys_.required(); }

 private:
  std::optional<HttpResponse> check_key(const HttpRequest& request, const Dialect& dialect,
                                        RequestContext& context) const;
  bool allowed_origin(const HttpRequest& request) const;

  const Router& router_;
  const HostCheck host_;
  const std::vector<std::string> allowed_origins_;  // "*": any
  const ApiKeys keys_;
};

}  // namespace sluice::server
