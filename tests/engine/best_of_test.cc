// best_of: which choices are handed on, and that they are those of a request for all of them.
#include "engine/best_of.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/collect.h"

namespace sluice::best_of_test {
namespace {

using testing::Choice;
using testing::Collector;

Event token(int index, TokenId id, float logprob) {
  Event event;
  event.index = index;
  event.deltas.push_back(TextDelta{std::to_string(id) + " "});
  event.tokens = {id};
  event.logprobs = {{.token = {.id = id, .logprob = logprob, .rank = 1}, .top = {}}};
  return event;
}

Event end(int index, bool last) {
  Event event;
  event.index = index;
  event.finish.emplace();
  event.last = last;
  return event;
}

TEST(BestOf, HandsOnTheChoicesWithTheBestMean) {
  for (const bool keeps : {false, true}) {
    std::vector<Event> got;
    const EventSink sink = best_of([&](Event event) { got.push_back(std::move(event)); }, 2, 3, keeps);
    Event first = token(0, 1, -3.0f);
    first.prompt_logprobs.resize(4);
    sink(std::move(first));
    sink(token(1, 2, -1.0f));
    sink(token(2, 3, -0.5f));
    sink(token(1, 4, -1.2f));
    sink(token(2, 5, -1.9f));  // a mean of -1.2, below -1.1
    sink(end(2, false));
    sink(end(0, false));
    EXPECT_TRUE(got.empty());
    sink(end(1, true));
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0].tokens, (std::vector<TokenId>{2, 4}));
    EXPECT_EQ(event_text(got[0]), "2 4 ");
    EXPECT_EQ(got[1].tokens, (std::vector<TokenId>{3, 5}));
    EXPECT_EQ(got[0].index, 0);
    EXPECT_EQ(got[1].index, 1);
    EXPECT_EQ(got[0].prompt_logprobs.size(), 4u) << "of the prompt, whichever choice is the best";
    EXPECT_EQ(got[0].logprobs.size(), keeps ? 2u : 0u);
    EXPECT_FALSE(got[0].last);
    EXPECT_TRUE(got[1].last);
    EXPECT_TRUE(got[1].finish);
  }
}

TEST(BestOf, IsTheBestOfAllChoices) {
  EngineOptions o;
  o.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  o.threads = 2;
  o.max_model_len = 128;
  const auto engine = Engine::load(o);
  Request request;
  request.prompt = engine->tokenize(engine->render_chat(ChatPrompt::user("Name a village.")), false);
  request.sampling.temperature = 1.5;
  request.sampling.seed = 3;
  request.sampling.max_tokens = 12;
  request.sampling.logprobs = 0;
  request.n = 6;
  std::vector<Choice> all;
  {
    Collector collector(*engine);
    all = collector.answer(collector.submit(request));
  }
  const auto mean = [](const Choice& choice) {
    double sum = 0.0;
    for (const TokenLogprobs& one : choice.logprobs) sum += static_cast<double>(one.token.logprob);
    return sum / static_cast<double>(choice.logprobs.size());
  };
  std::ranges::stable_sort(all, std::greater<>(), mean);
  request.n = 2;
  request.best_of = 6;
  Collector collector(*engine);
  const std::vector<Choice> best = collector.answer(collector.submit(request));
  ASSERT_EQ(best.size(), 2u);
  for (size_t i = 0; i < best.size(); ++i) {
    EXPECT_EQ(best[i].tokens, all[i].tokens);
    EXPECT_EQ(best[i].text, all[i].text);
  }
  EXPECT_NE(all.front().tokens, all.back().tokens);
}

}  // namespace
}  // namespace sluice::best_of_test
