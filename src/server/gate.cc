// Checks of a request's header, deny by default.
#include "server/gate.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/ascii.h"
#include "server/http/addresses.h"

namespace sluice::server {
namespace {

bool is_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool all_of(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_alnum(c) || others.find(c) != std::string_view::npos; });
}

bool is_json(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return equals_ignoring_case(type, "application/json");
}

// An address of 127.0.0.0/8 in its usual spelling, the only one that browsers send.
bool is_loopback_address(std::string_view host) {
  return host.starts_with("127.") && std::count(host.begin(), host.end(), '.') == 3 &&
         std::all_of(host.begin(), host.end(), [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::vector<std::string> read_hosts(const std::vector<std::string>& hosts) {
  std::vector<std::string> out;
  for (const std::string& text : hosts) {
    const auto host = text == "*" ? text : parse_host(text);
    if (!host) {
      throw Error(ErrorCode::kInvalidRequest,
                  fmt::format("--allowed-hosts: '{}' is not a host name (expected HOST or '*')", text), "allowed-hosts",
                  "");
    }
    out.push_back(*host);
  }
  return out;
}

std::vector<std::string> read_origins(const std::vector<std::string>& origins) {
  for (const std::string& text : origins) {
    const size_t scheme = text.find("://");
    const bool origin = scheme != std::string::npos && scheme > 0 && text.size() > scheme + 3 &&
                        text.find('/', scheme + 3) == std::string::npos;
    if (origin || text == "*" || text == "null" || text == "localhost") continue;
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format("--allowed-origins: '{}' is not an origin (expected SCHEME://HOST[:PORT], 'localhost' or '*')",
                    text),
        "allowed-origins", "");
  }
  return origins;
}

// "localhost" among the allowed origins: every port of this machine, by its local names.
bool is_local_origin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  std::string_view host = origin.substr(scheme + 3);
  const size_t port = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  host = host.substr(0, port);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

// The headers that pages may send: our own, and those of vendors' libraries among the `requested` ones.
std::string allowed_headers(std::string_view requested) {
  constexpr size_t kMaxNames = 64;
  std::vector<std::string> names = {"authorization", "content-type", "x-request-id", "x-request-timeout", "x-api-key"};
  while (!requested.empty() && names.size() < kMaxNames) {
    const size_t comma = std::min(requested.find(','), requested.size());
    std::string_view name = requested.substr(0, comma);
    requested.remove_prefix(std::min(comma + 1, requested.size()));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    const std::string lower = ascii_lower(name);
    const bool vendor =
        lower.starts_with("x-stainless-") || lower.starts_with("openai-") || lower.starts_with("anthropic-");
    if (vendor && all_of(lower, "-")) names.push_back(lower);
  }
  return join(names);
}

}  // namespace

std::optional<std::string> parse_host(std::string_view header) {
  std::string_view host = header;
  std::string_view port;
  if (header.starts_with('[')) {
    const size_t end = header.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = header.substr(0, end + 1);
    const std::string_view address = header.substr(1, end - 1);
    if (address.empty() || !all_of(address, ":.")) return std::nullopt;
    port = header.substr(end + 1);
  } else {
    const size_t colon = header.find(':');
    host = header.substr(0, colon);
    if (colon != std::string_view::npos) port = header.substr(colon);
    if (host.empty() || !all_of(host, ".-_")) return std::nullopt;
  }
  const bool port_ok =
      port.empty() || (port[0] == ':' && port.size() <= 6 &&
                       std::all_of(port.begin() + 1, port.end(), [](char c) { return c >= '0' && c <= '9'; }));
  if (!port_ok || (port.size() > 1 && std::stoi(std::string(port.substr(1))) > 65535)) return std::nullopt;
  return ascii_lower(host);
}

std::string random_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

std::string request_id(const HttpRequest* request) {
  if (request != nullptr) {
    const auto given = request->header("X-Request-Id");
    if (given && !given->empty() && given->size() <= 128 && all_of(*given, "._-")) return std::string(*given);
  }
  return random_id();
}

HostCheck::HostCheck(const std::string& bound, const std::vector<std::string>& allowed, bool loopback)
    : loopback_(loopback), allowed_(read_hosts(allowed)) {
  for (const std::string& address : listen_addresses(bound)) {
    const bool ipv6 = address.find(':') != std::string::npos;
    bound_.push_back(parse_host(ipv6 ? fmt::format("[{}]", address) : address).value_or(""));
  }
}

std::optional<HttpResponse> HostCheck::refuse(const HttpRequest& request) const {
  const auto header = request.header("Host");
  if (!header) return std::nullopt;  // HTTP/1.0; the parser refuses later versions without it
  const auto host = parse_host(*header);
  if (!host) {
    HttpResponse response = to_response({.message = "The Host header is malformed."});
    response.close = true;
    return response;
  }
  const bool local = *host == "localhost" || is_loopback_address(*host) || *host == "[::1]" || contains(bound_, *host);
  const bool any = contains(allowed_, "*") || (!loopback_ && allowed_.empty());
  if (local || any || contains(allowed_, *host)) return std::nullopt;
  return to_response(
      {.status = 403,
       .message = fmt::format("This server does not answer to the host '{}'. The option --allowed-hosts can allow it.",
                              quotable(*host))});
}

Gate::Gate(const ServerOptions& options, bool loopback, const Router& router)
    : router_(router),
      host_(options.host, options.allowed_hosts, loopback),
      allowed_origins_(read_origins(options.allowed_origins)),
      keys_(collect_api_keys(options)) {}

std::optional<HttpResponse> Gate::check(const HttpRequest& request, Admission& admission) const {
  if (auto refused = host_.refuse(request)) return refused;
  const bool preflight = request.method == "OPTIONS" && request.count("Access-Control-Request-Method") > 0;
  if (preflight && allowed_origin(request)) return HttpResponse{.status = 200};  // cors() adds the headers
  Router::Match match = router_.match(request.method, request.path);
  const bool has_dialect = match.route != nullptr && match.route->dialect != nullptr;
  const Dialect& dialect = has_dialect ? *match.route->dialect : dialect_of(request.path);
  const bool is_public = match.route != nullptr && (match.route->flags & Route::kPublic) != 0;
  // This comes before anything is said about the path: without a key, known and unknown paths look the same.
  if (!is_public) {
    if (auto refused = check_key(request, dialect, admission.context)) return refused;
  }
  if (match.allowed.empty()) {
    return to_response(
        {.status = 404,
         .message = fmt::format("Unknown request URL: {} {}.", quotable(request.method), quotable(request.path)),
         .code = "unknown_url"},
        dialect);
  }
  match.allowed.emplace_back("OPTIONS");
  if (request.method == "OPTIONS") return HttpResponse{.status = 204, .headers = {{"Allow", join(match.allowed)}}};
  if (match.route == nullptr) {
    HttpResponse response =
        to_response({.status = 405,
                     .message = fmt::format("Not allowed to {} on {} (try {}).", quotable(request.method),
                                            quotable(request.path), match.allowed.front()),
                     .code = "method_not_supported"},
                    dialect);
    response.headers.emplace_back("Allow", join(match.allowed));
    return response;
  }
  if (match.route->method == "POST" || match.route->method == "PUT") {
    const bool plain = request.count("Content-Encoding") == 0;
    // A page of another origin can send other types unasked, but not without naming its origin.
    const bool no_body = (match.route->flags & Route::kNoBody) != 0;
    const bool any_type = (dialect.any_content_type || no_body) && request.count("Origin") == 0;
    if (!plain || (!any_type && !is_json(request.header("Content-Type").value_or("")))) {
      return to_response({.status = 415,
                          .message = plain ? "The Content-Type of the request must be application/json."
                                           : "The body of the request must not have a Content-Encoding.",
                          .code = "unsupported_media_type"},
                         dialect);
    }
  }
  admission.route = match.route;
  admission.context.suffix = std::move(match.suffix);
  return std::nullopt;
}

std::optional<HttpResponse> Gate::check_key(const HttpRequest& request, const Dialect& dialect,
                                            RequestContext& context) const {
  if (!keys_.required()) return std::nullopt;
  const auto authorization = request.header("Authorization");
  const auto token = authorization ? bearer_token(*authorization) : std::nullopt;
  const auto key = request.header("X-Api-Key");
  if (!token && !key) {
    return to_response(
        {.status = 401,
         .message = "You didn't provide an API key. Send it in an Authorization header using Bearer auth "
                    "(Authorization: Bearer YOUR_KEY), or in the header X-Api-Key."},
        dialect);
  }
  auto tenant = token ? keys_.tenant(*token) : std::nullopt;
  if (!tenant && key) tenant = keys_.tenant(*key);
  if (!tenant) {
    return to_response({.status = 401, .message = "Incorrect API key provided.", .code = "invalid_api_key"}, dialect);
  }
  context.tenant = std::move(*tenant);
  return std::nullopt;
}

bool Gate::allowed_origin(const HttpRequest& request) const {
  const auto origin = request.header("Origin");
  return origin && (contains(allowed_origins_, "*") || contains(allowed_origins_, *origin) ||
                    (contains(allowed_origins_, "localhost") && is_local_origin(*origin)));
}

Headers Gate::cors(const HttpRequest& request) const {
  if (!allowed_origin(request)) return {};
  Headers headers;
  if (contains(allowed_origins_, "*")) {
    headers.emplace_back("Access-Control-Allow-Origin", "*");
  } else {
    headers = {{"Access-Control-Allow-Origin", std::string(*request.header("Origin"))}, {"Vary", "Origin"}};
  }
  if (request.method == "OPTIONS") {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE");
    headers.emplace_back("Access-Control-Allow-Headers",
                         allowed_headers(request.header("Access-Control-Request-Headers").value_or("")));
    headers.emplace_back("Access-Control-Max-Age", "600");
  } else {
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, X-Sluice-Warning, Retry-After");
  }
  return headers;
}

}  // namespace sluice::server
