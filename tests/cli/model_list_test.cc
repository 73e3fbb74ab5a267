// The models of a command line and of the list `models`: names, options of their own, and what is refused.
#include "cli/model_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/usage_error.h"

namespace sluice::cli::model_list_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

std::string error_of(const Words& models, const Words& entries, const ServerOptions& server = {}) {
  try {
    read_models(models, entries, {}, server);
  } catch (const UsageError& e) {
    return e.what();
  }
  return {};
}

TEST(ModelList, Arguments) {
  const auto models = read_models({"a/b", "name=org/model:Q4_K_M", "./x=y"}, {}, {}, {});
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].engine.model, "a/b");
  EXPECT_THAT(models[0].names, IsEmpty());
  EXPECT_EQ(models[1].engine.model, "org/model:Q4_K_M");
  EXPECT_THAT(models[1].names, ElementsAre("name"));
  EXPECT_EQ(models[2].engine.model, "./x=y") << "a path";
  const auto none = read_models({}, {}, {}, {});
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].engine.model, "") << "the demo model";
}

TEST(ModelList, EntriesHaveOptionsOfTheirOwn) {
  EngineOptions engine;
  engine.max_num_seqs = 7;
  engine.threads = 3;
  engine.lora_modules = {"x=y"};
  ServerOptions server;
  server.model_idle_seconds = 60;
  const auto models = read_models(
      {},
      {R"({"model": "a", "served-model-name": ["one", "two"], "max_num_seqs": 2, "max-model-len": "32k"})",
       R"({"model": "b", "task": "embed", "load": "on-demand", "model-idle-seconds": 0, "enable-prefix-caching": false,
           "lora-modules": ["p=q", "r=s"], "override-generation-config": {"temperature": 0}})",
       R"({"model": "c", "tensor-parallel-size": 1, "revision": "v2", "enforce-eager": true})", "d=e"},
      engine, server);
  ASSERT_EQ(models.size(), 4u);
  EXPECT_EQ(models[0].engine.model, "a");
  EXPECT_THAT(models[0].names, ElementsAre("one", "two"));
  EXPECT_EQ(models[0].engine.max_num_seqs, 2);
  EXPECT_EQ(models[0].engine.max_model_len, 32'000);
  EXPECT_EQ(models[0].engine.threads, 3) << "the default of all models";
  EXPECT_EQ(models[0].idle_seconds, 60);
  EXPECT_FALSE(models[0].on_demand);
  EXPECT_EQ(models[1].engine.task, "embed");
  EXPECT_TRUE(models[1].on_demand);
  EXPECT_EQ(models[1].idle_seconds, 0);
  EXPECT_FALSE(models[1].engine.enable_prefix_caching);
  EXPECT_THAT(models[1].engine.lora_modules, ElementsAre("p=q", "r=s"));
  EXPECT_EQ(models[1].engine.override_generation_config, R"({"temperature":0})");
  EXPECT_EQ(models[1].engine.max_num_seqs, 7);
  EXPECT_EQ(models[2].engine.model, "c:v2");
  EXPECT_THAT(models[2].engine.lora_modules, ElementsAre("x=y"));
  EXPECT_EQ(models[3].engine.model, "e");
  EXPECT_THAT(models[3].names, ElementsAre("d"));
}

// Variables of the environment are part of the defaults, which the command line may have replaced.
TEST(ModelList, EntriesReadNoVariables) {
  ::setenv("SLUICE_MAX_NUM_SEQS", "99", 1);
  ::setenv("SLUICE_CONFIG", "/no/such/file", 1);
  EngineOptions engine;
  engine.max_num_seqs = 4;
  const auto models = read_models({}, {R"({"model": "a"})"}, engine, {});
  ::unsetenv("SLUICE_MAX_NUM_SEQS");
  ::unsetenv("SLUICE_CONFIG");
  EXPECT_EQ(models[0].engine.max_num_seqs, 4);
}

TEST(ModelList, OnDemand) {
  ServerOptions server;
  server.load_models_on_demand = true;
  const auto models = read_models({}, {"a", R"({"model": "b", "load": "start"})"}, {}, server);
  EXPECT_TRUE(models[0].on_demand);
  EXPECT_FALSE(models[1].on_demand);
}

TEST(ModelList, WhatIsRefused) {
  EXPECT_THAT(error_of({"=a"}, {}), HasSubstr("expected MODEL or NAME=MODEL"));
  EXPECT_THAT(error_of({"a="}, {}), HasSubstr("expected MODEL or NAME=MODEL"));
  EXPECT_THAT(error_of({"a"}, {"b"}), HasSubstr("put it into the list"));
  EXPECT_THAT(error_of({}, {"{}"}), HasSubstr("models[0]: needs a 'model'"));
  EXPECT_THAT(error_of({}, {"a", R"({"model": "b", "max-model-lne": 1})"}),
              HasSubstr("models[1]: unknown option '--max-model-lne'; did you mean '--max-model-len'?"));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "threads": 5000})"}), HasSubstr("models[0]: --threads: 5000 is out of"));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "threads": null})"}), HasSubstr("models[0]: threads: has no value"));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "load": "never"})"}), HasSubstr("models[0]: --load"));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "model-idle-seconds": -1})"}), HasSubstr("--model-idle-seconds"));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "numa": "off"})"}), HasSubstr("`sluice serve --models` has no --numa"));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "port": 1})"}), HasSubstr("models[0]: "));
  EXPECT_THAT(error_of({}, {R"({"model": "b")"}), HasSubstr("models[0]: "));
  EXPECT_THAT(error_of({}, {R"({"model": "b", "hf-token": "x"})"}), HasSubstr("HF_TOKEN holds for all models"));
  ServerOptions server;
  server.served_model_name = {"x"};
  EXPECT_THAT(error_of({"a", "b"}, {}, server), HasSubstr("--served-model-name: there are several models"));
  EXPECT_EQ(error_of({"a"}, {}, server), "");
}

TEST(ModelList, EachModelRecordsItsExpertsInAFileOfItsOwn) {
  EngineOptions engine;
  engine.expert_distribution_record = "loads";
  EXPECT_EQ(read_models({"a"}, {}, engine, {}).size(), 1u);
  EXPECT_THROW(read_models({"a", "b"}, {}, engine, {}), UsageError);
  const std::string own = R"({"model": "b", "expert-distribution-record": "others"})";
  EXPECT_EQ(read_models({}, {"a", own}, engine, {}).size(), 2u);
  EXPECT_THROW(read_models({}, {own, own}, {}, {}), UsageError);
}

}  // namespace
}  // namespace sluice::cli::model_list_test
