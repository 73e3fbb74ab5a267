// Compares every architecture of tests/goldens/arch with Hugging Face transformers when several ranks compute it: they
// divide each layer, or are the stages of a pipeline, or both. Checks logits in one piece, in chunks of five, and
// greedy tokens. Prints a table of the errors at the end, and the share of the weights that rank 0 holds. Ranks are
// threads on the host's best backend, and processes on that of a GPU if there is one.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "base/json.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/greedy_tokens.h"
#include "golden/rank_group.h"
#include "support/sanitized.h"

namespace sluice::ranks_test {
namespace {

// How many ranks divide each layer, and how many stages the layers.
struct Way {
  int tensor = 1, pipeline = 1;
  bool experts = false;  // ranks have whole experts
  int keys = 1;          // ranks that divide the keys of a sequence
  std::string str() const {
    return fmt::format("{}x{}{}{}", tensor, pipeline, experts ? "e" : "", keys > 1 ? fmt::format("k{}", keys) : "");
  }
};

constexpr Way kWays[] = {{2, 1},           {4, 1},           {1, 2},           {2, 2},           {2, 1, true},
                         {2, 1, false, 2}, {4, 1, false, 2}, {4, 1, false, 4}, {2, 2, false, 2}, {4, 2, false, 2}};

class Table : public ::testing::Environment {
 public:
  struct Row {
    double error = std::numeric_limits<double>::infinity(), share = 0;  // until the model was loaded
  };
  Row& row(const std::string& name, const Way& way) { return rows_[name][way.str()]; }
  void TearDown() override {
    if (rows_.empty()) return;
    fmt::print("{:<24}", "ranks x stages");
    for (const Way& way : kWays) fmt::print("{:>5}: error weights", way.str());
    int passed = 0;
    for (auto& [name, ways] : rows_) {
      fmt::print("\n{:<24}", name);
      double most = 0;
      for (const Way& way : kWays) {
        const auto found = ways.find(way.str());
        if (found == ways.end()) {
          fmt::print("{:>20}", "");
          continue;
        }
        const Row& row = found->second;
        fmt::print("{:>12.1e}{:>7.0f}%", row.error, 100 * row.share);
        most = std::max(most, row.error);
      }
      passed += most <= kTolerance ? 1 : 0;
    }
    fmt::print("\n{} of {} architectures within {:.0e}\n", passed, rows_.size(), kTolerance);
  }

 private:
  std::map<std::string, std::map<std::string, Row>> rows_;
};

Table& table = *static_cast<Table*>(::testing::AddGlobalTestEnvironment(new Table));  // owned by gtest

class RanksOfArch : public ::testing::TestWithParam<std::tuple<std::string, Way, std::string>> {};

size_t weight_bytes(const EngineOptions& options) {
  ThreadPool pool(1);
  return plan_load(options, pool).weight_bytes;
}

bool divides_keys(EngineOptions options, const Way& way) {
  options.decode_context_parallel_size = 1;
  ThreadPool pool(1);
  const ModelShape shape = plan_load(options, pool).shape;
  const std::vector<KvShape>& layers = shape.kv;
  return !layers.empty() && shape.selected == 0 &&
         std::ranges::all_of(layers, [&](const KvShape& l) { return l.copies % way.keys == 0; });
}

std::vector<float> all_logits(Runner& runner, const LoadPlan& plan, int block_size, std::span<const int32_t> ids) {
  std::vector<float> all;
  for_each_logits(runner, plan, block_size, ids, 64,
                  [&](int, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
  return all;
}

// Stages compute the same sums in the same order as one process.
void expect_bits_of_one_process(RankGroup& group, EngineOptions options, std::span<const int32_t> ids) {
  const std::vector<float> got = all_logits(group.runner(), group.plan(), options.block_size, ids);
  options.pipeline_parallel_size = 1;
  ThreadPool pool(1);
  LoadedModel alone = load_model(options, pool);
  Runner runner(alone);
  EXPECT_EQ(got, all_logits(runner, alone.plan, options.block_size, ids)) << "bits of one process";
}

TEST_P(RanksOfArch, LogitsAndGreedyTokens) {
  const auto& [name, way, backend] = GetParam();
  const ArchGolden golden(name);
  EngineOptions options;
  options.model = golden.checkpoint();
  options.backend = backend;
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  const size_t whole = weight_bytes(options);
  options.tensor_parallel_size = way.tensor;
  options.pipeline_parallel_size = way.pipeline;
  options.enable_expert_parallel = way.experts;
  options.decode_context_parallel_size = way.keys;
  options.cp_kv_cache_interleave_size = way.keys == way.tensor ? 1 : 4;
  if (way.keys > 1 && !divides_keys(options, way)) GTEST_SKIP() << "a layer that does not divide keys";
  Table::Row& noted = table.row(name, way);
  RankGroup group(options);
  noted.error = 0;
  noted.share = static_cast<double>(group.plan().weight_bytes) / static_cast<double>(whole);
  if (way.tensor == 1) expect_bits_of_one_process(group, options, golden.ids("ids_1"));
  const auto check = [&](const std::string& index, int chunk) {
    const Tensor want = golden.logits("logits_" + index);
    for_each_logits(group.runner(), group.plan(), group.plan().block_size, golden.ids("ids_" + index), chunk,
                    [&](int position, std::span<const float> row) {
                      ASSERT_EQ(static_cast<int64_t>(row.size()), want.shape[1]);
                      const float* expected = want.f32() + position * want.row_stride;
                      const double error = relative_error(row.data(), expected, want.shape[1]);
                      noted.error = std::max(noted.error, error);
                      EXPECT_LE(error, kTolerance) << "row " << position << " in chunks of " << chunk;
                    });
  };
  check("0", 64), check("1", 64), check("0", 5);
  expect_greedy_tokens(group.runner(), group.plan(), group.plan().block_size, golden);
}

// A rank plans for its heads, its columns and its rows of the vocabulary.
TEST(Ranks, HoldTheirPartOfTheModel) {
  EngineOptions options;
  options.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  ThreadPool pool(1);
  const LoadPlan whole = plan_load(options, pool);
  options.tensor_parallel_size = 2;
  const LoadPlan half = plan_load(options, pool);
  EXPECT_EQ(whole.shape.kv.at(0).kv_heads, 2);
  EXPECT_EQ(half.shape.kv.at(0).kv_heads, 1);
  EXPECT_EQ(half.shape.vocab, whole.shape.vocab);
  EXPECT_LT(static_cast<double>(half.weight_bytes), 0.52 * static_cast<double>(whole.weight_bytes));
  EXPECT_EQ(half.kv.block_bytes() * 2, whole.kv.block_bytes());
  options.tensor_parallel_size = 4;  // two ranks have the same key head
  EXPECT_EQ(plan_load(options, pool).shape.kv.at(0).kv_heads, 1);
}

// A stage plans for its layers, and the last one for the head.
TEST(Ranks, StagesHoldTheirLayers) {
  EngineOptions options;
  options.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  ThreadPool pool(1);
  const LoadPlan whole = plan_load(options, pool);
  options.pipeline_parallel_size = 2;
  const LoadPlan first = plan_load(options, pool);
  EXPECT_EQ(first.shape.kv.size(), whole.shape.kv.size());
  EXPECT_EQ(first.parameters, whole.parameters);
  EXPECT_LT(first.weight_bytes, whole.weight_bytes);
  EXPECT_LT(first.kv.block_bytes(), whole.kv.block_bytes());
  options.pipeline_parallel_size = 64;
  try {
    plan_load(options, pool);
    FAIL() << "64 stages";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), fmt::format("--pipeline-parallel-size 64: the {0} layers of this model can be "
                                                 "divided into at most {0} stages",
                                                 whole.shape.kv.size()));
  }
  options.tensor_parallel_size = 2;
  try {
    plan_load(options, pool);
    FAIL() << "128 ranks";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "--tensor-parallel-size 2 with --pipeline-parallel-size 64: 128 ranks (expected at most 64)");
  }
}

// Where layers run several times, the residual stream goes around the stages. A stage has the weights of its layers
// once and computes them every time. With three stages, a layer of HRM-Text's first stack is followed by one two stages
// away.
TEST(Ranks, StagesOfLoops) {
  for (const char* name : {"iquest_loop_coder-1", "hrm_text"}) {
    SCOPED_TRACE(name);
    const ArchGolden golden(name);
    EngineOptions options;
    options.model = golden.checkpoint();
    options.dtype = "float32";
    options.kv_cache_memory_bytes = 16 << 20;
    options.max_num_seqs = 64;
    const size_t whole = weight_bytes(options);
    options.pipeline_parallel_size = 3;
    RankGroup group(options);
    EXPECT_LT(group.plan().weight_bytes, whole / 2);
    expect_bits_of_one_process(group, options, golden.ids("ids_1"));
  }
}

// In the same memory, ranks that divide keys have room for as many more tokens.
TEST(Ranks, DivideTheKeysOfAHead) {
  EngineOptions options;
  options.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 1 << 20;
  options.max_num_seqs = 64;
  options.max_model_len = 256;
  options.tensor_parallel_size = 4;
  ThreadPool pool(1);
  const LoadPlan whole = plan_load(options, pool);
  options.decode_context_parallel_size = 2;
  const LoadPlan divided = plan_load(options, pool);
  EXPECT_EQ(whole.shape.kv.at(0).copies, 2);
  EXPECT_EQ(divided.kv.block_bytes(), whole.kv.block_bytes());
  EXPECT_EQ(divided.block_size, 2 * whole.block_size);
  EXPECT_EQ(divided.blocks, whole.blocks);
}

// What loading a model with some options throws.
std::string error_of(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options;
  options.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options.tensor_parallel_size = 2;
  change(options);
  ThreadPool pool(1);
  try {
    load_model(options, pool);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Ranks, RefuseToDivideKeysThatTheyCannot) {
  const auto error = [](int ranks, int parts, const std::function<void(EngineOptions&)>& change = {}) {
    return error_of([&](EngineOptions& o) {
      o.tensor_parallel_size = ranks, o.decode_context_parallel_size = parts;
      if (change) change(o);
    });
  };
  EXPECT_EQ(error(1, 2), "--decode-context-parallel-size 2: does not divide --tensor-parallel-size 1");
  EXPECT_EQ(error(4, 3), "--decode-context-parallel-size 3: does not divide --tensor-parallel-size 4");
  EXPECT_EQ(error(4, 2, [](EngineOptions& o) { o.cp_kv_cache_interleave_size = 3; }),
            "--cp-kv-cache-interleave-size 3: does not divide --block-size 16");
  const std::string layers =
      "ranks can divide the keys of attention layer 0 (expected a multiple of {}: more ranks than key heads, or latent "
      "attention, without biases by distance)";
  EXPECT_EQ(error(2, 2),
            "--decode-context-parallel-size 2: 1 of --tensor-parallel-size 2 " + fmt::format(fmt::runtime(layers), 2));
  EXPECT_EQ(error(4, 4),
            "--decode-context-parallel-size 4: 2 of --tensor-parallel-size 4 " + fmt::format(fmt::runtime(layers), 4));
  EXPECT_EQ(error(4, 2, [](EngineOptions& o) { o.task = "embed"; }),
            "--decode-context-parallel-size 2: the model was loaded with --task embed (expected generate)");
  EXPECT_EQ(error(4, 2, [](EngineOptions& o) { o.speculative_config = R"({"method": "mtp"})"; }),
            "--speculative-config with the method mtp cannot be used with --decode-context-parallel-size 2: its hidden "
            "states are not divided (expected another method)");
}

TEST(Ranks, RefuseToDivideKeysThatLayersSelect) {
  const ArchGolden golden("deepseek_v32-selected");
  const auto error = error_of([&](EngineOptions& o) {
    o.model = golden.checkpoint();
    o.decode_context_parallel_size = 2;
  });
  EXPECT_EQ(error,
            "--decode-context-parallel-size 2: layers select 16 tokens of longer texts (expected --max-model-len of at "
            "most 16)");
}

TEST(Ranks, RefuseWhatTheyCannotDo) {
  const std::string cannot = " cannot be used with --tensor-parallel-size 2: ";
  EXPECT_TRUE(error_of([](EngineOptions& o) { o.numa = "3"; }).starts_with("--numa 3" + cannot));
  // This program cannot be started as a rank.
  EXPECT_TRUE(error_of([](EngineOptions&) {}).starts_with("--tensor-parallel-size: only the sluice program"));
}

// Whether an architecture's configuration has latent attention, or fewer key heads than ranks. Its layers may still be
// unable to divide keys.
bool may_divide_keys(const std::string& name, const Way& way) {
  std::ifstream file(arch_goldens() / name / "config.json");
  const Json config = Json::parse(file);
  const auto found = config.find("num_key_value_heads");
  int heads = config.value("multi_query", false) ? 1 : way.tensor;
  if (found != config.end() && found->is_number_integer()) heads = std::max(1, found->get<int>());
  return config.contains("kv_lora_rank") || (way.tensor % heads == 0 && way.tensor / heads % way.keys == 0);
}

// Every architecture in every way that differs for it.
std::vector<std::tuple<std::string, Way, std::string>> cases() {
  const int most = most_ranks();
  std::vector<std::tuple<std::string, Way, std::string>> all;
  for (const std::string& backend : rank_backends()) {
    for (const std::string& name : golden_names(arch_goldens())) {
      for (const Way& way : kWays) {
        if (way.experts && !has_experts(name)) continue;
        if (way.keys > 1 && !may_divide_keys(name, way)) continue;
        if (way.tensor * way.pipeline > most) continue;
        all.emplace_back(name, way, backend);
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, RanksOfArch, ::testing::ValuesIn(cases()), [](const auto& info) {
  return test_name(std::get<0>(info.param) + "_" + std::get<1>(info.param).str(), std::get<2>(info.param));
});

}  // namespace
}  // namespace sluice::ranks_test

// The program starts itself as further ranks (rank_group.h).
int main(int count, char** arguments) {
  if (count == 4 && std::string_view(arguments[1]) == sluice::kRankCommand) {
    return sluice::run_rank(std::atoi(arguments[2]), std::atoi(arguments[3]));
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
