// Building a step: which sequences run, with which tokens and blocks. Waiting sequences come in by admit.cc; results
// are taken in commit.cc.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace sluice {

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)),
      pools_(options_),
      exports_(pools_, options_.exports_held_for),
      adapters_(options_.adapter_slots, options_.place_adapter),
      hidden_rows_(options_.hidden_rows),
      queue_limit_(options_.max_queued_sequences, options_.max_queued_tokens),
      policy_(find_policy(options_.policy).make({.max_overtaken = options_.max_overtaken})),
      session_texts_((int64_t{options_.row_store.host_slots} + options_.row_store.file_slots) * options_.block_size) {
  CHECK(options_.max_num_seqs > 0 && options_.max_num_batched_tokens > 0 && options_.max_logit_rows > 0);
  const int most =
      peak_blocks(options_.max_model_len, options_.block_size, options_.groups, options_.max_num_batched_tokens);
  CHECK(options_.max_model_len > 0 && most <= options_.blocks, "a context of {} tokens does not fit {} blocks of {}",
        options_.max_model_len, options_.blocks, options_.block_size);
  CHECK(!pools_.recurrent() || options_.state_slots >= options_.max_num_seqs, "{} states for {} sequences",
        options_.state_slots, options_.max_num_seqs);
}

void Scheduler::add(RequestId id, Request request, std::unique_ptr<Constraint> constraint, RequestAdapter adapter) {
  CHECK(adapter.adapter == nullptr || options_.adapter_slots > 0, "request {} has an adapter, but there are no slots",
        id);
  auto state = std::make_unique<RequestState>();
  state->id = id;
  state->request = std::move(request);
  state->adapter = std::move(adapter);
  const uint64_t arrival = arrivals_++;
  const SamplingParams& sampling = state->request.sampling;
  if (!sampling.ignore_eos || (constraint && constraint->decides_end())) state->end_tokens = options_.eos_token_ids;
  state->end_tokens.insert(state->end_tokens.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  if (sampling.prompt_logprobs)
    state->prompt_logprobs.push_back({.token = {.id = state->request.prompt[0]}, .top = {}});
  if (state->request.deadline) deadlines_.emplace(*state->request.deadline, id);
  if (!state->request.session.empty()) {
    pools_.sessions.extend(state->request.session, options_.clock() + state->request.session_ttl);
  }

  const bool contrastive = searches_contrastively(sampling);
  const int width = state->request.beams ? state->request.beams->width
                    : contrastive        ? sampling.top_k
                                         : state->request.n;
  state->choices.resize(static_cast<size_t>(width));
  auto trunk = std::make_unique<Sequence>();
  trunk->request = state.get();
  trunk->id = id;
  trunk->rank.priority = policy_->priority(state->request);
  trunk->rank.arrival = arrival;
  trunk->tokens = state->request.prompt;
  trunk->task = {.params = &sampling,
                 .end_tokens = state->end_tokens,
                 .seed = sampling.seed ? static_cast<uint64_t>(*sampling.seed) : derive_seed(options_.seed, arrival),
                 .logprobs = sampling.logprobs.value_or(-1),
                 .plain = !edits(sampling)};
  for (const TokenId token : state->end_tokens) trunk->end_bits |= end_bit(token);
  trunk->prompt_length = state->prompt_length();
  trunk->given = state->request.prompt_vectors != nullptr ? trunk->prompt_length : 0;
  state->layout = lay_out(state->request, pools_.blocks);
  trunk->memory.layout = state->layout.get();
  trunk->shift = state->layout != nullptr ? state->layout->shift : 0;
  trunk->ends_at = options_.max_model_len - trunk->shift;
  if (sampling.max_tokens) {
    const int64_t end = int64_t{trunk->prompt_length} + *sampling.max_tokens;
    trunk->ends_at = state->request.context_shift.value_or(false) ? end : std::min(end, trunk->ends_at);
  }
  trunk->most_tokens = static_cast<int>(std::min<int64_t>(trunk->ends_at, options_.max_model_len - trunk->shift));
  trunk->plain = state->width() == 1 && !sampling.prompt_logprobs;
  if (PenaltyCounts::needed(sampling)) {
    trunk->counts = PenaltyCounts(sampling.repeat_last_n);
    trunk->counts.add_prompt(trunk->text());
    trunk->task.counts = &trunk->counts;
  }
  if (needs_history(sampling)) {
    trunk->task.tokens = &trunk->tokens;
    trunk->task.prompt_length = trunk->prompt_length;
    trunk->task.given = trunk->given;
  }
  if (needs_state(sampling)) trunk->task.state = &trunk->sampler_state;
  if (constraint) {
    trunk->constraint = ConstraintState(std::move(constraint));
    trunk->task.constraint = trunk->constraint.get();
    trunk->task.plain = false;
    trunk->jumps =
        options_.jump_ahead && !sampling.logprobs && sampling.logit_bias.empty() && sampling.allowed_token_ids.empty();
  }
  trunk->speculates = options_.draft && trunk->given == 0 && !pools_.recurrent() && trunk->task.counts == nullptr &&
                      trunk->task.constraint == nullptr && trunk->task.tokens == nullptr &&
                      trunk->task.state == nullptr;
  if (const auto& transfer = state->request.kv_transfer; transfer && transfer->host.empty()) {
    exports_.begin(transfer->id, row_hashes(state->request));
  }
  if (state->request.beams) begin_beams(*state, *trunk);
  if (contrastive) begin_contrastive(*state, *trunk);
  enqueue(*trunk);
  state->choices[0] = std::move(trunk);
  const bool added = requests_.emplace(id, std::move(state)).second;
  CHECK(added, "request {} added twice", id);
}

ScheduledBatch Scheduler::next() {
  CHECK(in_flight_ <= 1, "{} steps are not committed", in_flight_);
  expire();
  BatchBuilder builder(pools_, std::exchange(spare_, {}), steps_ + 1);
  if (!repeat(builder)) {
    builder.clear();
    const bool more = schedule_running(builder, Work::kDecode);
    if (more && schedule_running(builder, Work::kJump)) schedule_running(builder, Work::kPrefill);
  }
  admit_waiting(builder);
  pools_.blocks.release(builder.copied());

  if (builder.step().batch.empty()) return {};
  ScheduledBatch step = builder.take();
  step.set = decodes_all(step) ? running_set_ : 0;
  step.batch.state_copies = std::exchange(pools_.state_copies, {});
  ++in_flight_;
  ++steps_;
  return step;
}

// Whether a step is one token of every running sequence, in order, and nothing else.
bool Scheduler::decodes_all(const ScheduledBatch& step) const {
  if (step.parts.size() != running_.size() || step.batch.tokens.size() != running_.size()) return false;
  if (step.tasks.size() != running_.size()) return false;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (step.parts[i].sequence != running_[i] || step.parts[i].outputs != Outputs::kToken) return false;
  }
  return true;
}

// While the set of decoding sequences is unchanged, the step that was committed last is moved on in place.
bool Scheduler::repeat(BatchBuilder& builder) {
  if (builder.step().set != running_set_ || options_.draft) return false;
  changing_.clear();
  for (Sequence* sequence : running_) {
    const int length = sequence->length();
    if (length != sequence->computed + 1 || sequence->awaits_host) return false;
    if (sequence->unknown > 0 && length >= sequence->most_tokens) return false;
    if (sequence->computed >= sequence->blocks_stable_until) changing_.push_back(sequence);
  }
  if (static_cast<int>(changing_.size()) * pools_.groups() > pools_.blocks.available()) return false;
  for (Sequence* sequence : changing_) {
    const int provided = provide_blocks(builder, *sequence, 1);
    CHECK(provided == 1 && builder.copied().empty(), "a sequence that decodes lacks its next block");
  }
  builder.move_on(running_);
  return true;
}

void Scheduler::expire() {
  if (!next_deadline()) return;
  const auto now = options_.clock();
  pools_.sessions.expire(now);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    end_request(*requests_.at(id),
                {.reason = FinishReason::kAbort, .stop_string = {}, .stop_token = {}, .message = {}});
  }
  erase_ended();
}

Scheduler::Work Scheduler::work_of(const Sequence& sequence) {
  if (sequence.length() - sequence.computed == 1) return Work::kDecode;
  return sequence.computed > sequence.prompt_length && sequence.jumps ? Work::kJump : Work::kPrefill;
}

// Those with this work. Returns whether it passed by any with later work.
bool Scheduler::schedule_running(BatchBuilder& builder, Work work) {
  bool passed_by = false;
  // Preemption removes only sequences behind the current one.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const Work own = work_of(sequence);
    passed_by |= own > work;
    if (own == work) schedule(builder, sequence);
  }
  return passed_by;
}

void Scheduler::start_running(Sequence& sequence) {
  ++running_set_;
  running_.insert(std::ranges::upper_bound(running_, &sequence, ByRank()), &sequence);
}

void Scheduler::stop_running(Sequence& sequence) {
  const auto at = std::ranges::lower_bound(running_, &sequence, ByRank());
  CHECK(at != running_.end() && *at == &sequence, "a sequence that does not run ends");
  running_.erase(at);
  ++running_set_;
  leave_adapter(sequence);
}

void Scheduler::leave_adapter(Sequence& sequence) {
  if (sequence.adapter_slot >= 0) adapters_.release(std::exchange(sequence.adapter_slot, -1));
}

bool Scheduler::schedule(BatchBuilder& builder, Sequence& sequence) {
  if (sequence.awaits_host) return false;
  if (sequence.unknown > 0 && sequence.length() >= sequence.most_tokens) return false;
  if (static_cast<int>(builder.step().parts.size()) >= options_.max_num_seqs) return false;  // modules are many parts
  if (sequence.memory.next_module() >= 0) return schedule_modules(builder, sequence);
  const int wanted = chunk_size(builder, sequence);
  draft_.clear();
  const int drafted = wanted > 0 && options_.draft ? draft(builder, sequence) : 0;
  const int tokens = wanted > 0 ? provide_blocks(builder, sequence, wanted + drafted) : 0;
  if (tokens > 0) builder.add(sequence, tokens, draft_);
  return tokens > 0;
}

// Its modules, each a part of the step, as far as there is room. The tails are copied before a step, so that the own
// text comes in the next one.
bool Scheduler::schedule_modules(BatchBuilder& builder, Sequence& sequence) {
  if (sequence.in_flight > 0) commit_blocks(sequence);
  sequence.placed_in = builder.number();
  bool any = false;
  while (builder.tokens_left() > 0 && static_cast<int>(builder.step().parts.size()) < options_.max_num_seqs) {
    const int next = sequence.memory.next_module();
    if (next < 0) break;
    const int left = sequence.memory.layout->parts[static_cast<size_t>(next)].tokens -
                     sequence.memory.modules[static_cast<size_t>(next)].computed;
    builder.add_module(sequence, next, std::min(left, builder.tokens_left()));
    any = true;
  }
  return any;
}

// Copies the tails of modules to the rows behind the whole blocks. Their blocks stay held until the step is built.
void Scheduler::copy_tails(BatchBuilder& builder, SequenceMemory& memory) const {
  const std::vector<BlockId>& rows = memory.groups[0].blocks;
  const int size = options_.block_size;
  int place = memory.module_rows() * size;
  for (size_t i = 0; i < memory.modules.size(); ++i) {
    const BlockId tail = std::exchange(memory.modules[i].tail, kNoBlock);
    const int tokens = memory.layout->parts[i].tail;
    for (int token = 0; token < tokens && tail != kNoBlock; ++token) {
      const int to = place + token;
      builder.copy_token(tail * size + token, rows[static_cast<size_t>(to / size)] * size + to % size);
    }
    if (tail != kNoBlock) builder.release_later(tail);
    place += tokens;
  }
}

// Fills draft_ for the next step of a sequence; returns its length. A draft takes no room that the sequences behind
// this one need for their next token, and no blocks that others hold.
int Scheduler::draft(const BatchBuilder& builder, const Sequence& sequence) {
  const bool decodes = sequence.unknown == 0 && sequence.known() == sequence.computed + 1;
  if (!decodes || sequence.known() == sequence.prompt_length || !sequence.speculates) return 0;
  const int behind = static_cast<int>(running_.size() - builder.step().parts.size()) - 1;
  int most = std::min({builder.tokens_left() - behind, builder.rows_left() - behind,
                       sequence.most_tokens - sequence.known()}) -
             1;
  const int shared =
      static_cast<int>(sequence.memory.shared_at_end(pools_, sequence.computed, builder.copied()).size());
  const int rows = sequence.memory.rows() + std::max(0, pools_.blocks.available() - shared) / pools_.groups();
  most = std::min(most, rows * options_.block_size - sequence.computed - 1);
  if (most > 0) options_.draft(sequence, most, draft_);
  CHECK(draft_.empty() || static_cast<int>(draft_.size()) <= most, "{} drafted tokens of {}", draft_.size(), most);
  return static_cast<int>(draft_.size());
}

void Scheduler::shorten_drafts(ScheduledBatch& step, std::span<const int> drafted) {
  CHECK(drafted.size() == step.parts.size(), "{} lengths of {} parts", drafted.size(), step.parts.size());
  std::vector<int> dropped(drafted.size());
  for (size_t i = 0; i < drafted.size(); ++i) {
    dropped[i] = step.parts[i].drafted() - drafted[i];
    CHECK(dropped[i] >= 0, "a draft of {} tokens became one of {}", step.parts[i].drafted(), drafted[i]);
  }
  if (std::ranges::all_of(dropped, [](int count) { return count == 0; })) return;
  step.drop_drafted(dropped);
  for (size_t i = 0; i < drafted.size(); ++i) {
    const ScheduledBatch::Part& part = step.parts[i];
    Sequence& sequence = *part.sequence;
    if (part.samples > 0) sequence.sample = part.first_task + part.scores;
    if (dropped[i] == 0) continue;
    sequence.unknown -= dropped[i];
    sequence.computed -= dropped[i];
    sequence.memory.truncate(pools_, sequence.computed);
    sequence.blocks_stable_until = sequence.memory.stable_until(pools_);
  }
}

// As many of the sequence's tokens as the budgets of tokens and logit rows allow.
int Scheduler::chunk_size(const BatchBuilder& builder, const Sequence& sequence) const {
  const int remaining = sequence.length() - sequence.computed;
  const int tokens = std::min(remaining, builder.tokens_left());
  if (!sequence.plain && sequence.request->scores_prompt()) {
    const int unscored_rows = std::max(0, sequence.request->scored - sequence.computed);
    return stop_for_snapshot(sequence, std::min(tokens, unscored_rows + builder.rows_left()));
  }
  return stop_for_snapshot(sequence, tokens == remaining && builder.rows_left() == 0 ? tokens - 1 : tokens);
}

// Fewer of the next `tokens` tokens where a snapshot behind them will be of use to others. A later request cannot reuse
// its last token, so that the end of the sequence is of no use to one like it.
int Scheduler::stop_for_snapshot(const Sequence& sequence, int tokens) const {
  if (!pools_.recurrent() || !options_.prefix_caching || tokens <= 0) return tokens;
  const int end = sequence.computed + tokens;
  if (sequence.computed < sequence.memory.snapshot_at && sequence.memory.snapshot_at < end)
    return sequence.memory.snapshot_at - sequence.computed;
  const int size = options_.block_size;
  const int stop = (end == sequence.length() ? end - 1 : end) / size * size;
  return stop > sequence.computed ? stop - sequence.computed : tokens;
}

// Makes the sequence own, alone, the blocks it writes the next `tokens` tokens to. Returns for how many of them there
// are blocks.
int Scheduler::provide_blocks(BatchBuilder& builder, Sequence& sequence, int tokens) {
  SequenceMemory& memory = sequence.memory;
  if (sequence.in_flight > 0) {  // before blocks slide out of their windows, and before the state moves on
    commit_blocks(sequence);
    memory.take_snapshot(pools_, sequence.computed, sequence.prompt_length);
  }
  memory.give_back_slid_out(pools_, sequence.computed);
  sequence.placed_in = builder.number();
  const int owned = memory.rows(), groups = pools_.groups();
  if (sequence.plain && sequence.computed + tokens <= owned * options_.block_size) {  // nobody shares them
    sequence.blocks_stable_until = memory.stable_until(pools_);
    return tokens;
  }
  std::vector<int> shared = memory.shared_at_end(pools_, sequence.computed, builder.copied());
  const auto missing = [&] {
    const int rows = std::max(0, pools_.blocks_for(sequence.computed + tokens) - owned);
    return rows * groups + static_cast<int>(shared.size());
  };
  while (missing() > pools_.blocks.available()) {
    if (missing() <= pools_.blocks.available() + pools_.only_saved()) return 0;  // soon
    if (!preempt_behind(builder, sequence)) {
      const int spare = pools_.blocks.available() - static_cast<int>(shared.size());
      const int rows = owned + spare / groups;
      tokens = spare < 0 ? 0 : std::min(tokens, rows * options_.block_size - sequence.computed);
      if (tokens <= 0) return 0;
    }
    shared = memory.shared_at_end(pools_, sequence.computed, builder.copied());
  }
  const std::vector<BlockId> taken = *pools_.blocks.take(missing());
  auto next = taken.begin();
  for (const int group : shared) {
    BlockId& block = memory.groups[group].blocks[sequence.computed / options_.block_size];
    builder.copy_block(block, *next);
    block = *next++;
  }
  const auto rows = (taken.end() - next) / groups;
  for (SequenceBlocks& own : memory.groups) {
    own.blocks.insert(own.blocks.end(), next, next + rows);
    next += rows;
  }
  if (owned == memory.module_rows()) copy_tails(builder, memory);
  sequence.blocks_stable_until = memory.stable_until(pools_);
  return tokens;
}

// Takes the blocks of the last running sequence in rank, if that is behind `sequence` and not part of the step yet.
bool Scheduler::preempt_behind(const BatchBuilder& builder, const Sequence& sequence) {
  for (size_t i = running_.size(); i-- > 0 && running_[i] != &sequence;) {
    Sequence& victim = *running_[i];
    if (victim.last_step == builder.number()) continue;
    if (victim.awaits_host) return false;  // after the step in flight, then
    preempt(victim);
    return true;
  }
  return false;
}

void Scheduler::preempt(Sequence& victim) {
  stop_running(victim);
  if (victim.request->unforked()) reserved_slots_ -= victim.request->width() - 1;
  victim.memory.release(pools_);
  victim.computed = 0;
  victim.unseen = false;
  if (waits_in_search(victim)) {
    victim.state = SequenceState::kParked;
  } else {
    enqueue(victim);
  }
  ++victim.request->preemptions;
  ++preemptions_;
}

std::optional<std::chrono::steady_clock::time_point> Scheduler::next_deadline() const {
  std::optional<std::chrono::steady_clock::time_point> next = exports_.next_deadline();
  const auto also = [&next](std::chrono::steady_clock::time_point time) { next = std::min(next.value_or(time), time); };
  if (!deadlines_.empty()) also(deadlines_.begin()->first);
  if (const auto expiry = pools_.sessions.next_expiry()) also(*expiry);
  return next;
}

SchedulerStats Scheduler::stats() const {
  return {.running = static_cast<int>(running_.size()),
          .waiting = static_cast<int>(policy_->size()),
          .deferred = lacks_adapter_slot_ && policy_->size() > 0 ? 1 : 0,
          .preemptions = preemptions_,
          .steps = steps_,
          .prompt_tokens = prompt_tokens_,
          .generated_tokens = generated_tokens_,
          .forced_tokens = forced_tokens_,
          .context_shifts = context_shifts_,
          .modules_found = modules_found_,
          .modules_computed = modules_computed_};
}

}  // namespace sluice
