#include "base/metrics.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice {
namespace {

void set_label(MetricSample& sample, const std::string& label, const std::string& value) {
  const auto found = std::ranges::find(sample.labels, label, &std::pair<std::string, std::string>::first);
  if (found != sample.labels.end()) {
    found->second = value;
  } else {
    sample.labels.emplace_back(label, value);
  }
}

}  // namespace

void merge_metrics(std::vector<MetricFamily>& all, std::vector<MetricFamily> added, const std::string& label,
                   const std::string& value) {
  for (MetricFamily& family : added) {
    for (MetricSample& sample : family.samples) set_label(sample, label, value);
    const auto same = std::ranges::find(all, family.name, &MetricFamily::name);
    if (same == all.end()) {
      all.push_back(std::move(family));
    } else {
      std::ranges::move(family.samples, std::back_inserter(same->samples));
    }
  }
}

}  // namespace sluice
