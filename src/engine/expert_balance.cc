// The keys of --eplb-config are those of vLLM.
#include "engine/expert_balance.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kMostSteps = 1'000'000'000;
constexpr int kMostRedundant = 1 << 16;

[[noreturn]] void refuse_option(std::string_view option, const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("--{}: {}", option, message), std::string(option), "");
}

[[noreturn]] void refuse_config(const std::string& message) { refuse_option("eplb-config", message); }

int read_integer(const std::string& key, const Json& value, int least, int most) {
  if (!value.is_number_integer() || value < least || value > most) {
    refuse_config(fmt::format("{}: expected an integer from {} to {}, not {}", key, least, most, dump_json(value)));
  }
  return value.get<int>();
}

// For keys of which one value is what is done here.
void expect_only(const std::string& key, const Json& value, const Json& only, std::string_view why) {
  if (value == only) return;
  refuse_config(
      fmt::format("{}: {} is not supported, as {} (expected {})", key, dump_json(value), why, dump_json(only)));
}

BalanceOptions read_balance_options(const std::string& text) {
  BalanceOptions out;
  if (text.empty()) return out;
  Json values;
  try {
    values = parse_json(text);
  } catch (const Error& e) {
    refuse_config(e.what());
  }
  if (!values.is_object()) refuse_config("expected a JSON object");
  int log_every = 1;
  bool logs = false;
  for (const auto& [key, value] : values.items()) {
    if (key == "num_redundant_experts") {
      out.redundant = read_integer(key, value, 0, kMostRedundant);
    } else if (key == "window_size") {
      out.window = read_integer(key, value, 1, kMostSteps);
    } else if (key == "step_interval") {
      out.interval = read_integer(key, value, 0, kMostSteps);
    } else if (key == "log_balancedness") {
      if (!value.is_boolean()) refuse_config(fmt::format("{}: expected true or false, not {}", key, dump_json(value)));
      logs = value.get<bool>();
    } else if (key == "log_balancedness_interval") {
      log_every = read_integer(key, value, 1, kMostSteps);
    } else if (key == "use_async") {
      expect_only(key, value, false, "experts move between steps");
    } else if (key == "policy") {
      expect_only(key, value, "default", "there is one policy");
    } else if (key == "communicator") {
      expect_only(key, value, nullptr, "every rank reads experts from the checkpoint");
    } else {
      refuse_config(
          fmt::format("unknown key '{}' (expected one of: num_redundant_experts, window_size, step_interval, "
                      "log_balancedness, log_balancedness_interval, use_async, policy, communicator)",
                      key));
    }
  }
  if (logs) out.log_every = log_every;
  const bool given = values.contains("window_size");
  if (out.interval > 0 && out.window > out.interval) {
    if (given && values.contains("step_interval")) {
      refuse_config(
          fmt::format("window_size {} is above step_interval {} (expected at most that)", out.window, out.interval));
    }
    if (given)
      refuse_config(fmt::format("window_size {} is above the default step_interval {}", out.window, out.interval));
    out.window = out.interval;
  }
  return out;
}

template <class T>
std::vector<T> read_list(const std::string& file, const std::string& layer, const Json& list) {
  const auto fail = [&] {
    refuse_option("init-expert-location",
                  fmt::format("{}: layer {}: expected a list of integers that are not negative", file, layer));
  };
  if (!list.is_array()) fail();
  std::vector<T> out;
  for (const Json& value : list) {
    if (!value.is_number_integer() || value < 0 || value > (int64_t{1} << (sizeof(T) == 4 ? 30 : 40))) fail();
    out.push_back(value.get<T>());
  }
  return out;
}

ExpertLocations read_locations(const std::string& file) {
  ExpertLocations out;
  if (file.empty()) return out;
  Json json;
  try {
    json = read_json_file(file);
  } catch (const Error& e) {
    refuse_option("init-expert-location", e.what());
  }
  constexpr const char *kLoads = "logical_count", *kPlaces = "physical_to_logical_map";
  const bool one = json.is_object() && json.size() == 1;
  const std::string key = one ? json.begin().key() : "";
  if ((key != kLoads && key != kPlaces) || !json.begin()->is_object()) {
    refuse_option(
        "init-expert-location",
        fmt::format("{}: expected an object with the key {} or {}, an object of layers", file, kLoads, kPlaces));
  }
  for (const auto& [layer, list] : json.begin()->items()) {
    if (key == kLoads) {
      out.loads[layer] = read_list<int64_t>(file, layer, list);
    } else {
      out.placements[layer] = read_list<int32_t>(file, layer, list);
    }
  }
  return out;
}

// Options that say how experts are balanced, without --enable-eplb.
void refuse_alone(const EngineOptions& o) {
  const auto check = [](const char* name, const std::string& value) {
    if (!value.empty()) refuse_option(name, "needs --enable-eplb");
  };
  check("eplb-config", o.eplb_config);
  check("init-expert-location", o.init_expert_location);
  check("expert-distribution-record", o.expert_distribution_record);
}

}  // namespace

std::unique_ptr<ExpertBalancer> make_balancer(const EngineOptions& o) {
  if (!o.enable_eplb) {
    refuse_alone(o);
    return nullptr;
  }
  const auto cannot = [](const std::string& message) { refuse_option("enable-eplb", message); };
  if (!o.enable_expert_parallel || o.tensor_parallel_size < 2) {
    cannot("needs --enable-expert-parallel and a --tensor-parallel-size of 2 or more");
  }
  if ((o.enable_lora || !o.lora_modules.empty()) && o.lora_experts) {
    cannot("adapters change experts in order only (expected --no-lora-experts beside --enable-lora)");
  }
  BalanceOptions balance = read_balance_options(o.eplb_config);
  if (balance.interval > 0) {
    const auto never = [](const char* option, const char* why) {
      refuse_config(
          fmt::format("step_interval: {}, with which {} (expected 0: experts stay where they are)", option, why));
    };
    if (!o.packed_cache.empty()) never("--packed-cache", "packed weights cannot change");
    if (o.deterministic) never("--deterministic", "sums over the ranks must keep their order");
  }
  if (!o.expert_distribution_record.empty()) {
    const auto one = [](const char* option, const char* why) {
      refuse_option("expert-distribution-record", fmt::format("{} (expected --{} 1)", why, option));
    };
    if (o.pipeline_parallel_size > 1) one("pipeline-parallel-size", "rank 0 does not count the layers of other stages");
    if (o.data_parallel_size > 1) one("data-parallel-size", "the replicas would write the same file");
  }
  balance.location = o.init_expert_location;
  balance.record = o.expert_distribution_record;
  return std::make_unique<ExpertBalancer>(std::move(balance), read_locations(o.init_expert_location));
}

}  // namespace sluice
