// Reads addresses of replicas.
#include "route/replica.h"

#include <fmt/core.h>

#include <algorithm>

#include "hub/http_client.h"
#include "sluice/error.h"

namespace sluice::route {
namespace {

Error bad_replica(const std::string& message) {
  return Error(ErrorCode::kInvalidRequest, "--replica: " + message, "replica", "");
}

hub::Url parse_replica(const std::string& text) {
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

Replica::Replica(const std::string& text)
    : url("http://" + authority_of(parse_replica(text))),
      host(parse_replica(text).host),
      port(parse_replica(text).port),
      authority(authority_of(parse_replica(text))) {}

Replicas make_replicas(const std::vector<std::string>& urls) {
  if (urls.empty()) throw bad_replica("at least one is needed (expected http://HOST:PORT)");
  if (urls.size() > kMaxReplicas) {
    throw bad_replica(fmt::format("{} replicas are too many (expected at most {})", urls.size(), kMaxReplicas));
  }
  Replicas replicas;
  for (const std::string& url : urls) {
    auto replica = std::make_shared<Replica>(url);
    const bool known = std::ranges::any_of(replicas, [&](const auto& other) { return other->url == replica->url; });
    if (known) throw bad_replica(fmt::format("'{}' is given twice", url));
    replicas.push_back(std::move(replica));
  }
  return replicas;
}

ReplicaMask healthy_of(const Replicas& replicas) {
  ReplicaMask mask = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i]->healthy) mask |= ReplicaMask{1} << i;
  }
  return mask;
}

}  // namespace sluice::route
