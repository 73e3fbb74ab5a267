// Counters as families of metrics.
#include "route/metrics.h"

#include <algorithm>
#include <utility>

namespace sluice::route {
namespace {

using Type = MetricFamily::Type;

template <class Value>
MetricFamily per_replica(const char* name, const char* help, Type type, const Replicas& replicas, Value&& value) {
  MetricFamily family{.name = name, .help = help, .type = type, .samples = {}};
  for (const auto& replica : replicas) {
    family.samples.push_back({.labels = {{"replica", replica->url}}, .value = static_cast<double>(value(*replica))});
  }
  return family;
}

MetricFamily single(const char* name, const char* help, Type type, double value) {
  return {.name = name, .help = help, .type = type, .samples = {{.value = value}}};
}

}  // namespace

void RouteMetrics::observe_latency(std::chrono::nanoseconds latency) {
  const double seconds = std::chrono::duration<double>(latency).count();
  ++latencies_[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  latency_ns_ += static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0));
}

std::vector<MetricFamily> RouteMetrics::families(const Replicas& replicas, const Policy& policy,
                                                 const ConnectionPool& pool) const {
  const auto counter = [&](const char* name, const char* help, std::atomic<uint64_t> Replica::*member) {
    return per_replica(name, help, Type::kCounter, replicas, [member](const Replica& r) { return (r.*member).load(); });
  };
  MetricFamily latency{.name = "sluice:route_latency_seconds",
                       .help = "Time from the last byte of a request to its first byte on the way to the replica.",
                       .type = Type::kHistogram,
                       .samples = {}};
  Histogram histogram{.bounds = {kBounds.begin(), kBounds.end()},
                      .counts = {latencies_.begin(), latencies_.end()},
                      .sum = static_cast<double>(latency_ns_) / 1e9};
  latency.samples.push_back({.histogram = std::move(histogram)});
  return {
      per_replica("sluice:route_replica_healthy", "1 while the replica gets requests.", Type::kGauge, replicas,
                  [](const Replica& r) { return r.healthy ? 1 : 0; }),
      per_replica("sluice:route_requests_in_flight", "Requests that the replica has to answer.", Type::kGauge, replicas,
                  [](const Replica& r) { return r.in_flight.load(); }),
      per_replica("sluice:route_replica_load", "Requests in flight, weighted by the size of their bodies.",
                  Type::kGauge, replicas, [](const Replica& r) { return r.load.load(); }),
      counter("sluice:route_requests", "Requests sent to the replica, retries included.", &Replica::requests),
      counter("sluice:route_prefix_hits", "Requests that the replica got for a prefix of their prompt.",
              &Replica::prefix_hits),
      counter("sluice:route_prefix_blocks", "Blocks of 256 bytes of these prefixes.", &Replica::prefix_blocks),
      counter("sluice:route_replica_refused", "Requests that the replica refused: no connection, closed, or 503.",
              &Replica::refused),
      counter("sluice:route_replica_broken", "Answers of the replica that ended before their end.", &Replica::broken),
      counter("sluice:route_replica_left", "How often the replica left the rotation.", &Replica::left),
      single("sluice:route_retries", "Requests that were sent to another replica.", Type::kCounter,
             static_cast<double>(retries_)),
      single("sluice:route_unavailable", "Requests that no replica took.", Type::kCounter,
             static_cast<double>(unavailable_)),
      single("sluice:route_prefill", "Requests whose prompt was sent to a server that computes prompts.",
             Type::kCounter, static_cast<double>(split_)),
      single("sluice:route_prefill_failed", "Requests whose prompt that server did not compute.", Type::kCounter,
             static_cast<double>(split_failed_)),
      single("sluice:route_idle_connections", "Open connections to replicas without a request.", Type::kGauge,
             static_cast<double>(pool.idle())),
      single("sluice:route_prefix_table_bytes", "Memory of the table of prefixes.", Type::kGauge,
             static_cast<double>(policy.table().bytes())),
      std::move(latency),
  };
}

}  // namespace sluice::route
