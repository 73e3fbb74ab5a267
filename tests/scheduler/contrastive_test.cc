// Contrastive search on the fake model: the texts do not depend on memory, on chunks or on other requests, and are
// those of the plainest search.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "scheduler/fake_model.h"
#include "scheduler/requests.h"

namespace sluice::contrastive_test {
namespace {

constexpr int kVocab = 12;
constexpr TokenId kEnd = 3;

// How like each other two hidden states are. Those of the fake model are its states.
float likeness(uint64_t a, uint64_t b) { return static_cast<float>(mix(a, b) % 1000) / 1000.0f; }

std::vector<TokenId> plain_search(const Request& request) {
  std::vector<uint64_t> states;
  uint64_t state = 0;
  for (const TokenId token : request.prompt) states.push_back(state = extend_state(state, token));
  std::vector<TokenId> output;
  const double alpha = request.sampling.penalty_alpha;
  while (static_cast<int>(output.size()) < *request.sampling.max_tokens) {
    const std::vector<TokenLogprob> ranked = ranked_tokens(state, kVocab);
    double best = -10;
    TokenId chosen = 0;
    for (int i = 0; i < request.sampling.top_k; ++i) {
      const uint64_t next = extend_state(state, ranked[static_cast<size_t>(i)].id);
      float similarity = -1;
      for (const uint64_t earlier : states) similarity = std::max(similarity, likeness(earlier, next));
      const double score = (1 - alpha) * std::exp(double{ranked[static_cast<size_t>(i)].logprob}) - alpha * similarity;
      if (score > best) best = score, chosen = ranked[static_cast<size_t>(i)].id;
    }
    output.push_back(chosen);
    states.push_back(state = extend_state(state, chosen));
    if (chosen == kEnd) break;
  }
  return output;
}

// What the engine does with hidden states: it keeps those that are new, and compares those of candidates.
class FakeStates {
 public:
  explicit FakeStates(int rows) : rows_(static_cast<size_t>(rows)) {}

  void take(const ScheduledBatch& step, const std::vector<uint64_t>& states, std::vector<StepResult>& results) {
    for (size_t i = 0; i < step.parts.size(); ++i) {
      const ScheduledBatch::Part& part = step.parts[i];
      const RequestState& request = *part.sequence->request;
      if (!request.contrastive) continue;
      EXPECT_TRUE(step.batch.wants_hidden);
      const int known = part.sequence->known(), text = known - (request.contrastive->begun() ? 1 : 0);
      const std::vector<int32_t>& rows = request.hidden.rows;
      for (int position = part.first; position < part.first + part.tokens; ++position) {
        const uint64_t state = states[static_cast<size_t>(step.batch.query_start[i] + position - part.first)];
        if (position < text) {
          rows_.at(static_cast<size_t>(rows.at(static_cast<size_t>(position)))) = state;
          continue;
        }
        const size_t at = rows.size() - request.choices.size() + static_cast<size_t>(part.sequence->task.choice);
        rows_.at(static_cast<size_t>(rows.at(at))) = state;
        results[i].similarity = -1;
        for (int earlier = 0; earlier < text; ++earlier) {
          const uint64_t other = rows_.at(static_cast<size_t>(rows.at(static_cast<size_t>(earlier))));
          results[i].similarity = std::max(results[i].similarity, likeness(other, state));
        }
      }
    }
  }

 private:
  std::vector<uint64_t> rows_;
};

struct Place {
  int blocks = 400;
  int max_num_seqs = 64;
  int max_num_batched_tokens = 64;
  int state_slots = 0;
  int hidden_rows = 1000;
  std::string policy = "fcfs";
};

Request contrastive_request(int prompt, int top_k, double alpha, int max_tokens) {
  Request r = numbered_request(prompt, max_tokens, 100 + prompt);
  r.sampling.penalty_alpha = alpha;
  r.sampling.top_k = top_k;
  return r;
}

std::map<RequestId, std::vector<TokenId>> run(const Place& place, const std::vector<Request>& requests,
                                              uint64_t* preemptions = nullptr) {
  SchedulerOptions o;
  o.max_num_seqs = place.max_num_seqs;
  o.max_num_batched_tokens = place.max_num_batched_tokens;
  o.max_model_len = 48;
  o.block_size = 4;
  o.blocks = place.blocks;
  o.state_slots = place.state_slots;
  o.hidden_rows = place.hidden_rows;
  o.policy = place.policy;
  o.eos_token_ids = {kEnd};
  Scheduler scheduler(o);
  FakeModel model(o.blocks, o.block_size, kVocab, o.state_slots);
  FakeStates hidden(o.hidden_rows);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(scheduler.queue_limit().try_enter(1, static_cast<int64_t>(requests[i].prompt.size())));
    scheduler.add(i, requests[i]);
  }
  std::map<RequestId, std::vector<TokenId>> outputs;
  size_t ends = 0;
  for (int steps = 0; !scheduler.idle(); ++steps) {
    if (steps > 5000) {
      ADD_FAILURE() << "no end";
      break;
    }
    ScheduledBatch step = scheduler.next();
    if (step.batch.empty()) continue;
    const std::vector<uint64_t> states = model.forward(step, scheduler.block_pool(), {});
    std::vector<SampleResult> samples = model.sample(step, states);
    std::vector<StepResult> results = step_results(step, samples);
    hidden.take(step, states, results);
    scheduler.commit(std::move(step), results);
    for (SequenceEvent& event : scheduler.drain()) {
      EXPECT_EQ(event.index, 0);
      auto& output = outputs[event.request];
      output.insert(output.end(), event.tokens.begin(), event.tokens.end());
      EXPECT_EQ(event.usage.completion_tokens, static_cast<int>(output.size()));
      if (!event.finish) continue;
      EXPECT_NE(event.finish->reason, FinishReason::kError) << event.finish->message;
      ++ends;
    }
  }
  EXPECT_EQ(ends, requests.size());
  EXPECT_EQ(scheduler.block_pool().stats().used, 0);
  EXPECT_EQ(scheduler.stats().running + scheduler.stats().waiting, 0);
  if (preemptions != nullptr) *preemptions = scheduler.stats().preemptions;
  return outputs;
}

std::vector<Request> several() {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(contrastive_request(5 + 3 * i, 2 + i % 4, 0.2 + 0.15 * i, 8 + i));
  requests.push_back(numbered_request(9, 12, 500));  // one that samples
  return requests;
}

TEST(ContrastiveSearch, IsThePlainestSearch) {
  const std::vector<Request> requests = several();
  auto outputs = run({}, requests);
  for (size_t i = 0; i + 1 < requests.size(); ++i) EXPECT_EQ(outputs[i], plain_search(requests[i])) << i;
}

TEST(ContrastiveSearch, DoesNotDependOnMemoryOrChunks) {
  const auto alone = run({}, several());
  EXPECT_EQ(run({.max_num_batched_tokens = 7}, several()), alone);
  EXPECT_EQ(run({.max_num_seqs = 6}, several()), alone);
  EXPECT_EQ(run({.state_slots = 80}, several()), alone) << "recurrent layers";
  uint64_t preemptions = 0;
  EXPECT_EQ(run({.blocks = 24}, several(), &preemptions), alone);
  EXPECT_GT(preemptions, 0u);
  // There is room for the longest text, but not for two candidates of it.
  EXPECT_EQ(run({.blocks = 12, .max_num_seqs = 6}, several(), &preemptions), alone);
  EXPECT_GT(preemptions, 0u);
  // The texts take turns: there is room for the hidden states of one.
  EXPECT_EQ(run({.hidden_rows = 40}, several()), alone);
  EXPECT_EQ(run({.blocks = 12, .max_num_seqs = 6, .hidden_rows = 40}, several()), alone);
  std::vector<Request> ranked = several();
  for (size_t i = 0; i < ranked.size(); ++i) ranked[i].priority = static_cast<int>(ranked.size() - i);
  EXPECT_EQ(run({.blocks = 12, .max_num_seqs = 6, .hidden_rows = 40, .policy = "priority"}, ranked), alone);
}

// Requests come, are cancelled and stopped at random, where memory is short in one way or another.
TEST(ContrastiveSearch, TextsAreTheSameInDisorder) {
  int whole = 0;
  uint64_t preemptions = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
    SchedulerOptions o;
    o.max_model_len = 48, o.block_size = 4;
    o.blocks = 12 + below(30);
    o.max_num_seqs = 6 + below(12);
    o.max_num_batched_tokens = 6 + below(60);
    o.max_logit_rows = 6 + below(12);
    o.hidden_rows = 40 + below(100);
    o.state_slots = below(3) == 0 ? o.max_num_seqs + below(8) : 0;
    o.policy = below(2) == 0 ? "fcfs" : "priority";
    o.eos_token_ids = {kEnd};
    Scheduler scheduler(o);
    FakeModel model(o.blocks, o.block_size, kVocab, o.state_slots);
    FakeStates hidden(o.hidden_rows);
    std::map<RequestId, Request> requests;
    std::map<RequestId, std::vector<TokenId>> outputs;
    RequestId next = 0;
    for (int steps = 0; next < 12 || !scheduler.idle(); ++steps) {
      ASSERT_LT(steps, 5000) << "no end";
      while (next < 12 && below(4) == 0) {
        Request request = below(4) == 0 ? numbered_request(1 + below(20), 1 + below(20), below(1000))
                                        : contrastive_request(1 + below(20), 2 + below(5), below(11) / 10.0 + 0.01, 12);
        request.sampling.penalty_alpha = std::min(1.0, request.sampling.penalty_alpha);
        request.priority = below(3);
        ASSERT_TRUE(scheduler.queue_limit().try_enter(1, static_cast<int64_t>(request.prompt.size())));
        requests[next] = request;
        scheduler.add(next++, request);
      }
      if (below(40) == 0 && next > 0) scheduler.cancel(static_cast<RequestId>(below(static_cast<int>(next))));
      if (below(40) == 0 && next > 0) scheduler.finish(static_cast<RequestId>(below(static_cast<int>(next))), 0);
      ScheduledBatch step = scheduler.next();
      if (!step.batch.empty()) {
        const std::vector<uint64_t> states = model.forward(step, scheduler.block_pool(), {});
        std::vector<SampleResult> samples = model.sample(step, states);
        std::vector<StepResult> results = step_results(step, samples);
        hidden.take(step, states, results);
        if (below(60) == 0) scheduler.cancel(static_cast<RequestId>(below(static_cast<int>(next))));
        scheduler.commit(std::move(step), results);
      }
      for (SequenceEvent& event : scheduler.drain()) {
        auto& output = outputs[event.request];
        output.insert(output.end(), event.tokens.begin(), event.tokens.end());
        if (!event.finish) continue;
        ASSERT_NE(event.finish->reason, FinishReason::kError) << event.finish->message;
        if (event.finish->reason != FinishReason::kAbort) ++whole;
      }
    }
    for (const auto& [id, output] : outputs) {
      if (requests[id].sampling.penalty_alpha == 0) continue;
      const std::vector<TokenId> want = plain_search(requests[id]);
      ASSERT_LE(output.size(), want.size());
      ASSERT_TRUE(std::equal(output.begin(), output.end(), want.begin())) << id;
    }
    ASSERT_EQ(scheduler.block_pool().stats().used, 0);
    preemptions += scheduler.stats().preemptions;
  }
  EXPECT_GT(whole, 900);
  EXPECT_GT(preemptions, 100u);
}

// The prompt is computed again although the prefix cache has it, as its hidden states are gone.
TEST(ContrastiveSearch, ComputesItsPromptAgain) {
  std::vector<Request> twice = {contrastive_request(20, 4, 0.6, 10)};
  twice.push_back(twice[0]);
  auto outputs = run({.hidden_rows = 40}, twice);
  EXPECT_EQ(outputs[0], plain_search(twice[0]));
  EXPECT_EQ(outputs[1], outputs[0]);
}

// Texts end where there is no more room for hidden states.
TEST(ContrastiveSearch, EndsAtTheLimitOfItsMemory) {
  Request request = contrastive_request(20, 4, 0.6, 10);
  request.sampling.max_tokens.reset();
  request.sampling.ignore_eos = true;
  auto outputs = run({.hidden_rows = 31}, {request});
  EXPECT_EQ(outputs[0].size(), 7u) << "31 rows, 20 tokens of prompt, 4 candidates";
}

TEST(ContrastiveSearch, ReleasesEverythingWhenItIsCancelledOrStopped) {
  SchedulerOptions o;
  o.max_model_len = 48, o.block_size = 4, o.blocks = 100, o.hidden_rows = 50;
  for (const bool cancel : {true, false}) {
    Scheduler scheduler(o);
    FakeModel model(o.blocks, o.block_size, kVocab);
    FakeStates hidden(o.hidden_rows);
    for (RequestId id = 1; id <= 2; ++id) {  // the second one needs the rows of the first
      ASSERT_TRUE(scheduler.queue_limit().try_enter(1, 20));
      scheduler.add(id, contrastive_request(20, 4, 0.6, 10));
      for (int i = 0; i < 3; ++i) {
        ScheduledBatch step = scheduler.next();
        ASSERT_FALSE(step.batch.empty());
        const std::vector<uint64_t> states = model.forward(step, scheduler.block_pool(), {});
        std::vector<SampleResult> samples = model.sample(step, states);
        std::vector<StepResult> results = step_results(step, samples);
        hidden.take(step, states, results);
        if (i == 2 && cancel) scheduler.cancel(id);
        if (i == 2 && !cancel) scheduler.finish(id, 0);
        scheduler.commit(std::move(step), results);
      }
      EXPECT_EQ(scheduler.block_pool().stats().used, 0);
      EXPECT_TRUE(scheduler.idle());
    }
  }
}

TEST(ContrastiveSearch, IsRefusedWithoutRoom) {
  SchedulerOptions o;
  o.max_model_len = 48, o.block_size = 4, o.blocks = 100;
  const auto refused = [&](const Request& request) -> std::string {
    try {
      check_fits(request, o);
    } catch (const Error& e) {
      return e.param;
    }
    return "taken";
  };
  EXPECT_EQ(refused(contrastive_request(20, 4, 0.6, 10)), "penalty_alpha") << "no rows at all";
  o.hidden_rows = 33;
  EXPECT_EQ(refused(contrastive_request(20, 4, 0.6, 10)), "max_tokens");
  EXPECT_EQ(refused(contrastive_request(30, 4, 0.6, 10)), "prompt");
  o.hidden_rows = 34;
  EXPECT_EQ(refused(contrastive_request(20, 4, 0.6, 10)), "taken");
  o.max_num_seqs = 3;
  EXPECT_EQ(refused(contrastive_request(20, 4, 0.6, 9)), "top_k");
}

}  // namespace
}  // namespace sluice::contrastive_test
