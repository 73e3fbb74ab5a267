// Reads addresses of replicas.
#include "route/replica.h"

#include <fmt/core.h>

#include <algorithm>

#include "hub/http_client.h"
#include "sluice/error.h"

namespace sluice::route {
namespace {

const char* option_of(Role role) {
  return role == Role::kPrefill ? "prefill" : role == Role::kDecode ? "decode" : "replica";
}

Error bad_replica(Role role, const std::string& message) {
  return Error(ErrorCode::kInvalidRequest, fmt::format("--{}: {}", option_of(role), message), option_of(role), "");
}

hub::Url parse_replica(const std::string& text, Role role) {
  const auto bad_replica = [role](const std::string& message) { return route::bad_replica(role, message); };
  hub::Url url;
  try {
    url = hub::Url::parse(text);
  } catch (const Error&) {
    throw bad_replica(fmt::format("'{}' is not the address of a replica (expected http://HOST:PORT)", text));
  }
  if (url.tls)
    throw bad_replica(fmt::format("'{}': TLS to replicas is not supported (expected http://HOST:PORT)", text));
  if (const int port = std::stoi(url.port); port < 1 || port > 65535) {
    throw bad_replica(fmt::format("'{}': the port is out of range (expected 1 to 65535)", text));
  }
  if (url.target != "/") throw bad_replica(fmt::format("'{}' has a path (expected http://HOST:PORT)", text));
  return url;
}

std::string authority_of(const hub::Url& url) {
  return url.host.find(':') == std::string::npos ? fmt::format("{}:{}", url.host, url.port)
                                                 : fmt::format("[{}]:{}", url.host, url.port);
}

}  // namespace

Replica::Replica(const std::string& text, Role own_role)
    : role(own_role),
      url("http://" + authority_of(parse_replica(text, role))),
      host(parse_replica(text, role).host),
      port(parse_replica(text, role).port),
      authority(authority_of(parse_replica(text, role))) {}

namespace {

void add_replicas(Replicas& replicas, const std::vector<std::string>& urls, Role role) {
  if (urls.empty()) throw bad_replica(role, "at least one is needed (expected http://HOST:PORT)");
  const size_t count = replicas.size() + urls.size();
  if (count > kMaxReplicas) {
    throw bad_replica(role, fmt::format("{} replicas are too many (expected at most {})", count, kMaxReplicas));
  }
  for (const std::string& url : urls) {
    auto replica = std::make_shared<Replica>(url, role);
    const bool known = std::ranges::any_of(replicas, [&](const auto& other) { return other->url == replica->url; });
    if (known) throw bad_replica(role, fmt::format("'{}' is given twice", url));
    replicas.push_back(std::move(replica));
  }
}

}  // namespace

Replicas make_replicas(const std::vector<std::string>& urls) {
  Replicas replicas;
  add_replicas(replicas, urls, Role::kWhole);
  return replicas;
}

Replicas replicas_of(const RouteOptions& options) {
  if (options.prefill.empty() && options.decode.empty()) return make_replicas(options.replica);
  if (!options.replica.empty()) throw bad_replica(Role::kWhole, "cannot be used with --prefill and --decode");
  Replicas replicas;
  add_replicas(replicas, options.prefill, Role::kPrefill);
  add_replicas(replicas, options.decode, Role::kDecode);
  return replicas;
}

ReplicaMask answering(const Replicas& replicas, ReplicaMask healthy) {
  const ReplicaMask others = healthy & ~prefilling(replicas, healthy);
  return others != 0 ? others : healthy;
}

ReplicaMask prefilling(const Replicas& replicas, ReplicaMask healthy) {
  ReplicaMask mask = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i]->role == Role::kPrefill) mask |= ReplicaMask{1} << i;
  }
  return mask & healthy;
}

ReplicaMask healthy_of(const Replicas& replicas) {
  ReplicaMask mask = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i]->healthy) mask |= ReplicaMask{1} << i;
  }
  return mask;
}

}  // namespace sluice::route
