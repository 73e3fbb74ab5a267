// What /metrics says of the KV cache's configuration.
#pragma once

#include "engine/load.h"
#include "scheduler/options.h"
#include "sluice/engine.h"
#include "sluice/metrics.h"

namespace sluice {

// vllm:cache_config_info, whose labels routers and dashboards read.
MetricFamily cache_config(const LoadPlan& plan, const SchedulerOptions& scheduler, const ModelInfo& model);

}  // namespace sluice
