// Metrics of the HTTP side, and the Prometheus text exposition of any metrics.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "sluice/metrics.h"

namespace sluice::server {

// Text format 0.0.4: counters get their _total suffix, histograms their cumulative buckets.
std::string prometheus_text(const std::vector<MetricFamily>& families);

// Counts requests by route. Thread-safe.
class HttpMetrics {
 public:
  // `handler` is the route's path from the table (never the client's), "none" for unknown ones.
  void count(std::string_view handler, std::string_view method, int status, double seconds);
  std::vector<MetricFamily> families(int connections) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, uint64_t> requests_;
  std::map<std::string, Histogram> seconds_;
};

}  // namespace sluice::server
