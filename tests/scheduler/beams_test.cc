// Beam search on the fake model: the texts do not depend on memory, on chunks or on other requests, and are those of
// the plainest search.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "scheduler/fake_model.h"
#include "scheduler/requests.h"

namespace sluice::beams_test {
namespace {

constexpr int kVocab = 12;
constexpr TokenId kEnd = 3;

// The tokens after a text, the likeliest first.
std::vector<TokenLogprob> tokens_after(std::span<const TokenId> text) {
  uint64_t state = 0;
  for (const TokenId token : text) state = extend_state(state, token);
  return ranked_tokens(state, kVocab);
}

struct Text {
  std::vector<TokenId> tokens;
  double score = 0.0;
};

// Searches with all tokens as candidates. The texts of all lengths compete in the end, as with EarlyStopping::kNever
// and a length penalty of 0, where no rule of thumb can end the search too early.
std::vector<Text> plain_search(const std::vector<TokenId>& prompt, int width, int most_tokens) {
  std::vector<Text> running{{prompt, 0.0}}, finished;
  for (int length = 1; length <= most_tokens; ++length) {
    std::vector<Text> all;
    for (const Text& beam : running) {
      for (const TokenLogprob& token : tokens_after(beam.tokens)) {
        Text longer = beam;
        longer.tokens.push_back(token.id);
        longer.score += static_cast<double>(token.logprob);
        all.push_back(std::move(longer));
      }
    }
    std::ranges::stable_sort(all, std::greater<>(), &Text::score);
    running.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const bool ended = length == most_tokens || all[rank].tokens.back() == kEnd;
      if (ended && rank < static_cast<size_t>(width)) finished.push_back(all[rank]);
      if (!ended && running.size() < static_cast<size_t>(width)) running.push_back(all[rank]);
    }
  }
  std::ranges::stable_sort(finished, std::greater<>(), &Text::score);
  finished.resize(std::min(finished.size(), static_cast<size_t>(width)));
  return finished;
}

struct Place {
  int blocks = 200;
  int max_num_seqs = 32;
  int max_num_batched_tokens = 64;
  int state_slots = 0;
};

Request beam_request(int prompt, int width, int n, int max_tokens) {
  Request r = numbered_request(prompt, max_tokens, 100 + prompt);
  r.beams = {.width = width, .length_penalty = 0.0, .early_stopping = EarlyStopping::kNever};
  r.n = n;
  return r;
}

// Runs requests, up to two steps at a time, and returns the output of every choice.
std::map<std::pair<RequestId, int>, std::vector<TokenId>> run(const Place& place, const std::vector<Request>& requests,
                                                              uint64_t* preemptions = nullptr) {
  SchedulerOptions o;
  o.max_num_seqs = place.max_num_seqs;
  o.max_num_batched_tokens = place.max_num_batched_tokens;
  o.max_model_len = 48;
  o.block_size = 4;
  o.blocks = place.blocks;
  o.state_slots = place.state_slots;
  o.eos_token_ids = {kEnd};
  Scheduler scheduler(o);
  FakeModel model(o.blocks, o.block_size, kVocab, o.state_slots);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(scheduler.queue_limit().try_enter(requests[i].n, static_cast<int64_t>(requests[i].prompt.size())));
    scheduler.add(i, requests[i]);
  }
  std::map<std::pair<RequestId, int>, std::vector<TokenId>> outputs;
  std::map<RequestId, int> ends;
  for (int steps = 0; !scheduler.idle(); ++steps) {
    if (steps > 5000) {
      ADD_FAILURE() << "no end";
      break;
    }
    ScheduledBatch step = scheduler.next();
    if (step.batch.empty()) continue;
    std::vector<SampleResult> samples = model.run(step, scheduler.block_pool());
    std::vector<StepResult> results = step_results(step, samples);
    scheduler.commit(std::move(step), results);
    for (SequenceEvent& event : scheduler.drain()) {
      auto& output = outputs[{event.request, event.index}];
      output.insert(output.end(), event.tokens.begin(), event.tokens.end());
      if (!event.finish) continue;
      EXPECT_NE(event.finish->reason, FinishReason::kError) << event.finish->message;
      ++ends[event.request];
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(ends[i], requests[i].n);
  EXPECT_EQ(scheduler.block_pool().stats().used, 0);
  EXPECT_EQ(scheduler.stats().running + scheduler.stats().waiting, 0);
  if (preemptions != nullptr) *preemptions = scheduler.stats().preemptions;
  return outputs;
}

std::vector<Request> several() {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(beam_request(5 + 3 * i, 2 + i % 4, 1 + i % 2, 8 + i));
  requests.push_back(numbered_request(9, 12, 500));  // one that samples
  return requests;
}

TEST(Beams, AreThoseOfThePlainestSearch) {
  const std::vector<Request> requests = several();
  const auto outputs = run({}, requests);
  for (size_t i = 0; i + 1 < requests.size(); ++i) {
    const Request& r = requests[i];
    const std::vector<Text> want = plain_search(r.prompt, r.beams->width, *r.sampling.max_tokens);
    for (int choice = 0; choice < r.n; ++choice) {
      const std::vector<TokenId>& all = want[static_cast<size_t>(choice)].tokens;
      const std::vector<TokenId> output(all.begin() + static_cast<std::ptrdiff_t>(r.prompt.size()), all.end());
      EXPECT_EQ(outputs.at({i, choice}), output) << "request " << i << ", choice " << choice;
    }
  }
}

TEST(Beams, DoNotDependOnMemoryOrChunks) {
  const auto alone = run({}, several());
  EXPECT_EQ(run({.max_num_batched_tokens = 7}, several()), alone);
  EXPECT_EQ(run({.max_num_seqs = 6}, several()), alone);
  EXPECT_EQ(run({.state_slots = 40}, several()), alone) << "recurrent layers";
  uint64_t preemptions = 0;
  EXPECT_EQ(run({.blocks = 24}, several(), &preemptions), alone);
  EXPECT_GT(preemptions, 0u);
  // There is room for the longest text, but not for two beams of it.
  EXPECT_EQ(run({.blocks = 12, .max_num_seqs = 6}, several(), &preemptions), alone);
  EXPECT_GT(preemptions, 0u);
}

TEST(Beams, ShareTheBlocksOfTheirPrompt) {
  SchedulerOptions o;
  o.max_model_len = 48, o.block_size = 4, o.blocks = 100;
  Scheduler scheduler(o);
  FakeModel model(o.blocks, o.block_size, kVocab);
  ASSERT_TRUE(scheduler.queue_limit().try_enter(1, 40));
  scheduler.add(1, beam_request(40, 8, 1, 4));
  for (int i = 0; i < 3; ++i) {
    ScheduledBatch step = scheduler.next();
    EXPECT_EQ(scheduler.block_pool().stats().used, i == 0 ? 10 : 10 + 8) << "of the prompt, and one for each beam";
    std::vector<SampleResult> samples = model.run(step, scheduler.block_pool());
    std::vector<StepResult> results = step_results(step, samples);
    scheduler.commit(std::move(step), results);
  }
  scheduler.cancel(1);
  EXPECT_EQ(scheduler.block_pool().stats().used, 0);
}

}  // namespace
}  // namespace sluice::beams_test
