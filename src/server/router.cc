// Exact matching of paths.
#include "server/router.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace sluice::server {
namespace {

// The text that the '*' stands for; "" for an exact match.
std::optional<std::string_view> match_path(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  pattern.remove_suffix(1);
  if (!path.starts_with(pattern) || path.size() == pattern.size()) return std::nullopt;
  return path.substr(pattern.size());
}

}  // namespace

void Router::add(std::vector<Route> routes) {
  for (Route& route : routes) {
    const bool twice = std::any_of(routes_.begin(), routes_.end(),
                                   [&](auto& r) { return r.path == route.path && r.method == route.method; });
    CHECK(!twice, "route added twice: {} {}", route.method, route.path);
    routes_.push_back(std::move(route));
  }
}

Router::Match Router::match(std::string_view method, std::string_view path) const {
  Match match = match_exactly(method, path);
  const bool retry = match.allowed.empty() && path.size() > 1 && path.ends_with('/');
  return retry ? match_exactly(method, path.substr(0, path.size() - 1)) : match;
}

Router::Match Router::match_exactly(std::string_view method, std::string_view path) const {
  Match match;
  for (const Route& route : routes_) {
    const auto suffix = match_path(route.path, path);
    if (!suffix) continue;
    match.allowed.emplace_back(route.method);
    if (route.method == "GET") match.allowed.emplace_back("HEAD");
    const bool known = match.route != nullptr && match.route->path == path;  // an exact path goes before a '*'
    if (!known && (method == route.method || (method == "HEAD" && route.method == "GET"))) {
      match.route = &route;
      match.suffix = percent_decode(*suffix);
    }
  }
  return match;
}

}  // namespace sluice::server
