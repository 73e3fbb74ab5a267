// Prompts with modules on the real engine: what transformers computes, whatever is cached, and which requests are
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/json.h"
#include "engine/collect.h"
#include "sluice/context.h"
#include "sluice/error.h"

namespace sluice::prompt_modules_test {
namespace {

using namespace testing;  // engine/collect.h
using ::testing::HasSubstr;

EngineOptions options() {
  EngineOptions o;
  o.model = demo_model();
  o.kv_cache_memory_bytes = 64 << 20;
  o.threads = 2;
  o.dtype = "float32";
  o.deterministic = true;
  return o;
}

Engine& shared_engine() {
  static const std::unique_ptr<Engine> engine = Engine::load(options());
  return *engine;
}

struct Text {
  std::string text;
  int position = -1;
};

Request request_of(const std::vector<Text>& modules, const std::string& own, int max_tokens = 8) {
  Request request;
  for (const Text& module : modules) {
    const std::vector<TokenId> tokens = shared_engine().tokenize(module.text);
    request.modules.push_back({.tokens = static_cast<int>(tokens.size()), .position = module.position});
    request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
  }
  const std::vector<TokenId> tokens = shared_engine().tokenize(own);
  request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 5;
  return request;
}

std::string document(int number, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += "On day " + std::to_string(i) + " of book " + std::to_string(number) + " Finn baked bread. ";
  }
  return text;
}

// Some of three documents at fixed positions.
Request combination(const std::vector<int>& documents, const std::string& own, int max_tokens = 8) {
  std::vector<Text> modules;
  for (const int number : documents) modules.push_back({document(number, 4 + number), number * 400});
  return request_of(modules, own, max_tokens);
}

int module_tokens(const Request& request) {
  int tokens = 0;
  for (const PromptModule& module : request.modules) tokens += module.tokens;
  return tokens;
}

void expect_same(const Choice& a, const Choice& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_EQ(a.logprobs[i].token.logprob, b.logprobs[i].token.logprob) << "token " << i;
  }
}

std::string refusal(Engine& engine, const Request& request) {
  try {
    engine.submit(request, [](const Event&) {});
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
    return e.what();
  }
  return "taken";
}

TEST(PromptModules, AreWhatTransformersComputes) {
  const auto path = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/goldens/prompt_modules/minnow.json";
  std::ifstream file(path);
  const Json cases = parse_json(std::string{std::istreambuf_iterator<char>(file), {}});
  EngineOptions chunks = options();
  chunks.max_num_batched_tokens = 7;
  const auto chunked = Engine::load(chunks);
  double worst = 0;
  for (Engine* engine : {&shared_engine(), chunked.get()}) {
    for (const Json& one : cases) {
      std::vector<Text> modules;
      for (const Json& module : one["modules"]) modules.push_back({module["prompt"], module["position"]});
      const Request request = request_of(modules, one["prompt"]);
      EXPECT_EQ(request.prompt.size(), one["tokens"].get<size_t>());
      const Choice answer = run_alone(*engine, request);
      EXPECT_EQ(answer.tokens, one["generated"].get<std::vector<TokenId>>());
      ASSERT_EQ(answer.logprobs.size(), one["top"].size());
      for (size_t i = 0; i < answer.logprobs.size(); ++i) {
        for (size_t k = 0; k < one["top"][i].size(); ++k) {
          const TokenLogprob& top = answer.logprobs[i].top[k];
          EXPECT_EQ(top.id, one["top"][i][k][0].get<TokenId>());
          worst = std::max(worst, std::abs(top.logprob - one["top"][i][k][1].get<double>()));
        }
      }
    }
  }
  EXPECT_LE(worst, 2e-4);
  RecordProperty("error", std::to_string(worst));
}

TEST(PromptModules, AreFoundInAnyOrderAndCombination) {
  const auto engine = Engine::load(options());
  const Request all = combination({0, 1, 2}, "What did Finn do?");
  EXPECT_EQ(run_alone(*engine, all).usage.cached_tokens, 0);
  for (const std::vector<int>& documents : std::vector<std::vector<int>>{{2, 0, 1}, {0, 2}, {1}, {2}}) {
    const Request request = combination(documents, "Who is Finn?");
    const Choice answer = run_alone(*engine, request);
    EXPECT_GE(answer.usage.cached_tokens, module_tokens(request));
    EXPECT_EQ(answer.usage.prompt_tokens, static_cast<int>(request.prompt.size()));
    expect_same(answer, run_alone(shared_engine(), request));
  }
  EXPECT_EQ(metric(*engine, "sluice:prompt_modules"), 7) << "those that were cached";
  // The own text behind the same modules is found, too, from its first whole block on.
  Request longer = combination({0, 1}, document(9, 6));
  run_alone(*engine, longer);
  EXPECT_GE(run_alone(*engine, longer).usage.cached_tokens, static_cast<int>(longer.prompt.size()) - 16);
  EXPECT_EQ(run_alone(*engine, combination({1, 2}, document(9, 6))).usage.cached_tokens,
            module_tokens(combination({1, 2}, "a")))
      << "other modules before the same text";
  // Elsewhere, in other bytes or for another tenant it is another module.
  Request moved = combination({1}, "Who is Finn?");
  moved.modules[0].position = 7;
  EXPECT_EQ(run_alone(*engine, moved).usage.cached_tokens, 0);
  Request salted = combination({1}, "Who is Finn?");
  salted.cache_salt = "another";
  EXPECT_EQ(run_alone(*engine, salted).usage.cached_tokens, 0);
  engine->reset_prefix_cache();
  EXPECT_EQ(run_alone(*engine, all).usage.cached_tokens, 0);
}

TEST(PromptModules, OneAtTheStartIsThePlainPrompt) {
  for (const int sentences : {1, 5, 9}) {
    Request request = request_of({{document(3, sentences)}}, "And then", 24);
    request.sampling.repetition_penalty = 1.3;
    Request plain = request;
    plain.modules.clear();
    expect_same(run_alone(shared_engine(), request), run_alone(shared_engine(), plain));
  }
}

TEST(PromptModules, DoNotDependOnChunksBatchesPreemptionOrEviction) {
  std::vector<Request> requests;
  const std::vector<std::vector<int>> documents = {{0, 1, 2}, {2, 1}, {0}, {1, 0}};
  for (int i = 0; i < 12; ++i) {
    requests.push_back(combination(documents[static_cast<size_t>(i) % 4], document(20 + i, 1 + i % 3), 20 + i));
    if (i % 4 == 0) requests.back().n = 2;
    if (i % 5 == 4) requests.back().modules.clear();
  }
  std::vector<Choice> expected;
  for (Request request : requests) {
    request.n = 1;
    expected.push_back(run_alone(shared_engine(), request));
  }
  EngineOptions chunks = options(), small = options(), none = options(), ngram = options();
  chunks.max_num_batched_tokens = 7;
  small.max_model_len = 1100;
  small.kv_cache_memory_bytes = 4608 << 10;
  none.enable_prefix_caching = false;
  ngram.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1})";
  for (const EngineOptions& o : {options(), chunks, small, none, ngram}) {
    const auto engine = Engine::load(o);
    for (int round = 0; round < 2; ++round) {
      Collector collector(*engine);
      for (const Request& request : requests) collector.submit(request);
      for (size_t i = 0; i < requests.size(); ++i) {
        for (const Choice& choice : collector.answer(i))
          EXPECT_EQ(choice.tokens, expected[i].tokens) << "request " << i;
      }
    }
    if (o.max_model_len == 1100) {
      EXPECT_GT(metric(*engine, "vllm:num_preemptions"), 0);
    }
  }
}

// What others are about to compute is not computed again.
TEST(PromptModules, AreComputedOnceForRequestsThatComeTogether) {
  EngineOptions o = options();
  o.max_num_batched_tokens = 16;
  const auto engine = Engine::load(o);
  Collector collector(*engine);
  for (int i = 0; i < 4; ++i) collector.submit(combination({0, 1}, "What happened on day " + std::to_string(i) + "?"));
  const int modules = module_tokens(combination({0, 1}, "a"));
  int missed = 0;
  for (size_t i = 0; i < 4; ++i) missed += collector.answer(i)[0].usage.cached_tokens < modules;
  EXPECT_EQ(missed, 1);
}

TEST(PromptModules, OfACancelledRequestAreComputedByTheNextOne) {
  EngineOptions o = options();
  o.max_num_batched_tokens = 4;
  const auto engine = Engine::load(o);
  const Request request = combination({0, 1, 2}, "What did Finn do?");
  Collector collector(*engine);
  const size_t first = collector.submit(request), second = collector.submit(request);
  engine->cancel(collector.id(first));
  EXPECT_EQ(collector.answer(first)[0].finish->reason, FinishReason::kAbort);
  EXPECT_EQ(collector.answer(second)[0].tokens, run_alone(shared_engine(), request).tokens);
}

// Keys and values of all types are copied as they are.
TEST(PromptModules, WorkWithEveryTypeOfCache) {
  const Request request = combination({0, 1, 2}, "What did Finn do?");
  const Choice exact = run_alone(shared_engine(), request);
  for (const char* type : {"bfloat16", "fp8", "int8"}) {
    EngineOptions o = options();
    o.kv_cache_dtype = type;
    const auto engine = Engine::load(o);
    const Choice first = run_alone(*engine, request), again = run_alone(*engine, request);
    expect_same(first, again);
    EXPECT_NEAR(first.logprobs[0].token.logprob, exact.logprobs[0].token.logprob, 0.2) << type;
  }
}

TEST(PromptModules, AreRefusedWhereTheyCannotWork) {
  Engine& engine = shared_engine();
  const Request good = request_of({{"The sun is red.", 0}, {"The sea is blue.", 40}}, "What is red?");
  const auto with = [&](void (*change)(Request&)) {
    Request request = good;
    change(request);
    return refusal(engine, request);
  };
  EXPECT_THAT(with([](Request& r) { r.modules[1].position = 2; }),
              HasSubstr("Invalid 'prompt_modules[1].position': positions 2 to "));
  EXPECT_THAT(with([](Request& r) { r.modules[0].position = 41; }),
              HasSubstr("overlap those of prompt_modules[1], 40"));
  EXPECT_THAT(with([](Request& r) { r.modules[1].position = -2; }), HasSubstr("Invalid 'prompt_modules[1].position'"));
  EXPECT_THAT(with([](Request& r) { r.modules[1].position = 2147483647; }),
              HasSubstr("Invalid 'prompt_modules[1].position'"));
  EXPECT_THAT(with([](Request& r) { r.modules[1].position = 2047; }), HasSubstr("maximum context length is 2048"));
  EXPECT_THAT(with([](Request& r) { r.modules[0].tokens = 0; }), HasSubstr("Invalid 'prompt_modules[0].prompt'"));
  EXPECT_THAT(with([](Request& r) { r.modules[1].tokens = 1 << 20; }), HasSubstr("behind 'prompt_modules'"));
  EXPECT_THAT(with([](Request& r) { r.modules.resize(1000, {.tokens = 1}); }), HasSubstr("at most 128"));
  EXPECT_THAT(with([](Request& r) { r.sampling.prompt_logprobs = 0; }), HasSubstr("Invalid 'prompt_logprobs'"));
  EXPECT_THAT(with([](Request& r) { r.session = "a"; }), HasSubstr("Invalid 'session_id'"));
  EXPECT_THAT(with([](Request& r) { r.kv_transfer.emplace(); }), HasSubstr("Invalid 'kv_transfer_params'"));
  EXPECT_THAT(with([](Request& r) { r.context_shift = true; }), HasSubstr("Invalid 'context_shift'"));
  EXPECT_THAT(with([](Request& r) { r.truncate_prompt = 5; }), HasSubstr("Invalid 'truncate_prompt_tokens'"));
  EngineOptions o = options();
  o.speculative_config = dump_json({{"model", draft_model()}, {"num_speculative_tokens", 4}});
  EXPECT_THAT(refusal(*Engine::load(o), good), HasSubstr("draft model"));
  // One module less, and the same request is taken.
  EXPECT_EQ(run_alone(engine, good).usage.prompt_tokens, static_cast<int>(good.prompt.size()));
}

TEST(PromptModules, MayNeedMoreBlocksThanThereAre) {
  EngineOptions o = options();
  o.max_model_len = 256;
  o.kv_cache_memory_bytes = 256 * 4096;  // one context
  const auto engine = Engine::load(o);
  Request request;
  for (int i = 0; i < 60; ++i) {
    request.modules.push_back({.tokens = 1});
    request.prompt.push_back(300 + i);
  }
  request.prompt.push_back(300);
  request.sampling.max_tokens = 195;
  EXPECT_THAT(refusal(*engine, request), HasSubstr("Invalid 'prompt_modules': with them the request may need"));
  request.sampling.max_tokens = 1;
  request.modules.resize(4);
  EXPECT_EQ(run_alone(*engine, request).usage.completion_tokens, 1);
}

}  // namespace
}  // namespace sluice::prompt_modules_test
