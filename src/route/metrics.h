// Metrics of the router, for Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <vector>

#include "route/connection_pool.h"
#include "route/policy.h"
#include "route/replica.h"
#include "sluice/metrics.h"

namespace sluice::route {

// Counts what belongs to no single replica. Thread-safe.
class RouteMetrics {
 public:
  // From the last byte of a request to the first byte of it on the way to the replica that answered.
  void observe_latency(std::chrono::nanoseconds latency);
  void count_retry() { ++retries_; }
  void count_unavailable() { ++unavailable_; }
  void count_split() { ++split_; }
  void count_split_failure() { ++split_failed_; }

  std::vector<MetricFamily> families(const Replicas& replicas, const Policy& policy, const ConnectionPool& pool) const;

 private:
  static constexpr std::array kBounds = {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                         0.01,    0.025,  0.05,    0.1,    0.25,  0.5,    1.0};

  std::atomic<uint64_t> retries_{0}, unavailable_{0}, split_{0}, split_failed_{0};
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> latencies_{};
  std::atomic<uint64_t> latency_ns_{0};
};

}  // namespace sluice::route
