// Compares mixtures of experts with Hugging Face transformers when two ranks have whole experts in another order: a
// random permutation, redundant experts, and experts that move between steps. Ranks are threads on the host, and
// processes on a GPU if there is one.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "base/json.h"
#include "engine/load.h"
#include "engine/metrics.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"
#include "nn/moe/balancer.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::expert_balance_test {
namespace {

EngineOptions options_for(const std::string& model, std::string_view backend = ops::select_host_backend().name) {
  EngineOptions options;
  options.model = model;
  options.backend = backend;
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.tensor_parallel_size = 2;
  options.enable_expert_parallel = options.enable_eplb = true;
  options.eplb_config = R"({"step_interval": 0})";
  return options;
}

template <class Group>
std::span<const std::shared_ptr<PlacedExperts>> layers_of(Group& group) {
  return group.model().balancer->layers();
}

std::string name_of(const PlacedExperts& layer) { return layer.prefix.substr(0, layer.prefix.size() - 1); }

std::string write(const testing::TempFolder& folder, const Json& json) {
  const std::string path = folder.path().string() + "/location.json";
  std::ofstream(path) << json.dump();
  return path;
}

template <class Group>
std::vector<float> all_logits(Group& group, const EngineOptions& options, std::span<const int32_t> ids, int chunk) {
  std::vector<float> all;
  for_each_logits(group.runner(), group.plan(), options.block_size, ids, chunk,
                  [&](int, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
  return all;
}

template <class Group>
void expect_golden(Group& group, const EngineOptions& options, const ArchGolden& golden, int chunk) {
  for (const char* index : {"0", "1"}) {
    const Tensor want = golden.logits(std::string("logits_") + index);
    const std::vector<float> got = all_logits(group, options, golden.ids(std::string("ids_") + index), chunk);
    ASSERT_EQ(static_cast<int64_t>(got.size()), want.shape.elements());
    for (int64_t row = 0; row < want.rows(); ++row) {
      const int64_t width = want.shape[1];
      EXPECT_LE(relative_error(got.data() + row * width, want.f32() + row * want.row_stride, width), kTolerance)
          << "sample " << index << ", row " << row << " in chunks of " << chunk;
    }
  }
}

// A random placement of a layer's experts with so many redundant ones.
std::vector<int32_t> shuffled(int experts, int redundant, std::mt19937& random) {
  ExpertPlacement out{.ranks = 2, .experts = std::vector<int32_t>(static_cast<size_t>(experts))};
  std::iota(out.experts.begin(), out.experts.end(), 0);
  for (int i = 0; i < redundant; ++i) out.experts.push_back(i);
  do {
    std::ranges::shuffle(out.experts, random);
  } while (!placement_problem(out, experts).empty());
  return out.experts;
}

constexpr const char* kNoExperts = "--enable-eplb: the ranks divide no layer of this model by expert";

EngineOptions with_redundant(EngineOptions options, int redundant) {
  options.eplb_config = fmt::format(R"({{"step_interval": 0, "num_redundant_experts": {}}})", redundant);
  return options;
}

// The fewest redundant experts with which two ranks have equally many; nullopt if they divide no layer.
std::optional<int> fewest_redundant(const EngineOptions& options) {
  ThreadPool pool(1, /*pin=*/false);
  for (const int redundant : {0, 1}) {
    try {
      plan_load(with_redundant(options, redundant), pool);
      return redundant;
    } catch (const Error& e) {
      if (e.what() == std::string(kNoExperts)) return std::nullopt;
      EXPECT_TRUE(redundant == 0 && std::string(e.what()).find("cannot be divided evenly") != std::string::npos)
          << e.what();
    }
  }
  return std::nullopt;
}

class BalancedExperts : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(BalancedExperts, LogitsInAnyPlace) {
  const auto& [name, backend] = GetParam();
  const ArchGolden golden(name);
  const EngineOptions options = options_for(golden.checkpoint(), backend);
  const std::optional<int> fewest = fewest_redundant(options);
  if (!fewest) return;  // the family's own code, which every rank computes whole
  const testing::TempFolder folder;
  std::mt19937 random(1);
  Json layers = Json::object();
  for (const int redundant : {*fewest, *fewest + 2}) {
    EngineOptions placed = with_redundant(options, redundant);
    {
      EngineOptions on_host = placed;
      on_host.backend = ops::select_host_backend().name;
      RankThreads in_order(on_host);
      for (const auto& layer : layers_of(in_order)) {
        layers[name_of(*layer)] = shuffled(layer->spec.experts, redundant, random);
      }
    }
    placed.init_expert_location = write(folder, {{"physical_to_logical_map", layers}});
    RankGroup group(placed);
    for (const auto& layer : layers_of(group)) {
      EXPECT_EQ(layer->placement.experts, layers[name_of(*layer)].get<std::vector<int32_t>>());
    }
    expect_golden(group, placed, golden, 64);
    if (!group.plan().backend->can.batch_invariant) continue;
    // Which rank computes an expert of a row does not depend on the other rows.
    EXPECT_EQ(all_logits(group, placed, golden.ids("ids_0"), 64), all_logits(group, placed, golden.ids("ids_0"), 5));
  }
}

TEST_P(BalancedExperts, LogitsWhileExpertsMove) {
  const auto& [name, backend] = GetParam();
  const ArchGolden golden(name);
  EngineOptions options = options_for(golden.checkpoint(), backend);
  const std::optional<int> fewest = fewest_redundant(options);
  if (!fewest) return;
  options.eplb_config =
      fmt::format(R"({{"step_interval": 4, "window_size": 3, "num_redundant_experts": {}}})", *fewest + 2);
  RankGroup group(options);
  for (const int chunk : {1, 2, 1}) expect_golden(group, options, golden, chunk);
  EXPECT_GT(group.model().balancer->moved(), 0U);
  EXPECT_GE(group.model().balancer->balance(), 0.5);  // the worst of two ranks
  EXPECT_LE(group.model().balancer->balance(), 1);
}

std::vector<std::tuple<std::string, std::string>> mixtures() {
  std::vector<std::tuple<std::string, std::string>> all;
  for (const std::string& backend : rank_backends()) {
    for (const std::string& name : golden_names(arch_goldens())) {
      if (has_experts(name)) all.emplace_back(name, backend);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, BalancedExperts, ::testing::ValuesIn(mixtures()),
                         [](const auto& info) { return test_name(std::get<0>(info.param), std::get<1>(info.param)); });

constexpr const char* kModel = "qwen3_moe";

// Recorded loads place the experts of the next start.
TEST(ExpertLocation, IsReadFromARecord) {
  const ArchGolden golden(kModel);
  const testing::TempFolder folder;
  EngineOptions options = with_redundant(options_for(golden.checkpoint()), 2);
  options.expert_distribution_record = folder.path().string() + "/record.json";
  std::map<std::string, std::vector<int64_t>> loads;
  {
    RankThreads group(options);
    for (const int chunk : {64, 3}) all_logits(group, options, golden.ids("ids_0"), chunk);
    const ExpertCounts counts = group.model().balancer->counts();
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto& layer = layers_of(group)[i];
      loads[name_of(*layer)] = counts[i];
      EXPECT_EQ(std::reduce(loads[name_of(*layer)].begin(), loads[name_of(*layer)].end()),
                static_cast<int64_t>(2 * golden.ids("ids_0").size()) * layer->spec.top_k);
    }
  }
  ASSERT_FALSE(loads.empty());
  const Json record = read_json_file(options.expert_distribution_record);
  for (const auto& [name, load] : loads) {
    EXPECT_EQ(record.at("logical_count").at(name).get<std::vector<int64_t>>(), load) << name;
  }
  options.init_expert_location = options.expert_distribution_record;
  options.expert_distribution_record.clear();
  RankThreads group(options);
  for (const auto& layer : layers_of(group)) {
    EXPECT_EQ(layer->placement, balanced_placement(loads[name_of(*layer)], layer->physical(), 2));
  }
  expect_golden(group, options, golden, 64);
}

// A file of packed weights is for one placement.
TEST(ExpertLocation, HasItsOwnPackedFile) {
  const ArchGolden golden(kModel);
  const testing::TempFolder folder, packed;
  EngineOptions options = options_for(golden.checkpoint());
  options.packed_cache = packed.path();
  std::mt19937 random(3);
  for (int i = 0; i < 3; ++i) {
    {
      RankThreads group(options);  // in order; mapped from the second time on
      EXPECT_TRUE(group.model().packed->filled());
      expect_golden(group, options, golden, 64);
    }
    EngineOptions placed = options;
    Json layers = Json::object();
    {
      RankThreads group(options);
      for (const auto& layer : layers_of(group)) {
        layers[name_of(*layer)] = shuffled(layer->spec.experts, 0, random);
      }
    }
    placed.init_expert_location = write(folder, {{"physical_to_logical_map", layers}});
    RankThreads group(placed);
    expect_golden(group, placed, golden, 64);
  }
}

// Each stage counts, places and moves the experts of its layers.
TEST(ExpertBalance, WorksInStages) {
  const ArchGolden golden(kModel);
  const testing::TempFolder folder;
  EngineOptions options = with_redundant(options_for(golden.checkpoint()), 2);
  std::mt19937 random(5);
  Json layers = Json::object();
  {
    RankThreads group(options);
    for (const auto& layer : layers_of(group)) layers[name_of(*layer)] = shuffled(layer->spec.experts, 2, random);
  }
  options.pipeline_parallel_size = 2;
  options.init_expert_location = write(folder, {{"physical_to_logical_map", layers}});
  options.eplb_config = R"({"step_interval": 4, "window_size": 3, "num_redundant_experts": 2})";
  RankThreads group(options);
  EXPECT_LT(layers_of(group).size(), layers.size());
  for (const int chunk : {64, 1, 2}) expect_golden(group, options, golden, chunk);
  EXPECT_GT(group.model().balancer->moved(), 0U);
}

class MovedExperts : public ::testing::TestWithParam<std::string> {};

// Moved experts are quantized again as they were at the start.
TEST_P(MovedExperts, AreQuantizedAsBefore) {
  const ArchGolden golden(kModel);
  EngineOptions options = options_for(golden.checkpoint(), GetParam());
  options.quantization = "q8_0";
  const std::vector<int32_t> ids = golden.ids("ids_0");
  std::vector<float> want;
  {
    RankGroup still(options);
    want = all_logits(still, options, ids, 1);
  }
  options.eplb_config = R"({"step_interval": 3, "window_size": 3})";
  RankGroup group(options);
  for (int i = 0; i < 4; ++i) {
    const std::vector<float> got = all_logits(group, options, ids, 1);
    EXPECT_LE(relative_error(got.data(), want.data(), static_cast<int64_t>(want.size())), 1e-5);
  }
  EXPECT_GT(group.model().balancer->moved(), 0U);

  EngineMetrics metrics("model", 64);
  metrics.step({.experts = group.runner().expert_balance()}, 1);
  std::map<std::string, double> values;
  for (const MetricFamily& family : metrics.families(QueueLimit(1, 0))) {
    if (family.name.starts_with("sluice:expert")) values[family.name] = family.samples.at(0).value;
  }
  EXPECT_EQ(values.at("sluice:experts_moved"), static_cast<double>(group.model().balancer->moved()));
  EXPECT_EQ(values.at("sluice:expert_balance"), group.model().balancer->balance());
}

// A GPU's other backend rounds inputs, so that another order of sums over the ranks would show.
std::vector<std::string> invariant_rank_backends() {
  std::vector<std::string> names = rank_backends();
  for (std::string& name : names) {
    const ops::Backend& backend = ops::select_backend(name);
    if (!backend.can.batch_invariant) name = backend.batch_invariant_backend;
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, MovedExperts, ::testing::ValuesIn(invariant_rank_backends()),
                         [](const auto& info) { return test_name(kModel, info.param); });

TEST(ExpertLocation, RefusesWhatItCannotDo) {
  const ArchGolden golden(kModel);
  const testing::TempFolder folder;
  const auto error = [&](auto&& change) -> std::string {
    EngineOptions options = options_for(golden.checkpoint());
    change(options);
    ThreadPool pool(1, /*pin=*/false);
    try {
      plan_load(options, pool);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  using O = EngineOptions;
  const auto config = [&](const char* text) { return error([&](O& o) { o.eplb_config = text; }); };
  EXPECT_EQ(error([](O& o) { o.enable_eplb = false; }), "--eplb-config: needs --enable-eplb");
  const std::string needs = "--enable-eplb: needs --enable-expert-parallel and a --tensor-parallel-size of 2 or more";
  EXPECT_EQ(error([](O& o) { o.tensor_parallel_size = 1; }), needs);
  EXPECT_EQ(error([](O& o) { o.enable_expert_parallel = false; }), needs);
  EXPECT_EQ(error([](O& o) { o.enable_lora = true; }),
            "--enable-eplb: adapters change experts in order only (expected --no-lora-experts beside --enable-lora)");
  EXPECT_EQ(error([](O& o) { o.enable_lora = true, o.lora_experts = false; }), "no error");
  EXPECT_EQ(error([](O& o) { o.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m"; }), kNoExperts);
  EXPECT_EQ(config("[]"), "--eplb-config: expected a JSON object");
  EXPECT_EQ(config(R"({"window": 3})"),
            "--eplb-config: unknown key 'window' (expected one of: num_redundant_experts, window_size, step_interval, "
            "log_balancedness, log_balancedness_interval, use_async, policy, communicator)");
  EXPECT_EQ(config(R"({"num_redundant_experts": -1})"),
            "--eplb-config: num_redundant_experts: expected an integer from 0 to 65536, not -1");
  EXPECT_TRUE(config(R"({"num_redundant_experts": 1})").ends_with("(expected for example 2)"));
  EXPECT_TRUE(config(R"({"num_redundant_experts": 60000})").ends_with("(expected at most that)"));
  EXPECT_EQ(config(R"({"use_async": true})"),
            "--eplb-config: use_async: true is not supported, as experts move between steps (expected false)");
  EXPECT_EQ(config(R"({"window_size": 9, "step_interval": 8})"),
            "--eplb-config: window_size 9 is above step_interval 8 (expected at most that)");
  EXPECT_EQ(config(R"({"policy": "default", "communicator": null, "log_balancedness": true})"), "no error");
  const std::string stay = " (expected 0: experts stay where they are)";
  EXPECT_TRUE(error([](O& o) { o.eplb_config.clear(), o.deterministic = true; }).ends_with(stay));
  EXPECT_TRUE(error([](O& o) { o.eplb_config.clear(), o.packed_cache = "/tmp"; }).ends_with(stay));
  EXPECT_EQ(error([](O& o) { o.deterministic = true; }), "no error");
  EXPECT_TRUE(error([](O& o) {
                o.pipeline_parallel_size = 2, o.expert_distribution_record = "record";
              }).starts_with("--expert-distribution-record: rank 0 does not count"));
  EXPECT_TRUE(error([](O& o) {
                o.data_parallel_size = 2, o.expert_distribution_record = "record";
              }).starts_with("--expert-distribution-record: the replicas would write"));
  const auto located = [&](const Json& json) {
    std::string message = error([&](O& o) { o.init_expert_location = write(folder, json); });
    const size_t at = message.find("location.json");
    return at == std::string::npos ? message : message.substr(at);
  };
  EXPECT_EQ(located({{"counts", 1}}),
            "location.json: expected an object with the key logical_count or physical_to_logical_map, an object of "
            "layers");
  EXPECT_EQ(located({{"logical_count", Json::object()}}), "location.json: layer model.layers.0.mlp is missing");
  EXPECT_EQ(located({{"logical_count", {{"model.layers.0.mlp", {1, -2}}}}}),
            "location.json: layer model.layers.0.mlp: expected a list of integers that are not negative");
}

}  // namespace
}  // namespace sluice::expert_balance_test
