// Adapters of models that several ranks compute. A random adapter of every module of every architecture changes the
// logits as it does in one process, to the bit where ranks are stages of a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/json.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"
#include "lora/adapter.h"
#include "sluice/error.h"
#include "support/sanitized.h"

namespace sluice::rank_adapters_test {
namespace {

constexpr int kRank = 4, kSlot = 1;
constexpr float kScale = 0.75f;

class Numbers {
 public:
  // Between -scale and scale.
  std::vector<float> operator()(int64_t count, double scale, double around = 0) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = static_cast<float>(around + scale * (2.0 * random_() / random_.max() - 1));
    return out;
  }

 private:
  std::minstd_rand random_{1};
};

// Changes the projections of a layer's experts: in turn each expert's, or those of all together.
void add_experts(const LoraSite& site, bool each, Numbers& numbers, Adapter& adapter) {
  const int64_t count = site.experts.count, inputs = site.share.module_inputs;
  const double scale = 1 / std::sqrt(static_cast<double>(inputs));
  for (const LoraSite::Part& part : site.parts) {
    for (int64_t e = 0; e < (each ? count : 1); ++e) {
      Adapter::Module m{.name = part.module, .rank = kRank, .inputs = inputs, .outputs = part.module_outputs};
      if (each) m.name.replace(m.name.find('*'), 1, std::to_string(e));
      m.experts = each ? 1 : count, m.scale = 0.5f;
      m.a = numbers(m.experts * kRank * inputs, scale), m.b = numbers(m.outputs * kRank * m.experts, 0.5);
      adapter.modules.push_back(std::move(m));
    }
  }
}

// Changes every module that adapters can change, in turn by small matrices, with DoRA, with a bias, and by a new one.
std::shared_ptr<Adapter> random_adapter(const LoadedModel& model) {
  const LoraSites& sites = *model.adapters;
  auto adapter = std::make_shared<Adapter>();
  adapter->folder = "random";
  adapter->rank = kRank;
  Numbers numbers;
  std::set<std::string> seen;
  for (const std::shared_ptr<LoraSite>& site : sites.all()) {
    if (site->experts.count > 0) {
      if (seen.insert(site->parts[0].module).second) add_experts(*site, seen.size() % 2 == 0, numbers, *adapter);
      continue;
    }
    for (const LoraSite::Part& part : site->parts) {
      if (part.rescaled || !seen.insert(part.module).second) continue;
      const int64_t inputs = site->share.module_inputs, outputs = part.module_outputs;
      const double scale = 1 / std::sqrt(static_cast<double>(inputs));
      Adapter::Module m{.name = part.module, .inputs = inputs, .outputs = outputs};
      const bool dense = !site->table && part.input_scale.empty() && site->heads.count == 0;
      const size_t kind = dense ? seen.size() % 4 : 0;
      if (kind == 3) {
        m.saved = numbers(inputs * outputs, scale);
        if (part.transposed) std::swap(m.inputs, m.outputs);  // as the model stores it
      } else {
        m.rank = kRank, m.scale = 0.5f, m.embedding = site->table;
        m.a = numbers(kRank * inputs, scale), m.b = numbers(outputs * kRank, 0.5);
        if (kind == 1) m.magnitude = numbers(outputs, 0.1, 1);
        if (kind == 2) m.bias = numbers(outputs, 0.1);
      }
      adapter->modules.push_back(std::move(m));
    }
  }
  check_adapter(*adapter, sites, *model.plan.checkpoint);
  return adapter;
}

std::vector<float> logits(Runner& runner, const LoadPlan& plan, std::span<const int32_t> ids, int adapter,
                          int chunk = 64) {
  std::vector<float> all;
  for_each_logits(
      runner, plan, plan.block_size, ids, chunk,
      [&](int, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); }, adapter);
  return all;
}

double error_of(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  return relative_error(got.data(), want.data(), static_cast<int64_t>(want.size()));
}

class RankAdapters : public ::testing::TestWithParam<std::string> {};

TEST_P(RankAdapters, ChangeTheModelAsInOneProcess) {
  const ArchGolden golden(GetParam());
  const std::vector<int32_t> ids = golden.ids("ids_1");
  EngineOptions options;
  options.model = golden.checkpoint();
  options.backend = std::string(ops::select_host_backend().name);
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.enable_lora = true;
  options.max_loras = 2;
  options.max_lora_rank = kRank;
  std::vector<float> want;
  bool experts = false;
  {
    ThreadPool pool(1, /*pin=*/false);
    LoadedModel alone = load_model(options, pool);
    Runner runner(alone);
    const std::vector<float> plain = logits(runner, alone.plan, ids, -1);
    const std::shared_ptr<Adapter> adapter = random_adapter(alone);
    prepare_apart(*adapter, alone);
    runner.place_adapter(*adapter, kSlot);
    want = logits(runner, alone.plan, ids, kSlot);
    experts = alone.adapters->expert_bytes() > 0;
    ASSERT_GT(error_of(plain, want), 0.01) << "the adapter changes nothing";
  }
  for (const auto& [tensor, pipeline, whole_experts] :
       {std::tuple{2, 1, false}, {1, 2, false}, {2, 2, false}, {2, 1, true}}) {
    if (tensor * pipeline > most_ranks()) continue;
    if (whole_experts && !experts) continue;
    SCOPED_TRACE(fmt::format("{} ranks, {} stages{}", tensor, pipeline, whole_experts ? ", whole experts" : ""));
    options.enable_expert_parallel = whole_experts;
    options.tensor_parallel_size = tensor;
    options.pipeline_parallel_size = pipeline;
    RankGroup group(options);
    const std::shared_ptr<Adapter> adapter = random_adapter(group.model());
    group.runner().add_adapter(adapter);
    prepare_apart(*adapter, group.model());
    group.runner().place_adapter(*adapter, kSlot);
    const std::vector<float> got = logits(group.runner(), group.plan(), ids, kSlot);
    EXPECT_LE(error_of(got, want), tensor == 1 ? 0 : kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RankAdapters, ::testing::ValuesIn(golden_names(arch_goldens())),
                         [](const auto& info) { return test_name(info.param, ""); });

// The demo adapters give peft's logits.
TEST(RankAdapters, OfTheDemoModelGivePeftsLogits) {
  const std::string root = SLUICE_SOURCE_DIR;
  EngineOptions options;
  options.model = root + "/models/minnow-6m";
  options.backend = std::string(ops::select_host_backend().name);
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.enable_lora = true;
  options.max_loras = 2;
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    if (tensor * pipeline > most_ranks()) continue;
    options.tensor_parallel_size = tensor;
    options.pipeline_parallel_size = pipeline;
    RankGroup group(options);
    std::vector<std::shared_ptr<Adapter>> adapters;
    for (const char* name : {"pirate", "json"}) {
      adapters.push_back(read_adapter(fmt::format("{}-lora-{}", options.model, name)));
      check_adapter(*adapters.back(), *group.model().adapters, *group.model().plan.checkpoint);
      group.runner().add_adapter(adapters.back());
      prepare_apart(*adapters.back(), group.model());
      const int slot = static_cast<int>(adapters.size()) - 1;
      group.runner().place_adapter(*adapters.back(), slot);
      const MappedFile file(fmt::format("{}/tests/goldens/minnow/lora-{}-logits.safetensors", root, name));
      std::map<std::string, TensorEntry> golden;
      for (TensorEntry& entry : read_safetensors(file.bytes(), name)) golden.emplace(entry.name, entry);
      const Tensor want = golden.at("logits").view(), ids = golden.at("ids").view();
      const std::vector<float> got =
          logits(group.runner(), group.plan(),
                 {reinterpret_cast<const int32_t*>(ids.data), static_cast<size_t>(ids.shape[0])}, slot);
      ASSERT_EQ(static_cast<int64_t>(got.size()), want.shape.elements());
      EXPECT_LE(relative_error(got.data(), want.f32(), want.shape.elements()), kTolerance)
          << name << ": " << tensor << " ranks, " << pipeline << " stages";
    }
  }
}

// So do adapters in GGUF, of experts, and with rows for tokens.
TEST(RankAdapters, OfGoldensGivePeftsLogits) {
  for (const std::string name : {"llama-gguf", "qwen3_moe-gguf", "llama-tokens", "gemma2-tokens"}) {
    const std::string folder = fmt::format("{}/tests/goldens/lora/{}", SLUICE_SOURCE_DIR, name);
    const ArchGolden arch(read_json_file(folder + "/adapter_config.json").at("base_model_name_or_path"));
    const MappedFile file(folder + "/golden.safetensors");
    std::map<std::string, TensorEntry> golden;
    for (TensorEntry& entry : read_safetensors(file.bytes(), name)) golden.emplace(entry.name, entry);
    const Tensor want = golden.at("logits").view(), ids = golden.at("ids").view();
    EngineOptions options;
    options.model = arch.checkpoint();
    options.backend = std::string(ops::select_host_backend().name);
    options.dtype = "float32";
    options.kv_cache_memory_bytes = 16 << 20;
    options.max_num_seqs = 64;
    options.enable_lora = true;
    for (const auto& [tensor, pipeline] : {std::pair{2, 1}, {1, 2}}) {
      options.tensor_parallel_size = tensor;
      options.pipeline_parallel_size = pipeline;
      RankGroup group(options);
      const std::shared_ptr<Adapter> adapter = read_adapter(name.ends_with("gguf") ? folder + "/adapter.gguf" : folder);
      name_modules(*adapter, *group.model().plan.checkpoint);
      check_adapter(*adapter, *group.model().adapters, *group.model().plan.checkpoint);
      group.runner().add_adapter(adapter);
      prepare_apart(*adapter, group.model());
      group.runner().place_adapter(*adapter, 0);
      const std::vector<float> got =
          logits(group.runner(), group.plan(),
                 {reinterpret_cast<const int32_t*>(ids.data), static_cast<size_t>(ids.shape[0])}, 0);
      ASSERT_EQ(static_cast<int64_t>(got.size()), want.shape.elements());
      EXPECT_LE(relative_error(got.data(), want.f32(), want.shape.elements()), kTolerance)
          << name << ": " << tensor << " ranks, " << pipeline << " stages";
    }
  }
}

EngineOptions options_of(const ArchGolden& golden) {
  EngineOptions options;
  options.model = golden.checkpoint();
  options.backend = std::string(ops::select_host_backend().name);
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.enable_lora = true;
  return options;
}

// Adapters' sums of few rows take more memory than the rows.
TEST(Adapters, HaveRoomInAStepAsLargeAsThePlan) {
  const ArchGolden golden("llama");
  EngineOptions options = options_of(golden);
  const std::vector<int32_t> ids(13, 5);
  options.max_num_seqs = options.max_num_batched_tokens = 13;
  ThreadPool pool(1, /*pin=*/false);
  LoadedModel model = load_model(options, pool);
  Runner runner(model);
  const std::shared_ptr<Adapter> adapter = random_adapter(model);
  prepare_apart(*adapter, model);
  runner.place_adapter(*adapter, 0);
  EXPECT_FALSE(logits(runner, model.plan, ids, 0, 13).empty());
}

// What peft calls a module is its name in transformers, not in the checkpoint.
TEST(Adapters, FindModulesByTheirNamesInTransformers) {
  const std::pair<const char*, const char*> modules[] = {
      {"hy_v3-1", "model.layers.1.mlp.shared_experts.down_proj"},
      {"laguna-1", "model.layers.1.mlp.shared_experts.down_proj"},
      {"kimi_linear-1", "model.layers.1.mlp.shared_experts.down_proj"},
      {"kimi_linear-1", "model.layers.0.self_attn.forget_gate.f_a_proj"},
      {"nemotron_h", "model.layers.0.mixer.in_proj"},
      {"hy_v3-1", "model.layers.1.mlp.gate"},
      {"granitemoe", "model.layers.0.block_sparse_moe.router"},
      {"phimoe", "model.layers.0.mlp.router"},
      {"granitemoehybrid", "model.layers.0.block_sparse_moe.experts.gate_up_proj"},
      {"granitemoe", "model.layers.0.block_sparse_moe.input_linear"},
      {"mixtral", "model.layers.0.block_sparse_moe.experts.3.w1"},
      {"qwen3_moe", "model.layers.0.mlp.experts.2.down_proj"},
  };
  for (const auto& [name, module] : modules) {
    const ArchGolden golden(name);
    ThreadPool pool(1, /*pin=*/false);
    const LoadedModel model = load_model(options_of(golden), pool);
    EXPECT_FALSE(places_of(*model.adapters, {.name = module}).empty()) << name;
  }
}

TEST(Adapters, OfExpertsAreRefusedByName) {
  const ArchGolden golden("qwen3_moe");  // 4 experts, [96, 64] and [64, 48]
  EngineOptions options = options_of(golden);
  const auto refusal = [&](const Adapter::Module& module) -> std::string {
    ThreadPool pool(1, /*pin=*/false);
    const LoadedModel model = load_model(options, pool);
    Adapter adapter;
    adapter.modules.push_back(module);
    try {
      check_adapter(adapter, *model.adapters, *model.plan.checkpoint);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  using ::testing::HasSubstr;
  const std::string experts = "model.layers.1.mlp.experts.";
  Adapter::Module all{.name = experts + "gate_up_proj", .rank = 2, .inputs = 64, .outputs = 96, .experts = 4};
  EXPECT_EQ(refusal(all), "");
  std::swap(all.inputs, all.outputs);  // as earlier versions of peft have them
  EXPECT_EQ(refusal(all), "");
  all.inputs = 63;
  EXPECT_THAT(refusal(all), HasSubstr("is [64, 63] in the adapter, but [96, 64] in the model"));
  all.inputs = 96, all.experts = 3;
  EXPECT_THAT(refusal(all), HasSubstr("has the matrices of 3 experts, but the model has 4"));
  Adapter::Module one{.name = experts + "3.down_proj", .rank = 2, .inputs = 48, .outputs = 64};
  EXPECT_EQ(refusal(one), "");
  one.magnitude.resize(64);
  EXPECT_THAT(refusal(one), HasSubstr("is of experts: only lora_A and lora_B work"));
  one.magnitude.clear();
  one.name = experts + "4.down_proj";
  EXPECT_THAT(refusal(one), HasSubstr("an expert that the model does not have: it has 4"));
  one.name = experts + "3.down_proj";
  options.lora_experts = false;
  EXPECT_THAT(refusal(one), HasSubstr("with --lora-experts also its experts"));
}

TEST(Adapters, OfExpertsHaveRoomOfTheirOwn) {
  const ArchGolden golden("qwen3_moe");
  EngineOptions options = options_of(golden);
  const auto bytes = [&] {
    ThreadPool pool(1, /*pin=*/false);
    const LoadPlan plan = plan_load(options, pool);
    for (const MemoryPlan::Row& row : plan.memory.rows) {
      if (row.what == "adapters of experts") return row.bytes;
    }
    return size_t{0};
  };
  const size_t one = bytes();
  EXPECT_GT(one, 0u);
  options.max_loras = 3;
  EXPECT_EQ(bytes(), 3 * one);
  options.lora_experts = false;
  EXPECT_EQ(bytes(), 0u);
}

// peft saves the head itself, too, if an adapter changes it.
TEST(Adapters, MustHaveBeenTrainedOnTheModelsHead) {
  const ArchGolden golden("llama");
  ThreadPool pool(1, /*pin=*/false);
  const LoadedModel model = load_model(options_of(golden), pool);
  const TensorEntry& head = *model.plan.checkpoint->find("lm_head.weight");
  std::vector<float> values(static_cast<size_t>(head.shape.elements()));
  head.read(values.data());
  Adapter adapter;
  Adapter::Module& m = adapter.modules.emplace_back();
  m = {.name = "lm_head", .rank = 1, .inputs = head.shape[1], .outputs = head.shape[0]};
  m.base = row_lengths(values, head.shape[0]);
  check_adapter(adapter, *model.adapters, *model.plan.checkpoint);
  m.base.back() *= 1.5f;
  EXPECT_THROW(check_adapter(adapter, *model.adapters, *model.plan.checkpoint), Error);
  m.base.pop_back();
  EXPECT_THROW(check_adapter(adapter, *model.adapters, *model.plan.checkpoint), Error);
}

// A rank has its part of the slots' matrices, and a stage has none of the other's.
TEST(RankAdapters, TakeTheirPartOfTheMemory) {
  EngineOptions options;
  options.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options.enable_lora = true;
  options.kv_cache_memory_bytes = 16 << 20;
  const auto bytes = [&] {
    ThreadPool pool(1, /*pin=*/false);
    const LoadPlan plan = plan_load(options, pool);
    for (const MemoryPlan::Row& row : plan.memory.rows) {
      if (row.what == "adapters") return static_cast<double>(row.bytes);
    }
    return 0.0;
  };
  const double whole = bytes();
  options.tensor_parallel_size = 2;
  EXPECT_LT(bytes(), 0.8 * whole);
  options.tensor_parallel_size = 1, options.pipeline_parallel_size = 2;
  EXPECT_LT(bytes(), 0.6 * whole);
}

}  // namespace
}  // namespace sluice::rank_adapters_test
