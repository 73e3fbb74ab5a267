// Metrics as values: what the engine counts, ready for a Prometheus text exposition (server/metrics.cc) or a test.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

struct Histogram {
  std::vector<double> bounds{};    // upper bounds, ascending, without +Inf
  std::vector<uint64_t> counts{};  // bounds.size() + 1 buckets, not cumulative
  double sum = 0;
};

// One sample: labels and either a number or a histogram.
struct MetricSample {
  std::vector<std::pair<std::string, std::string>> labels = {};
  double value = 0;
  Histogram histogram = {};
};

struct MetricFamily {
  enum class Type { kCounter, kGauge, kHistogram };
  std::string name{};  // vLLM's names, "vllm:num_requests_running"; counters without the _total suffix
  std::string help{};
  Type type = Type::kGauge;
  std::vector<MetricSample> samples = {};
};

}  // namespace sluice
