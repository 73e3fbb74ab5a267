// A blocking HTTP/1.1 client for downloads: TLS with verified certificates, redirects, bodies delivered in pieces.
#pragma once

#include <chrono>
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

  // Throws Error(kInvalidRequest) when the text is not an http or https URL.
  static Url parse(std::string_view text);
  // Resolves `location`, absolute or relative to this URL.
  Url resolve(std::string_view location) const;
  bool same_origin(const Url& other) const { return tls == other.tls && host == other.host && port == other.port; }
  std::string str() const;
};

// The connection failed, closed early or timed out. The same request may succeed later.
struct NetworkError : Error {
  explicit NetworkError(const std::string& message, std::chrono::seconds pause = {})
      : Error(ErrorCode::kInternal, message), pause(pause) {}
  std::chrono::seconds pause;  // at least so long before the next attempt, as the server requests
};

// Called several times a second during a wait, on the waiting thread. What it throws ends the wait. May be null.
using Check = std::function<void()>;

struct HttpRequest {
  std::string method = "GET";
  Url url;
  std::map<std::string, std::string> headers{};
  std::string token{};  // sent as a bearer token to the origin of `url`, and to no other origin a redirect leads to
  // Whether to follow redirects to other origins. If false, such a redirect is returned as the response.
  bool leave_origin = true;
  Check check{};
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers{};            // names in lower case
  std::string_view header(const std::string& name) const;  // value of a header, "" when absent
};

// Performs a request. `on_head` receives the head of the final response, then `on_body` receives its body piece by
// piece; the bodies of redirects are skipped. Follows at most five redirects, and none from https to http. Verifies
// certificates against $SSL_CERT_FILE, $SSL_CERT_DIR or the system's store. Throws NetworkError, Error(kInternal) for
// an invalid certificate, and whatever the callbacks throw.
HttpResponse perform(const HttpRequest& request, const std::function<void(const HttpResponse&)>& on_head,
                     const std::function<void(std::string_view)>& on_body);

}  // namespace sluice::hub
