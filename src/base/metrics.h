// Joins the metrics of several engines.
#pragma once

#include <string>
#include <vector>

#include "sluice/metrics.h"

namespace sluice {

// Adds families to others. Each added sample gets the label, or the value for it. Families of one name become one.
void merge_metrics(std::vector<MetricFamily>& all, std::vector<MetricFamily> added, const std::string& label,
                   const std::string& value);

}  // namespace sluice
