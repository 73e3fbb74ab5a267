// A blocking HTTP/1.1 client for downloads: TLS with verified certificates, redirects, bodies in pieces.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "sluice/error.h"

namespace sluice::hub {

struct Url {
  bool tls = true;
  std::string host, port;
  std::string target;  // path and query, begins with '/'

  // Throws Error(kInvalidRequest) for what is no http or https URL.
  static Url parse(std::string_view text);
  // Where `location`, absolute or relative to this URL, leads.
  Url resolve(std::string_view location) const;
  bool same_origin(const Url& other) const { return tls == other.tls && host == other.host && port == other.port; }
  std::string str() const;
};

// The connection failed, was cut or timed out: the same request may succeed later.
struct NetworkError : Error {
  explicit NetworkError(const std::string& message) : Error(ErrorCode::kInternal, message) {}
};

struct HttpRequest {
  std::string method = "GET";
  Url url;
  std::map<std::string, std::string> headers{};
  std::string token{};  // sent as bearer token to the origin of `url` and to no other one a redirect leads to
  // Redirects to other origins are followed; else their answer is the result.
  bool leave_origin = true;
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers{};            // names in small letters
  std::string_view header(const std::string& name) const;  // "" when absent
};

// Performs a request. `on_body` gets the final answer's body piece by piece, after `on_head` got its head; redirects'
// bodies are not seen. At most five redirects, never from https to http. Certificates are verified against
// $SSL_CERT_FILE, $SSL_CERT_DIR or the system's. Throws NetworkError; Error(kInternal) for a certificate that does not
// hold; what the callbacks throw.
HttpResponse perform(const HttpRequest& request, const std::function<void(const HttpResponse&)>& on_head,
                     const std::function<void(std::string_view)>& on_body);

}  // namespace sluice::hub
