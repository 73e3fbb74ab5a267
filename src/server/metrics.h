// Metrics of HTTP requests, and the Prometheus text format of any metrics.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "sluice/metrics.h"

namespace sluice::server {

// The name that clients see: counters have the suffix _total.
std::string exposed_name(const MetricFamily& family);

// Prometheus text format 0.0.4, with exposed names; buckets of histograms are cumulative.
std::string prometheus_text(const std::vector<MetricFamily>& families);

// Counts requests by route. Thread-safe.
class HttpMetrics {
 public:
  // `handler` is the path in the table of routes, never the client's; "none" for an unknown path.
  void count(std::string_view handler, std::string_view method, int status, double seconds);
  std::vector<MetricFamily> families(int connections, int64_t body_bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, uint64_t> requests_;
  std::map<std::string, Histogram> seconds_;
};

}  // namespace sluice::server
