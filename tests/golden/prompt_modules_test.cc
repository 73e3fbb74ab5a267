// Prompts with modules: logits and greedy tokens of what transformers computes with positions and a mask
// (tests/goldens/prompt_modules/make.py), with learned positions, norms of queries and keys, and latent attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "scheduler/scheduler.h"

namespace sluice::prompt_modules_test {
namespace {

constexpr int kCases = 3;

std::filesystem::path goldens() { return std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/goldens/prompt_modules"; }

// The architectures that there are goldens of.
std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const std::string& file : golden_names(goldens())) {
    if (file.ends_with(".safetensors")) names.push_back(std::filesystem::path(file).stem().string());
  }
  return names;
}

struct Golden {
  explicit Golden(const std::string& name) : file_((goldens() / (name + ".safetensors")).string()) {
    for (TensorEntry& entry : read_safetensors(file_.bytes(), name)) entries_.emplace(entry.name, entry);
  }
  std::vector<int32_t> ids(const std::string& name, int number) const {
    const TensorEntry& entry = entries_.at(name + "_" + std::to_string(number));
    const auto* data = reinterpret_cast<const int32_t*>(entry.data);
    return {data, data + entry.shape[0]};
  }
  Tensor logits(int number) const { return entries_.at("logits_" + std::to_string(number)).view(); }
  Request request(int number) const {
    Request request{.prompt = ids("ids", number)};
    const std::vector<int32_t> modules = ids("modules", number);
    for (size_t i = 0; i < modules.size(); i += 2) {
      request.modules.push_back({.tokens = modules[i], .position = modules[i + 1]});
    }
    request.sampling.max_tokens = static_cast<int>(ids("gen", number).size());
    return request;
  }

 private:
  MappedFile file_;
  std::map<std::string, TensorEntry> entries_;
};

// A scheduler with the likeliest token as a sampler.
class Loop {
 public:
  Loop(const std::string& model, const std::string& backend, int step_tokens) {
    EngineOptions options;
    options.model = model;
    options.dtype = "float32";
    options.backend = backend;
    options.kv_cache_memory_bytes = 4 << 20;
    options.max_num_seqs = 8;
    loaded_ = std::make_unique<LoadedModel>(load_model(options, pool_));
    const LoadPlan& plan = loaded_->plan;
    EXPECT_EQ(plan.shape.no_modules, "");
    runner_ = std::make_unique<Runner>(*loaded_);
    SchedulerOptions o;
    o.max_num_seqs = plan.max_num_seqs;
    o.max_num_batched_tokens = std::min(step_tokens, plan.step_tokens);
    o.max_logit_rows = plan.logit_rows;
    o.max_model_len = plan.max_model_len;
    o.block_size = plan.block_size;
    o.blocks = plan.blocks;
    o.groups = plan.kv.groups;
    scheduler_.emplace(o);
  }

  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<std::vector<float>> logits;  // that each token was chosen from
    int cached = 0;
  };

  // Runs requests together.
  std::vector<Answer> run(const std::vector<Request>& requests) {
    std::map<RequestId, size_t> numbers;
    for (const Request& request : requests) {
      EXPECT_TRUE(scheduler_->queue_limit().try_enter(1, static_cast<int64_t>(request.prompt.size())));
      numbers[next_] = numbers.size();
      scheduler_->add(next_++, request);
    }
    std::vector<Answer> answers(requests.size());
    while (!scheduler_->idle()) {
      ScheduledBatch step = scheduler_->next();
      if (step.batch.empty()) continue;
      const Tensor logits = runner_->forward(step.batch);
      std::vector<SampleResult> samples(step.tasks.size());
      for (const ScheduledBatch::Part& part : step.parts) {
        for (int task = part.first_task; task < part.first_task + part.samples; ++task) {
          const float* row = logits.f32() + step.tasks[static_cast<size_t>(task)].row * logits.row_stride;
          samples[static_cast<size_t>(task)].token =
              static_cast<TokenId>(std::max_element(row, row + logits.shape[1]) - row);
          answers[numbers.at(part.sequence->id)].logits.emplace_back(row, row + logits.shape[1]);
        }
      }
      std::vector<StepResult> results = step_results(step, samples);
      scheduler_->commit(std::move(step), results);
      for (const SequenceEvent& event : scheduler_->drain()) {
        Answer& answer = answers[numbers.at(event.request)];
        answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
        answer.cached = event.usage.cached_tokens;
      }
    }
    return answers;
  }

 private:
  ThreadPool pool_{2};
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<Runner> runner_;
  std::optional<Scheduler> scheduler_;
  RequestId next_ = 1;
};

class PromptModules : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  const std::string& name() const { return std::get<0>(GetParam()); }
  const std::string& backend() const { return std::get<1>(GetParam()); }

  void check(const Loop::Answer& answer, int number) const {
    EXPECT_EQ(answer.tokens, golden_.ids("gen", number)) << "case " << number;
    const Tensor want = golden_.logits(number);
    for (int64_t row = 0; row < want.rows(); ++row) {
      ASSERT_LT(row, static_cast<int64_t>(answer.logits.size()));
      const double error = relative_error(answer.logits[static_cast<size_t>(row)].data(),
                                          want.f32() + row * want.row_stride, want.shape[1]);
      EXPECT_LE(error, kTolerance) << "case " << number << ", row " << row;
      RecordProperty("error", std::to_string(error));
    }
  }

  Golden golden_{name()};
  ArchGolden model_{name()};
};

TEST_P(PromptModules, AreWhatTransformersComputes) {
  std::vector<Request> requests;
  for (int number = 0; number < kCases; ++number) requests.push_back(golden_.request(number));
  for (const int step_tokens : {512, 7}) {
    Loop loop(model_.checkpoint(), backend(), step_tokens);
    const Loop::Answer first = loop.run({requests[0]})[0];
    check(first, 0);
    EXPECT_EQ(first.cached, 0);
    const std::vector<Loop::Answer> together = loop.run(requests), again = loop.run(requests);
    for (int number = 0; number < kCases; ++number) {
      check(together[static_cast<size_t>(number)], number);
      check(again[static_cast<size_t>(number)], number);
      int modules = 0;
      for (const PromptModule& module : requests[static_cast<size_t>(number)].modules) modules += module.tokens;
      EXPECT_GE(again[static_cast<size_t>(number)].cached, modules);
    }
    EXPECT_GE(together[0].cached, 19 + 5 + 32 + 13);
    EXPECT_EQ(together[1].cached, 0);
  }
}

// With one module that begins the text, tokens see what they see in the plain prompt.
TEST_P(PromptModules, OneAtTheStartIsThePlainPrompt) {
  Request request = golden_.request(2), plain = request;
  plain.modules.clear();
  Loop loop(model_.checkpoint(), backend(), 512);
  const Loop::Answer with = loop.run({request})[0], without = loop.run({plain})[0];
  EXPECT_EQ(with.tokens, without.tokens);
  EXPECT_EQ(without.cached, 0) << "blocks of modules are found by prompts with modules only";
  if (backend() != "cuda") {
    EXPECT_EQ(with.logits, without.logits);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PromptModules,
                         ::testing::Combine(::testing::ValuesIn(architectures()),
                                            ::testing::ValuesIn(golden_backends())),
                         [](const auto& info) { return test_name(std::get<0>(info.param), std::get<1>(info.param)); });

// Models that refuse modules say why.
TEST(PromptModulesOf, ModelsThatCannotHaveThemAreRefused) {
  const std::map<std::string, std::string> reasons = {{"bloom", "it has biases by distance"},
                                                      {"gemma2", "it has layers with a sliding window"},
                                                      {"mamba", "it has recurrent layers"},
                                                      {"deepseek_v32", "one of its layers is no plain attention"},
                                                      {"phi3-longrope", "its rotation depends on the prompt's length"}};
  int seen = 0;
  for (const auto& [name, reason] : reasons) {
    if (!std::filesystem::exists(arch_goldens() / name)) continue;
    ++seen;
    const ArchGolden golden(name);
    EngineOptions options;
    options.model = golden.checkpoint();
    options.kv_cache_memory_bytes = 16 << 20;
    ThreadPool pool(2);
    EXPECT_EQ(load_model(options, pool).plan.shape.no_modules, reason) << name;
  }
  EXPECT_GE(seen, 3);
}

}  // namespace
}  // namespace sluice::prompt_modules_test
