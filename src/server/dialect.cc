// The frame of error responses, which is HTTP's and not a dialect's.
#include "server/dialect.h"

#include "base/check.h"

namespace sluice::server {

const Dialect& default_dialect() {
  static const Dialect* const dialect = Registry<Dialect>::find("openai");
  CHECK(dialect != nullptr, "no dialect is linked");
  return *dialect;
}

const Dialect& dialect_of(std::string_view path) {
  for (const Dialect* dialect : Registry<Dialect>::all()) {
    for (const std::string_view prefix : dialect->prefixes) {
      if (path.starts_with(prefix)) return *dialect;
    }
  }
  return default_dialect();
}

std::string_view plain_model_name(const Dialect& dialect, std::string_view name) {
  if (name.ends_with(dialect.model_suffix)) name.remove_suffix(dialect.model_suffix.size());
  for (const std::string_view prefix : dialect.model_prefixes) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    break;
  }
  return name;
}

std::optional<ServedModel> find_model(const Models& models, const Dialect& dialect, std::string_view name) {
  std::optional<ServedModel> model = models.find(name);
  const std::string_view plain = plain_model_name(dialect, name);
  return model || plain == name ? model : models.find(plain);
}

HttpResponse to_response(const ApiError& error) { return to_response(error, default_dialect()); }

HttpResponse to_response(const ApiError& error, const Dialect& dialect) {
  const int status = dialect.status != nullptr ? dialect.status(error) : error.status;
  HttpResponse response{.status = status, .body = dialect.error_body(error)};
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace sluice::server
