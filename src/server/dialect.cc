// The frame of error responses, which is HTTP's and not a dialect's.
#include "server/dialect.h"

#include "base/check.h"

namespace sluice::server {

const Dialect& default_dialect() {
  static const Dialect* const dialect = Registry<Dialect>::find("openai");
  CHECK(dialect != nullptr, "no dialect is linked");
  return *dialect;
}

HttpResponse to_response(const ApiError& error) { return to_response(error, default_dialect()); }

HttpResponse to_response(const ApiError& error, const Dialect& dialect) {
  HttpResponse response{.status = error.status, .body = dialect.error_body(error)};
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace sluice::server
