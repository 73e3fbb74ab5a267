// Thoughts of the real engine: budgets, grammars behind them, counts, and special tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "engine/collect.h"
#include "engine/special_text.h"
#include "sluice/error.h"

namespace sluice::reasoning_test {
namespace {

using namespace testing;  // engine/collect.h

constexpr TokenId kThink = 8180, kEndThink = 8181, kVision = 8186;  // special tokens of the demo model

Engine& shared_engine() {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions o;
    o.model = demo_model();
    o.kv_cache_memory_bytes = int64_t{64} << 20;
    o.threads = 2;
    o.deterministic = true;  // batch-invariant even if a GPU is the default backend
    o.reasoning_parser = "qwen3";
    return Engine::load(o);
  }();
  return *engine;
}

// A request whose prompt has opened a thought.
Request thinking(int max_tokens = 40) {
  const Engine& engine = shared_engine();
  Request request;
  request.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user("Count from 3 to 12.")) + "<think>\n", false);
  request.sampling.max_tokens = max_tokens;
  request.sampling.seed = 7;
  request.reasoning_syntax = "qwen3";
  request.thought = ThoughtStart::kOpen;
  return request;
}

size_t place(const std::vector<TokenId>& tokens, TokenId token) {
  return static_cast<size_t>(std::ranges::find(tokens, token) - tokens.begin());
}

TEST(Thinking, TheModelIsDescribed) {
  EXPECT_EQ(shared_engine().model().reasoning_syntax, "qwen3");
  EXPECT_EQ(shared_engine().model().thinking_switch, "");
  EXPECT_FALSE(shared_engine().model().template_takes_effort);
}

TEST(Thinking, UnknownParsersAreRefused) {
  EngineOptions o;
  o.model = demo_model();
  o.reasoning_parser = "nothing";
  try {
    Engine::load(o);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("deepseek_r1"), std::string::npos) << e.what();
  }
}

TEST(Thinking, CallsAreAlwaysTheModelsChoice) {
  EngineOptions o;
  o.model = demo_model();
  o.enable_auto_tool_choice = false;
  EXPECT_THROW(Engine::load(o), Error);
}

TEST(Thinking, TheBudgetForcesTheEnd) {
  for (const int budget : {0, 1, 7}) {
    Request request = thinking();
    request.thinking_token_budget = budget;
    request.n = 3;
    Collector collector(shared_engine());
    const size_t at = collector.submit(request);
    for (const Choice& choice : collector.answer(at)) {
      EXPECT_LE(place(choice.tokens, kEndThink), static_cast<size_t>(budget));
      EXPECT_EQ(choice.usage.reasoning_tokens, static_cast<int>(place(choice.tokens, kEndThink)));
    }
  }
}

TEST(Thinking, TheBudgetLeavesOtherTokensAlone) {
  Request request = thinking();
  request.sampling.ignore_eos = true;
  const Choice without = run_alone(shared_engine(), request);
  request.thinking_token_budget = 5;
  const Choice with = run_alone(shared_engine(), request);
  ASSERT_EQ(with.tokens.size(), 40u);
  for (size_t i = 0; i < std::min(place(without.tokens, kEndThink), size_t{5}); ++i) {
    EXPECT_EQ(with.tokens[i], without.tokens[i]);
  }
  request.sampling.ignore_eos = false;
  request.sampling.min_tokens = 30;
  EXPECT_GE(run_alone(shared_engine(), request).tokens.size(), 30u);
  request.sampling.ignore_eos = true;
  request.sampling.min_tokens = 0;
  request.thinking_token_budget = 1000;
  EXPECT_EQ(run_alone(shared_engine(), request).tokens, without.tokens);
}

TEST(Thinking, BudgetsAndGrammarsSurvivePreemption) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request request = thinking(300);
    request.thinking_token_budget = 30 + i;
    request.sampling.seed = i;
    request.sampling.ignore_eos = true;
    request.sampling.logit_bias = {{kEndThink, -100.0f}};  // only the budget ends the thought
    if (i % 2 == 0) request.grammar = GrammarSpec{"regex", "[a-z ]{200}", "guided_regex"};
    requests.push_back(request);
  }
  EngineOptions tight;
  tight.model = demo_model();
  tight.threads = 2;
  tight.deterministic = true;
  tight.max_model_len = 640;
  tight.block_size = 8;
  tight.kv_cache_memory_bytes = 700 * 2048;  // 700 tokens: sequences must be preempted
  const auto engine = Engine::load(tight);
  Collector collector(*engine);
  for (const Request& request : requests) collector.submit(request);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Choice& choice = collector.answer(i)[0];
    EXPECT_EQ(choice.tokens, run_alone(shared_engine(), requests[i]).tokens) << i;
    EXPECT_EQ(place(choice.tokens, kEndThink), static_cast<size_t>(30 + i));
    EXPECT_EQ(choice.usage.reasoning_tokens, static_cast<int>(30 + i));
  }
  EXPECT_TRUE(settles(*engine, "vllm:num_requests_running", 0));
  EXPECT_GT(metric(*engine, "vllm:num_preemptions"), 0);
}

TEST(Thinking, TheBudgetWaitsForAThought) {
  Request request = thinking();
  request.thought = ThoughtStart::kMaybe;
  const std::vector<TokenId> without = run_alone(shared_engine(), request).tokens;
  request.thinking_token_budget = 0;
  EXPECT_EQ(run_alone(shared_engine(), request).tokens, without);
  request.sampling.allowed_token_ids = std::vector<TokenId>{kThink, kEndThink};
  request.sampling.logit_bias = {{kThink, 100.0f}};
  request.sampling.max_tokens = 2;
  EXPECT_EQ(run_alone(shared_engine(), request).tokens, (std::vector<TokenId>{kThink, kEndThink}));
}

TEST(Thinking, GrammarsBeginAfterThoughts) {
  for (const bool budget : {false, true}) {
    Request request = thinking(200);
    request.grammar = GrammarSpec{"regex", "[0-9]{3}", "guided_regex"};
    if (budget) request.thinking_token_budget = 4;
    if (!budget) request.sampling.logit_bias = {{kEndThink, 100.0f}};
    request.n = 2;
    Collector collector(shared_engine());
    const size_t at = collector.submit(request);
    for (const Choice& choice : collector.answer(at)) {
      EXPECT_EQ(choice.text.size(), 3u) << choice.text;
      EXPECT_EQ(choice.finish->reason, FinishReason::kStop);
      EXPECT_EQ(choice.usage.reasoning_tokens, budget ? 4 : 0);
    }
  }
}

TEST(Thinking, ClosedThoughtsHaveNoPlaceInGrammars) {
  Request request = thinking(200);
  request.thought = ThoughtStart::kClosed;
  request.grammar = GrammarSpec{"regex", "[0-9]{3}", "guided_regex"};
  const Choice choice = run_alone(shared_engine(), request);
  EXPECT_EQ(choice.text.size(), 3u);
  EXPECT_EQ(choice.usage.reasoning_tokens, 0);
}

TEST(Thinking, UnusedSpecialTokensAreHidden) {
  Request request = thinking(4);
  request.thought = ThoughtStart::kMaybe;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.allowed_token_ids = std::vector<TokenId>{kVision};
  EXPECT_EQ(run_alone(shared_engine(), request).text, "");
  request.sampling.skip_special_tokens = false;
  EXPECT_EQ(run_alone(shared_engine(), request).text.find("<|vision_start|>"), 0u);
}

TEST(Thinking, WrongRequestsAreRefused) {
  Request request = thinking();
  request.thinking_token_budget = -1;
  EXPECT_THROW(shared_engine().submit(request, [](Event) {}), Error);
  request.thinking_token_budget = 1;
  request.reasoning_syntax = "";
  EXPECT_THROW(shared_engine().submit(request, [](Event) {}), Error);
  request.thinking_token_budget.reset();
  request.reasoning_syntax = "nothing";
  EXPECT_THROW(shared_engine().submit(request, [](Event) {}), Error);
}

TEST(SpecialText, IsRemovedInEverySplit) {
  const std::string text = "a<|x|>b<|<|x|><|y|>c<|x";
  for (size_t size = 1; size <= text.size(); ++size) {
    SpecialTextFilter filter;
    filter.add("<|x|>");
    std::string shown, thought;
    const auto take = [&](std::vector<Delta>& deltas) {
      for (const Delta& delta : deltas) {
        if (const auto* d = std::get_if<TextDelta>(&delta)) shown += d->text;
        if (const auto* d = std::get_if<ReasoningDelta>(&delta)) thought += d->text;
      }
      deltas.clear();
    };
    std::vector<Delta> deltas;
    deltas.emplace_back(ReasoningDelta{"why<|"});
    for (size_t i = 0; i < text.size(); i += size) {
      deltas.emplace_back(TextDelta{text.substr(i, size)});
      filter.apply(deltas);
      take(deltas);
    }
    filter.finish(deltas);
    take(deltas);
    EXPECT_EQ(shown, "ab<|<|y|>c<|x") << size;
    EXPECT_EQ(thought, "why<|");
  }
}

}  // namespace
}  // namespace sluice::reasoning_test
