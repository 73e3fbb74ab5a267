// What the engines count, as compact JSON: the events of /events.
#pragma once

#include <string>

#include "server/models.h"

namespace sluice::server {

// {"time": Unix time in seconds, "models": [{"name": ..., "metrics": {...}}]}: every loaded model, and those of a host
// that are not loaded. Gauges and counters have the names of /metrics. A metric with labels besides the model's is a
// list of {label: text, ..., "value": number}. Of the histograms, only those that the dashboard shows are there:
// {"bounds", "counts", "sum"} with the counts of each bucket alone.
std::string snapshot(const Models& models);

}  // namespace sluice::server
