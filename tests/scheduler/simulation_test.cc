// Deterministic simulation of scheduler, cache and a fake model: random requests, cancellations, deadlines and faults
// on tiny pools, with the invariants of the design checked after every step. A failure prints its seed;
// SLUICE_SIMULATION_SEED replays one, SLUICE_SIMULATION_SECONDS changes how long new ones are tried.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "scheduler/fake_model.h"
#include "scheduler/fake_mover.h"
#include "scheduler/scheduler.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// What a request alone in the world would get.
struct Expected {
  std::vector<TokenId> tokens;
  std::vector<float> scores;
  Finish finish;
};

struct Tracked {
  Request request;
  uint64_t arrival = 0;
  uint64_t seed = 0;
  std::optional<FakeConstraint> constraint{};  // at the start
  bool admitted = false;
  bool aborted = false;  // cancelled, or past its deadline
  int overtaken = 0;     // admissions of later requests while it waited
  std::vector<std::vector<TokenId>> outputs;
  std::vector<bool> ended;  // by an event or by finish()
  std::vector<TokenLogprobs> prompt_logprobs;
};

class Simulation {
  using Holder = std::pair<const Sequence*, size_t>;  // with the group
  static constexpr size_t kTail = 1000;               // instead of a group
  using Holders = std::map<BlockId, std::vector<Holder>>;

 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        options_(make_options()),
        scheduler_(options_),
        model_(options_.blocks, options_.block_size, vocab_, options_.state_slots, options_.groups),
        mover_(model_, [this] { return chance(move_fault_chance_); }) {}

  void run() {
    const int requests = uniform(5, 60);
    arrival_chance_ = uniform(1, 100);
    cancel_chance_ = chance(50) ? uniform(0, 10) : 0;
    fault_chance_ = chance(20) ? uniform(1, 10) : 0;
    overlap_chance_ = chance(60) ? uniform(50, 100) : 0;
    move_chance_ = uniform(5, 100);
    move_fault_chance_ = chance(30) ? uniform(1, 30) : 0;
    int quiet_steps = 0;
    uint64_t progress_seen = 0;
    while (added_ < requests || !scheduler_.idle()) {
      while (added_ < requests && chance(arrival_chance_)) add_request();
      if (chance(cancel_chance_)) cancel_something();
      step();
      check_state();
      if (::testing::Test::HasFailure()) return;
      // Liveness beyond single steps: recomputation must not eat all progress. I11
      // A long context with a long prompt to keep is shifted, and computed anew, many times before its answer ends.
      const uint64_t progress = static_cast<uint64_t>(ends_) + scheduler_.stats().context_shifts;
      quiet_steps = progress_seen < progress ? 0 : quiet_steps + 1;
      progress_seen = progress;
      ASSERT_LT(quiet_steps, 20000);
    }
    for (move_chance_ = 100; take_transfers(), !mover_.idle();) finish_transfers();
    check_idle();
  }

 private:
  int uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return uniform(1, 100) <= percent; }

  SchedulerOptions make_options() {
    SchedulerOptions o;
    vocab_ = chance(50) ? uniform(2, 6) : uniform(7, 200);
    o.block_size = chance(70) ? 1 << uniform(0, 3) : uniform(1, 9);
    o.blocks = uniform(2, chance(70) ? 16 : 64);
    o.max_model_len = std::max(3, o.blocks * o.block_size / (chance(50) ? 1 : uniform(1, 4)));
    if (o.max_model_len > o.blocks * o.block_size) o.blocks = (o.max_model_len + o.block_size - 1) / o.block_size;
    o.max_num_seqs = uniform(1, 10);
    if (chance(50)) o.state_slots = o.max_num_seqs + uniform(0, 6);
    o.max_num_batched_tokens = uniform(1, 64);
    if (chance(60)) {  // windows of two at least: the fake model reads the token before
      o.groups[0] = {.window = chance(50) ? uniform(2, 20) : 0, .ids_per_block = uniform(1, 3)};
      for (int more = chance(60) ? uniform(1, 3) : 0; more > 0; --more) {
        const int widest = o.groups[0].window > 0 ? o.groups[0].window : 20;
        o.groups.push_back({.window = uniform(2, widest), .ids_per_block = uniform(1, 3)});
      }
      if (chance(50)) o.max_num_batched_tokens = uniform(1, 8);
      if (o.groups[0].window > 0 && chance(70)) o.max_model_len *= uniform(1, 6);  // more than the pool holds
      o.blocks = std::max(o.blocks, peak_blocks(o.max_model_len, o.block_size, o.groups, o.max_num_batched_tokens));
    }
    o.max_logit_rows = chance(50) ? uniform(1, 6) : 64;
    o.policy = chance(50) ? "fcfs" : chance(60) ? "priority" : chance(60) ? "shortest" : "deadline";
    o.max_overtaken = uniform(0, 12);
    o.prefix_caching = chance(70);
    o.hash_bits = chance(70) ? 256 : uniform(1, 16);
    if (chance(60)) {
      o.row_store = {.host_slots = uniform(1, chance(50) ? 6 : 100), .rows_per_transfer = uniform(1, 5)};
      if (chance(60)) o.row_store.file_slots = uniform(1, 100);
    }
    o.eviction = chance(30) ? Eviction::kLfu : Eviction::kLru;
    o.session_blocks = chance(60) ? uniform(0, o.blocks) : 0;
    o.context_shift = chance(40);
    o.context_keep = uniform(-1, chance(50) ? 3 : o.max_model_len + 3);
    o.max_queued_sequences = uniform(1, 20);
    o.max_queued_tokens = chance(50) ? 0 : uniform(1, 200);
    o.seed = random_();
    if (chance(70)) o.eos_token_ids = {0};
    if (chance(40)) {
      hit_chance_ = uniform(0, 100);
      late_chance_ = chance(50) ? uniform(0, 100) : 0;
      o.draft = [this](const Sequence& sequence, int most, std::vector<TokenId>& draft) {
        guess(sequence, most, draft);
        if (chance(late_chance_)) std::ranges::fill(draft, -1);
      };
    }
    o.clock = [this] { return now_; };
    const bool plain = o.groups.size() == 1 && o.groups[0].window == 0 && o.groups[0].ids_per_block == 1;
    if (plain && o.state_slots == 0 && chance(70)) modules_chance_ = uniform(20, 100);
    return o;
  }

  Request make_request() {
    Request r;
    const int length = uniform(1, std::max(1, options_.max_model_len - 1));
    // Few distinct prefixes, so that the cache has something to find.
    std::mt19937_64 shared(uniform(0, 2));
    const int common = chance(60) ? uniform(0, length) : 0;
    for (int i = 0; i < length; ++i) {
      r.prompt.push_back(static_cast<TokenId>(i < common ? shared() % vocab_ : uniform(0, vocab_ - 1)));
    }
    if (chance(80)) r.sampling.max_tokens = uniform(1, std::min(40, options_.max_model_len - length));
    if (options_.context_shift && chance(70)) {
      r.context_shift = true;
      r.sampling.max_tokens = uniform(1, 40 + options_.max_model_len);
      if (chance(50)) r.context_keep = uniform(-1, most_kept(options_));
    }
    r.sampling.min_tokens = chance(30) ? uniform(0, 4) : 0;
    r.sampling.ignore_eos = chance(20);
    if (chance(20) && vocab_ > 3) r.sampling.stop_token_ids = {1, 2};
    if (chance(50)) r.sampling.seed = uniform(0, 3);
    if (chance(30)) r.sampling.logprobs = 0;
    if (chance(25)) r.sampling.prompt_logprobs = 0;
    if (chance(30)) r.sampling.presence_penalty = 0.5;
    r.n = chance(30) ? uniform(1, options_.max_num_seqs) : 1;
    r.priority = uniform(-2, 2);
    r.cache_salt = chance(30) ? "salt" : "";
    r.tenant = chance(50) ? "" : chance(50) ? "one" : "another";
    if (chance(50)) {
      r.session = std::string(1, static_cast<char>('a' + uniform(0, 3)));
      r.session_ttl = std::chrono::milliseconds(uniform(1, chance(50) ? 30 : 500));
    }
    if (chance(15)) r.deadline = now_ + std::chrono::milliseconds(uniform(-5, 300));
    if (modules_chance_ > 0 && chance(modules_chance_)) add_modules(r);
    return r;
  }

  // Puts modules before the prompt, as far as there is room for them. There are few, each at its own position.
  void add_modules(Request& r) {
    Request with = r;
    with.context_shift.reset();
    with.context_keep.reset();
    with.sampling.prompt_logprobs.reset();
    with.session.clear();
    with.prompt.clear();
    for (int i = 0; i < 4; ++i) {
      if (chance(50)) continue;
      std::mt19937_64 text(i);
      const int tokens = 1 + static_cast<int>(text() % (2 * options_.block_size));
      const int position = i * (2 * options_.block_size + 1);
      if (position + tokens + 2 > options_.max_model_len) break;
      with.modules.push_back({.tokens = tokens, .position = position});
      for (int k = 0; k < tokens; ++k) with.prompt.push_back(static_cast<TokenId>(text() % vocab_));
    }
    if (with.modules.empty()) return;
    const size_t own = std::min(r.prompt.size(), static_cast<size_t>(uniform(1, 12)));
    with.prompt.insert(with.prompt.end(), r.prompt.begin(), r.prompt.begin() + own);
    if (with.sampling.max_tokens) with.sampling.max_tokens = std::min(*with.sampling.max_tokens, 40);
    try {
      check_fits(with, options_);
    } catch (const Error&) {
      return;
    }
    r = std::move(with);
  }

  void add_request() {
    ++added_;
    Request request = make_request();
    EXPECT_NO_THROW(check_fits(request, options_));
    if (!scheduler_.queue_limit().try_enter(request.n, static_cast<int64_t>(request.prompt.size()))) return;
    Tracked& t = tracked_[next_id_];
    t.request = request;
    t.arrival = next_arrival_++;
    t.seed = request.sampling.seed ? *request.sampling.seed : derive_seed(options_.seed, t.arrival);
    t.outputs.resize(request.n);
    t.ended.resize(request.n);
    if (chance(30)) t.constraint.emplace(random_(), vocab_);
    const bool shifts = request.context_shift.value_or(false), modules = !request.modules.empty();
    if (!request.sampling.prompt_logprobs && !shifts && !modules && chance(25)) give_vectors(request);
    scheduler_.add(next_id_++, std::move(request), t.constraint ? t.constraint->copy() : nullptr);
  }

  void cancel_something() {
    if (next_id_ == 0) return;
    const auto id = static_cast<RequestId>(uniform(0, static_cast<int>(next_id_)));  // perhaps ended, perhaps unknown
    const auto it = tracked_.find(id);
    if (chance(60)) {
      if (it != tracked_.end()) it->second.aborted = true;
      scheduler_.cancel(id);
      drain();
    } else {
      const int index = uniform(0, 3);
      drain();
      // The front end stops a choice because of text it got.
      if (it == tracked_.end() || index >= it->second.request.n || it->second.outputs[index].empty()) return;
      it->second.ended[index] = true;
      scheduler_.finish(id, index);
    }
  }

  // The next step, perhaps while the one before is in flight, and then the end of that one. A new step may stay in
  // flight in its turn.
  void step() {
    now_ += std::chrono::milliseconds(uniform(0, 5));
    if (chance(5)) scheduler_.end_session(std::string(1, static_cast<char>('a' + uniform(0, 3))));
    if (chance(30)) scheduler_.prefetch_session(std::string(1, static_cast<char>('a' + uniform(0, 3))));
    ScheduledBatch step = scheduler_.next();
    drain();
    check_new(step);
    finish_transfers();
    if (step.batch.empty()) {
      take_transfers();
      return commit_in_flight();
    }
    complete_drafts(step);
    if (chance(cancel_chance_)) cancel_something();  // while the step is in flight
    const std::vector<uint64_t> states =
        model_.forward(step, scheduler_.block_pool(), in_flight_ ? in_flight_->second : std::vector<SampleResult>());
    overlapped += in_flight_ && !step.batch.from_sample.empty();
    take_transfers();
    commit_in_flight();
    std::vector<SampleResult> results = model_.sample(step, states);
    for (const auto& part : step.parts) dropped += part.samples > 0 && step.number <= part.sequence->dropped_until;
    check_penalty_counts(step);
    if (chance(cancel_chance_)) cancel_something();
    in_flight_.emplace(std::move(step), std::move(results));
    if (!chance(overlap_chance_)) commit_in_flight();
  }

  void take_transfers() { mover_.take(scheduler_.take_transfers()); }

  void finish_transfers() {
    for (size_t i = mover_.pending(); i-- > 0;) {
      if (chance(move_chance_)) mover_.run(i, scheduler_);
    }
  }

  void commit_in_flight() {
    if (!in_flight_) return;
    auto [step, results] = std::move(*in_flight_);
    in_flight_.reset();
    if (chance(fault_chance_) && !results.empty()) {
      SampleResult& result = results[uniform(0, static_cast<int>(results.size()) - 1)];
      result.error = "fault";
      result.bad_logits = chance(50);
    }
    std::vector<StepResult> parts = step_results(step, results);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (step.parts[i].outputs != Outputs::kVerify) continue;
      accepted += parts[i].accepted.size() - 1;
      rejected += step.parts[i].samples - parts[i].accepted.size();
    }
    scheduler_.commit(std::move(step), parts);
    drain();
  }

  void check_new(const ScheduledBatch& step) {
    for (const auto& [id, state] : scheduler_.requests()) {  // I10
      EXPECT_FALSE(!part_of_step(*state) && state->request.deadline && *state->request.deadline <= now_);
    }
    check_admissions();
    const Batch& batch = step.batch;
    EXPECT_LE(batch.size(), options_.max_num_batched_tokens);  // I7
    EXPECT_LE(static_cast<int>(batch.sample_rows.size()), options_.max_logit_rows);
    EXPECT_LE(batch.sequences(), options_.max_num_seqs);
    EXPECT_TRUE(scheduler_.idle() || in_flight_ || scheduler_.awaits_transfers() || !batch.empty())
        << "nothing runs although there is work";  // I11
    EXPECT_TRUE(in_flight_ || batch.from_sample.empty());
    EXPECT_LE(scheduler_.block_pool().pinned(), options_.session_blocks);
  }

  void check_penalty_counts(const ScheduledBatch& step) {
    for (const auto& part : step.parts) {
      const Sequence& sequence = *part.sequence;
      if (!PenaltyCounts::needed(sequence.request->request.sampling)) continue;
      std::map<TokenId, int> naive;
      for (int i = sequence.given; i < sequence.known(); ++i) naive[sequence.tokens[i]] += i >= sequence.prompt_length;
      std::map<TokenId, int> counted;
      for (const auto& entry : sequence.counts.entries()) counted[entry.token] = entry.output;
      EXPECT_EQ(counted, naive);
    }
  }

  void drain() {
    for (SequenceEvent& event : scheduler_.drain()) {
      Tracked& t = tracked_.at(event.request);
      ASSERT_LT(event.index, t.request.n);
      ASSERT_FALSE(t.ended[event.index]) << "an event after the end";  // I9
      std::vector<TokenId>& output = t.outputs[event.index];
      output.insert(output.end(), event.tokens.begin(), event.tokens.end());
      EXPECT_EQ(event.usage.completion_tokens, static_cast<int>(output.size()));
      EXPECT_EQ(event.usage.prompt_tokens, static_cast<int>(t.request.prompt.size()));
      EXPECT_LT(event.usage.cached_tokens, event.usage.prompt_tokens);
      if (t.request.sampling.logprobs && !event.tokens.empty()) {
        ASSERT_TRUE(event.logprobs);
        ASSERT_EQ(event.logprobs->tokens.size(), event.tokens.size());
        for (uint32_t i = 0; i < event.tokens.size(); ++i) {
          EXPECT_EQ(event.logprobs->tokens[i].token.id, event.tokens[i]);
        }
      }
      if (event.logprobs && !event.logprobs->prompt.empty()) t.prompt_logprobs = std::move(event.logprobs->prompt);
      if (!event.finish) continue;
      t.ended[event.index] = true;
      ++ends_;
      check_output(t, event);
    }
  }

  // Drafts what will follow, with mistakes.
  void guess(const Sequence& sequence, int most, std::vector<TokenId>& draft) {
    const std::vector<TokenId> all = expected(tracked_.at(sequence.id), sequence.task.choice).tokens;
    auto next = static_cast<size_t>(sequence.outputs());
    for (int left = std::min(most, uniform(0, kMostDrafted)); left > 0; --left, ++next) {
      const bool hit = next < all.size() && chance(hit_chance_);
      draft.push_back(hit ? all[next] : static_cast<TokenId>(uniform(0, vocab_ - 1)));
    }
  }

  // Fills in what guess() left open, and drops the ends of some drafts.
  void complete_drafts(ScheduledBatch& step) {
    std::vector<int> lengths;
    for (size_t i = 0; i < step.parts.size(); ++i) {
      const ScheduledBatch::Part& part = step.parts[i];
      lengths.push_back(part.drafted());
      if (part.drafted() == 0 || !part.later) continue;
      std::vector<TokenId> draft;
      guess(*part.sequence, part.drafted(), draft);
      std::ranges::copy(draft, step.batch.tokens.begin() + step.batch.query_start[i] + 1);
      lengths.back() = static_cast<int>(draft.size());
      shortened += lengths.back() < part.drafted();
    }
    scheduler_.shorten_drafts(step, lengths);
    EXPECT_EQ(std::ranges::count(step.batch.tokens, -1), 0);
    EXPECT_EQ(step.batch.query_start.back(), step.batch.size());
  }

  Expected expected(const Tracked& t, int index) const {
    const SamplingParams& sampling = t.request.sampling;
    std::vector<TokenId> ends = sampling.stop_token_ids;
    std::optional<FakeConstraint> constraint = t.constraint;
    const bool eos_ends = !sampling.ignore_eos || constraint;
    if (eos_ends) ends.insert(ends.end(), options_.eos_token_ids.begin(), options_.eos_token_ids.end());
    Expected e;
    const FakeModules modules = fake_modules(t.request, options_.block_size);
    uint64_t state = modules.state;
    for (const TokenId token : std::span(t.request.prompt).subspan(modules.places.size())) {
      e.scores.push_back(score_of(state, token));
      state = extend_state(state, token);
    }
    const int room = options_.max_model_len - static_cast<int>(t.request.prompt.size()) - modules.shift;
    const bool shifts = t.request.context_shift.value_or(false);
    const int limit = shifts ? *sampling.max_tokens : std::min(room, sampling.max_tokens.value_or(room));
    std::vector<TokenId> context = t.request.prompt;
    for (;;) {
      if (static_cast<int>(context.size()) == options_.max_model_len) state = shift(context, t.request);
      const int position = static_cast<int>(e.tokens.size());
      const SampleTask task{.params = &sampling,
                            .end_tokens = ends,
                            .constraint = constraint ? &*constraint : nullptr,
                            .seed = t.seed,
                            .choice = index,
                            .position = position};
      const TokenId token = sample_token(state, task, vocab_);
      state = extend_state(state, token);
      context.push_back(token);
      e.tokens.push_back(token);
      if (constraint) {
        EXPECT_TRUE(constraint->accept(token));
      }
      if ((position >= sampling.min_tokens || constraint) && std::ranges::find(ends, token) != ends.end()) {
        e.finish.reason = FinishReason::kStop;
        const bool eos = eos_ends && !options_.eos_token_ids.empty() && token == 0;
        if (!eos) e.finish.stop_token = token;
        return e;
      }
      if (constraint && constraint->ended()) {
        e.finish.reason = FinishReason::kStop;
        return e;
      }
      if (position + 1 == limit) {
        e.finish.reason = FinishReason::kLength;
        return e;
      }
    }
  }

  // Drops half of what need not stay of a full context. Returns the state after the rest.
  uint64_t shift(std::vector<TokenId>& context, const Request& request) const {
    int keep = request.context_keep.value_or(options_.context_keep);
    if (keep == -1) keep = static_cast<int>(request.prompt.size());
    keep = std::min(keep, std::max(0, options_.max_model_len - 4));
    std::vector<TokenId> left(context.begin(), context.begin() + keep);
    left.insert(left.end(), context.begin() + keep + (options_.max_model_len - keep) / 2, context.end());
    context = left;
    uint64_t state = 0;
    for (const TokenId token : context) state = extend_state(state, token);
    return state;
  }

  // I5
  void check_output(const Tracked& t, const SequenceEvent& event) {
    const Expected e = expected(t, event.index);
    const std::vector<TokenId>& output = t.outputs[event.index];
    ASSERT_LE(output.size(), e.tokens.size());
    EXPECT_TRUE(std::equal(output.begin(), output.end(), e.tokens.begin()));
    switch (event.finish->reason) {
      case FinishReason::kAbort:
        EXPECT_TRUE(t.aborted || (t.request.deadline && *t.request.deadline <= now_));
        return;
      case FinishReason::kError:
        EXPECT_EQ(event.finish->message, "fault");
        return;
      default:
        EXPECT_EQ(event.finish->reason, e.finish.reason);
        EXPECT_EQ(event.finish->stop_token, e.finish.stop_token);
        EXPECT_EQ(output.size(), e.tokens.size());
    }
    if (t.request.sampling.prompt_logprobs && event.index == 0) {
      ASSERT_EQ(t.prompt_logprobs.size(), t.request.prompt.size());
      for (size_t i = 0; i < t.prompt_logprobs.size(); ++i) {
        EXPECT_EQ(t.prompt_logprobs[i].token.id, t.request.prompt[i]);
        EXPECT_EQ(t.prompt_logprobs[i].token.rank, i == 0 ? 0 : 1);
        EXPECT_EQ(t.prompt_logprobs[i].token.logprob, i == 0 ? 0.0f : e.scores[i]);
      }
    }
  }

  // I6: new requests are admitted in the order of their class, and overtaken boundedly often.
  void check_admissions() {
    std::vector<Tracked*> admitted, waiting;
    for (const auto& [id, state] : scheduler_.requests()) {
      Tracked& t = tracked_.at(id);
      if (t.admitted) continue;
      (state->admitted ? admitted : waiting).push_back(&t);
      t.admitted = state->admitted;
    }
    for (const Tracked* a : admitted) {
      for (Tracked* w : waiting) {
        if (w->arrival > a->arrival) continue;
        ++w->overtaken;
        if (options_.policy == "fcfs") {
          EXPECT_NE(w->request.tenant, a->request.tenant);
        } else {
          EXPECT_LE(w->overtaken, options_.max_overtaken);
          if (options_.policy == "priority") {
            EXPECT_NE(w->request.priority, a->request.priority);
          }
        }
      }
    }
    int sequences = 0;
    for (const Tracked* w : waiting) sequences += w->request.n;
    EXPECT_EQ(scheduler_.queue_limit().sequences(), sequences);  // I8
    if (waiting.size() > 1) {
      EXPECT_LE(sequences, options_.max_queued_sequences);
    }
  }

  static bool part_of_step(const RequestState& request) {
    return std::ranges::any_of(request.choices, [](const auto& choice) { return choice && choice->in_flight > 0; });
  }

  // I1, I2, I4 after commit; one step may be in flight.
  void check_state() {
    Holders holders;
    for (const auto& [id, state] : scheduler_.requests()) {
      const Tracked& t = tracked_.at(id);
      for (const auto& choice : state->choices) {
        if (!choice) continue;
        const int parts = 1 + static_cast<int>(choice->memory.modules.size());
        EXPECT_LE(choice->in_flight, in_flight_ || scheduler_.awaits_transfers() ? parts : 0);
        if (choice->state != SequenceState::kEnded) {
          EXPECT_LE(choice->unknown, choice->in_flight * (1 + kMostDrafted));
          EXPECT_TRUE(choice->in_flight > 0 || !choice->awaits_host);
          EXPECT_EQ(choice->memory.groups.empty(), choice->state == SequenceState::kWaiting);
        } else {
          EXPECT_TRUE(choice->memory.groups.empty() || choice->in_flight > 0);
        }
        check_blocks(*choice, holders);
      }
      EXPECT_FALSE(!part_of_step(*state) && std::ranges::all_of(t.ended, [](bool ended) { return ended; }))
          << "an ended request is kept";
    }
    check_states();
    const BlockPool& pool = scheduler_.block_pool();
    const BlockPoolStats stats = pool.stats();
    EXPECT_EQ(stats.free + stats.cached + stats.used, options_.blocks);
    std::vector<int> count(static_cast<size_t>(options_.blocks));
    for (const auto& [block, sequences] : holders) count[block] += static_cast<int>(sequences.size());
    scheduler_.row_store().each_saving([&](BlockId block) { ++count[block]; });
    scheduler_.each_prefetching([&](BlockId block) { ++count[block]; });
    EXPECT_EQ(stats.used, std::ranges::count_if(count, [](int n) { return n > 0; }));
    for (BlockId block = 0; block < options_.blocks; ++block) EXPECT_EQ(pool.holders(block), count[block]);
    for (const auto& [block, sequences] : holders) check_sharing(block, sequences);
    const SchedulerStats counts = scheduler_.stats();
    EXPECT_LE(counts.running, options_.max_num_seqs);
  }

  void check_blocks(const Sequence& sequence, Holders& holders) {
    for (size_t group = 0; group < sequence.memory.groups.size(); ++group) {
      const SequenceBlocks& own = sequence.memory.groups[group];
      for (const BlockId block : own.held()) holders[block].push_back({&sequence, group});
      for (int i = 0; i < own.slid_out; ++i) EXPECT_EQ(own.blocks[i], kNoBlock);
      EXPECT_LE(
          static_cast<int>(own.held().size()),
          peak_blocks(sequence.length(), options_.block_size, options_.groups[group], options_.max_num_batched_tokens));
      int rows = (sequence.computed + options_.block_size - 1) / options_.block_size;
      const ModuleLayout* layout = sequence.memory.layout;
      if (layout != nullptr && sequence.computed <= layout->tokens) {  // without the tails, or with found rows of them
        const bool found = sequence.computed == layout->tokens && sequence.memory.rows() > layout->rows;
        if (!found) rows = layout->rows;
      }
      EXPECT_EQ(static_cast<int>(own.blocks.size()), rows);
    }
    for (const SequenceMemory::Module& module : sequence.memory.modules) {
      if (module.tail != kNoBlock) holders[module.tail].push_back({&sequence, kTail});
    }
  }

  // Every running sequence has a slot of its own, and nobody else has one.
  void check_states() const {
    if (options_.state_slots == 0) return;
    std::set<StateSlot> slots;
    for (const auto& [id, state] : scheduler_.requests()) {
      for (const auto& choice : state->choices) {
        if (!choice) continue;
        const bool held = choice->state == SequenceState::kEnded && choice->in_flight > 0;
        EXPECT_TRUE(held || (choice->memory.state_slot != kNoState) == (choice->state == SequenceState::kRunning));
        EXPECT_TRUE(choice->memory.state_slot == kNoState || slots.insert(choice->memory.state_slot).second);
      }
    }
    const StatePool& states = scheduler_.states();
    EXPECT_EQ(states.live(), static_cast<int>(slots.size()));
    EXPECT_LE(states.live() + states.snapshots(), options_.state_slots);
    for (BlockId block = 0; block < options_.blocks; ++block) {
      EXPECT_TRUE(!states.has_snapshot(block) || scheduler_.block_pool().in_prefix_cache(block));
    }
  }

  // A block of several sequences stands at the same place of all, in the same group, after and with the same tokens,
  // and is full, or was not written since the fork.
  void check_sharing(BlockId block, const std::vector<Holder>& sequences) {
    const auto [sequence, group] = sequences[0];
    const Sequence& first = *sequence;
    const auto of_module = [block](const Holder& holder) {
      const auto& [other, at] = holder;
      if (at == kTail) return true;
      const std::vector<BlockId>& rows = other->memory.groups[at].blocks;
      return std::ranges::find(rows, block) - rows.begin() < other->memory.module_rows();
    };
    if (of_module(sequences[0])) {  // at any place
      EXPECT_TRUE(std::ranges::all_of(sequences, of_module));
      return;
    }
    const std::vector<BlockId>& blocks = first.memory.groups[group].blocks;
    const auto place = std::ranges::find(blocks, block) - blocks.begin();
    for (const auto& [other, other_group] : sequences) {
      ASSERT_EQ(other_group, group);
      ASSERT_LT(place, static_cast<std::ptrdiff_t>(other->memory.rows()));
      EXPECT_EQ(other->memory.groups[group].blocks[place], block);
      if (other == sequence) continue;
      const int end = std::min<int>(first.computed, (place + 1) * options_.block_size);
      EXPECT_EQ(end, std::min<int>(other->computed, (place + 1) * options_.block_size));
      ASSERT_LE(end, std::min(first.known(), other->known())) << "a token that is not known yet is shared";
      EXPECT_TRUE(std::equal(first.tokens.begin(), first.tokens.begin() + end, other->tokens.begin()));
      EXPECT_EQ(first.request->request.cache_salt, other->request->request.cache_salt);
    }
  }

  // I9, I12
  void check_idle() {
    EXPECT_TRUE(scheduler_.requests().empty());
    EXPECT_EQ(scheduler_.stats().running, 0);
    EXPECT_EQ(scheduler_.stats().waiting, 0);
    displaced += scheduler_.session_stats().displaced, expired += scheduler_.session_stats().expired;
    for (const char* session : {"a", "b", "c", "d"}) scheduler_.end_session(session);
    EXPECT_EQ(scheduler_.block_pool().pinned(), 0);
    EXPECT_EQ(scheduler_.block_pool().stats().used, 0);
    EXPECT_EQ(scheduler_.block_pool().available(), options_.blocks);
    EXPECT_EQ(scheduler_.queue_limit().sequences(), 0);
    EXPECT_EQ(scheduler_.queue_limit().tokens(), 0);
    EXPECT_FALSE(scheduler_.next_deadline());
    for (const auto& [id, t] : tracked_) {
      for (const bool ended : t.ended) EXPECT_TRUE(ended) << "request " << id << " has no end";
    }
    preemptions += scheduler_.stats().preemptions;
    modules_found += scheduler_.stats().modules_found, modules_computed += scheduler_.stats().modules_computed;
    hits += scheduler_.block_pool().stats().hit_tokens;
    steps += scheduler_.stats().steps;
    forced += scheduler_.stats().forced_tokens;
    const PrefetchStats& prefetches = scheduler_.prefetch_stats();
    prefetched += prefetches.loaded, not_prefetched += prefetches.no_room;
    shifted += scheduler_.stats().context_shifts;
    const RowStoreStats rows = scheduler_.row_store().stats();
    saved += rows.saved, written += rows.written, read += rows.read, failed += rows.failed;
  }

  std::mt19937_64 random_;
  int vocab_ = 2;
  int hit_chance_ = 0;      // percent of drafted tokens that are right
  int modules_chance_ = 0;  // percent of requests that have modules
  int late_chance_ = 0;     // percent of drafts whose tokens come after the step was made
  Clock::time_point now_{};
  SchedulerOptions options_;
  Scheduler scheduler_;
  FakeModel model_;
  FakeMover mover_;
  std::optional<std::pair<ScheduledBatch, std::vector<SampleResult>>> in_flight_;
  static constexpr int kMostDrafted = 7;
  int arrival_chance_ = 0, cancel_chance_ = 0, fault_chance_ = 0, overlap_chance_ = 0;
  int move_chance_ = 0, move_fault_chance_ = 0;
  int added_ = 0;
  RequestId next_id_ = 0;
  uint64_t next_arrival_ = 0;
  int ends_ = 0;  // of choices
  std::map<RequestId, Tracked> tracked_;

 public:
  // Over all runs: they must be worth something.
  static inline uint64_t preemptions = 0, hits = 0, steps = 0, overlapped = 0, accepted = 0, rejected = 0,
                         shortened = 0;
  static inline uint64_t forced = 0, dropped = 0;
  static inline uint64_t modules_found = 0, modules_computed = 0;
  static inline uint64_t shifted = 0;  // contexts
  static inline uint64_t prefetched = 0, not_prefetched = 0;
  static inline uint64_t displaced = 0, expired = 0;  // sessions
  static inline uint64_t saved = 0, written = 0, read = 0, failed = 0;
};

TEST(Simulation, InvariantsHold) {
  const auto run = [](uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).run();
  };
  if (const char* seed = std::getenv("SLUICE_SIMULATION_SEED")) return run(std::strtoull(seed, nullptr, 10));
  const char* seconds = std::getenv("SLUICE_SIMULATION_SECONDS");
  const auto end = Clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 10);
  constexpr uint64_t kFewest = 2500;  // seeds, so that what is counted below is enough on a machine that is busy
  uint64_t seed = 1;
  for (; seed <= kFewest || Clock::now() < end; ++seed) {
    run(seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  RecordProperty("seeds", static_cast<int>(seed - 1));
  std::printf(
      "%d seeds, %d steps, %d of them ahead, %d preemptions, %d cached tokens, %d drafted tokens accepted, "
      "%d rejected, %d forced tokens, %d samples dropped for them\n",
      static_cast<int>(seed - 1), static_cast<int>(Simulation::steps), static_cast<int>(Simulation::overlapped),
      static_cast<int>(Simulation::preemptions), static_cast<int>(Simulation::hits),
      static_cast<int>(Simulation::accepted), static_cast<int>(Simulation::rejected),
      static_cast<int>(Simulation::forced), static_cast<int>(Simulation::dropped));
  std::printf("%d rows saved, %d written, %d read, %d failed, %d blocks loaded\n", static_cast<int>(Simulation::saved),
              static_cast<int>(Simulation::written), static_cast<int>(Simulation::read),
              static_cast<int>(Simulation::failed), static_cast<int>(FakeMover::loaded));
  std::printf("%d sessions displaced, %d expired, %d context shifts, %d sessions prefetched, %d without room\n",
              static_cast<int>(Simulation::displaced), static_cast<int>(Simulation::expired),
              static_cast<int>(Simulation::shifted), static_cast<int>(Simulation::prefetched),
              static_cast<int>(Simulation::not_prefetched));
  std::printf("%d modules found, %d computed\n", static_cast<int>(Simulation::modules_found),
              static_cast<int>(Simulation::modules_computed));
  EXPECT_GT(Simulation::modules_found, 100u);
  EXPECT_GT(Simulation::modules_computed, 100u);
  EXPECT_GT(Simulation::prefetched, 20u);
  EXPECT_GT(Simulation::shifted, 500u);
  EXPECT_GT(Simulation::displaced, 500u);
  EXPECT_GT(Simulation::expired, 100u);
  EXPECT_GT(Simulation::saved, 500u);
  EXPECT_GT(Simulation::written, 500u);
  EXPECT_GT(Simulation::read, 20u);
  EXPECT_GT(Simulation::failed, 100u);
  EXPECT_GT(FakeMover::loaded, 100u);
  EXPECT_GT(Simulation::preemptions, 500u);
  EXPECT_GT(Simulation::hits, 500u);
  EXPECT_GT(Simulation::overlapped, 500u);
  EXPECT_GT(Simulation::accepted, 500u);
  EXPECT_GT(Simulation::rejected, 500u);
  EXPECT_GT(Simulation::shortened, 500u);
  EXPECT_GT(Simulation::forced, 500u);
  EXPECT_GT(Simulation::dropped, 100u);
}

}  // namespace
}  // namespace sluice
