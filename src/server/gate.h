// What every request passes before its body is read: Host, route, method, CORS, API key, content type.
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

// "host" or "host:port" of RFC 9110, without the port and in lower case; nullopt when malformed.
std::optional<std::string> parse_host(std::string_view header);

// The client's X-Request-Id if it is [A-Za-z0-9._-]{1,128}, else a new random one.
std::string request_id(const HttpRequest* request);

class Gate {
 public:
  // loopback: the server listens on a loopback address, so that only local names may be in Host (DNS rebinding).
  Gate(const ServerOptions& options, bool loopback, const Router& router);

  struct Admission {
    const Route* route = nullptr;
    RequestContext context;
  };
  // The route, or the response that refuses the request (or answers an OPTIONS request).
  std::optional<HttpResponse> check(const HttpRequest& request, Admission& admission) const;

  // CORS headers for an answer; none unless the Origin is an allowed one.
  Headers cors(const HttpRequest& request) const;

 private:
  std::optional<HttpResponse> check_host(const HttpRequest& request) const;
  std::optional<HttpResponse> check_key(const HttpRequest& request, const Dialect& dialect,
                                        RequestContext& context) const;
  bool allowed_origin(const HttpRequest& request) const;

  const Router& router_;
  const bool loopback_;
  const std::string bind_host_;
  const std::vector<std::string> allowed_origins_;
  const ApiKeys keys_;
};

}  // namespace sluice::server
