#include "engine/cache_config.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

namespace sluice {

MetricFamily cache_config(const LoadPlan& plan, const SchedulerOptions& scheduler, const ModelInfo& model) {
  const double sequences = static_cast<double>(model.kv_cache_tokens) / model.max_model_len;
  std::vector<std::pair<std::string, std::string>> labels = {
      {"block_size", std::to_string(scheduler.block_size)},
      {"cache_dtype", std::string(plan.kv_dtype->name)},
      {"enable_prefix_caching", scheduler.prefix_caching ? "True" : "False"},
      {"kv_cache_max_concurrency", fmt::format("{:.2f}", sequences)},
      {"kv_cache_size_tokens", std::to_string(model.kv_cache_tokens)},
      {"num_cpu_blocks", std::to_string(plan.blocks)},
      {"num_gpu_blocks", std::to_string(plan.blocks)}};  // routers read this one, on whatever device
  return {"vllm:cache_config_info",
          "Configuration of the KV cache.",
          MetricFamily::Type::kGauge,
          {{std::move(labels), 1, {}}}};
}

}  // namespace sluice
