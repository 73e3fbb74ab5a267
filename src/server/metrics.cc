// Prometheus text and request counters.
#include "server/metrics.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::server {
namespace {

const std::vector<double> kSecondsBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};

std::string escape(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (quotes && c == '"')) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string label_text(const Labels& labels, std::string_view le = {}) {
  std::string out;
  const auto add = [&](std::string_view key, std::string_view value) {
    out += fmt::format("{}{}=\"{}\"", out.empty() ? "{" : ",", key, escape(value, true));
  };
  for (const auto& [key, value] : labels) add(key, value);
  if (!le.empty()) add("le", le);
  return out.empty() ? out : out + "}";
}

void append_histogram(std::string& out, const std::string& name, const MetricSample& sample) {
  uint64_t total = 0;
  for (size_t i = 0; i < sample.histogram.counts.size(); ++i) {
    total += sample.histogram.counts[i];
    const bool last = i >= sample.histogram.bounds.size();
    const std::string le = last ? "+Inf" : fmt::format("{}", sample.histogram.bounds[i]);
    out += fmt::format("{}_bucket{} {}\n", name, label_text(sample.labels, le), total);
  }
  out += fmt::format("{}_sum{} {}\n", name, label_text(sample.labels), sample.histogram.sum);
  out += fmt::format("{}_count{} {}\n", name, label_text(sample.labels), total);
}

}  // namespace

std::string exposed_name(const MetricFamily& family) {
  return family.type == MetricFamily::Type::kCounter ? family.name + "_total" : family.name;
}

std::string prometheus_text(const std::vector<MetricFamily>& families) {
  constexpr std::string_view kTypes[] = {"counter", "gauge", "histogram"};
  std::string out;
  for (const MetricFamily& family : families) {
    const std::string name = exposed_name(family);
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escape(family.help, false), name,
                       kTypes[static_cast<int>(family.type)]);
    for (const MetricSample& sample : family.samples) {
      if (family.type == MetricFamily::Type::kHistogram) {
        append_histogram(out, name, sample);
      } else {
        out += fmt::format("{}{} {}\n", name, label_text(sample.labels), sample.value);
      }
    }
  }
  return out;
}

void HttpMetrics::count(std::string_view handler, std::string_view method, int status, double seconds) {
  // The client chooses the method, so only known methods become labels.
  constexpr std::string_view kMethods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
  const bool known = std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
  std::lock_guard lock(mutex_);
  ++requests_[{std::string(handler), std::string(known ? method : "other"), status}];
  Histogram& histogram = seconds_[std::string(handler)];
  if (histogram.counts.empty()) {
    histogram.bounds = kSecondsBounds;
    histogram.counts.resize(kSecondsBounds.size() + 1);
  }
  const auto bucket = std::lower_bound(kSecondsBounds.begin(), kSecondsBounds.end(), seconds) - kSecondsBounds.begin();
  ++histogram.counts[static_cast<size_t>(bucket)];
  histogram.sum += seconds;
}

std::vector<MetricFamily> HttpMetrics::families(int connections, int64_t body_bytes) const {
  MetricFamily requests{.name = "http_requests",
                        .help = "Requests by route, method and status (499: the client left before the answer).",
                        .type = MetricFamily::Type::kCounter};
  MetricFamily durations{.name = "http_request_duration_seconds",
                         .help = "Time from the request's header to the last byte of its answer.",
                         .type = MetricFamily::Type::kHistogram};
  MetricFamily open{.name = "http_connections", .help = "Open connections.", .type = MetricFamily::Type::kGauge};
  open.samples.push_back({.value = static_cast<double>(connections)});
  MetricFamily bodies{
      .name = "http_request_body_bytes", .help = "Request bodies in memory.", .type = MetricFamily::Type::kGauge};
  bodies.samples.push_back({.value = static_cast<double>(body_bytes)});
  std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_) {
    const auto& [handler, method, status] = key;
    requests.samples.push_back(
        {.labels = {{"handler", handler}, {"method", method}, {"status", std::to_string(status)}},
         .value = static_cast<double>(count)});
  }
  for (const auto& [handler, histogram] : seconds_) {
    durations.samples.push_back({.labels = {{"handler", handler}}, .histogram = histogram});
  }
  return {requests, durations, open, bodies};
}

}  // namespace sluice::server
