// Building a step: which sequences run, with which tokens and blocks. One like the step before is made of that in
// repeat.cc, those that wait come in by admit.cc, and taking results is in commit.cc.

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "scheduler/step.h"

namespace sluice {

void check_fits(const Request& request, const SchedulerOptions& options) {
  const auto refuse = [](const std::string& message, std::string param, std::string reason) {
    throw Error(ErrorCode::kInvalidRequest, message, std::move(param), std::move(reason));
  };
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const std::optional<int>& max_tokens = request.sampling.max_tokens;
  if (prompt == 0) refuse("the prompt is empty", request.prompt_param, "invalid_value");
  if (max_tokens && *max_tokens < 1) refuse("max_tokens must be at least 1", "max_tokens", "integer_below_min_value");
  if (request.n < 1) refuse("n must be at least 1", "n", "integer_below_min_value");
  if (request.n > options.max_num_seqs) {
    refuse(fmt::format("n must be at most {}, the sequences of one step", options.max_num_seqs), "n",
           "integer_above_max_value");
  }
  const int64_t wanted = prompt + max_tokens.value_or(1);
  if (wanted > options.max_model_len) {
    refuse(fmt::format("This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
                       "prompt, {} in the completion). Please reduce the length of either one.",
                       options.max_model_len, wanted, prompt, wanted - prompt),
           request.prompt_param, "context_length_exceeded");
  }
}

int peak_blocks(int64_t tokens, int block_size, const BlockGroup& group, int max_num_batched_tokens) {
  const auto blocks_for = [=](int64_t count) { return static_cast<int>((count + block_size - 1) / block_size); };
  if (group.window == 0) return blocks_for(tokens);
  // A step's tokens and what the first of them sees, which may begin and end inside of blocks, and the block before.
  return std::min(blocks_for(tokens), blocks_for(int64_t{group.window} + max_num_batched_tokens) + 2);
}

int peak_blocks(int64_t tokens, int block_size, std::span<const BlockGroup> groups, int max_num_batched_tokens) {
  int blocks = 0;
  for (const BlockGroup& group : groups) blocks += peak_blocks(tokens, block_size, group, max_num_batched_tokens);
  return blocks;
}

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)),
      states_(options_.state_slots),
      pool_({.blocks = options_.blocks,
             .block_size = options_.block_size,
             .groups = static_cast<int>(options_.groups.size()),
             .fingerprint = options_.fingerprint,
             .hash_bits = options_.hash_bits,
             .on_forget = [this](BlockId block) { states_.forget(block); }}),
      queue_limit_(options_.max_queued_sequences, options_.max_queued_tokens),
      policy_(find_policy(options_.policy).make({.max_overtaken = options_.max_overtaken})) {
  CHECK(options_.max_num_seqs > 0 && options_.max_num_batched_tokens > 0 && options_.max_logit_rows > 0);
  const int most =
      peak_blocks(options_.max_model_len, options_.block_size, options_.groups, options_.max_num_batched_tokens);
  CHECK(options_.max_model_len > 0 && most <= options_.blocks, "a context of {} tokens does not fit {} blocks of {}",
        options_.max_model_len, options_.blocks, options_.block_size);
  CHECK(!recurrent() || options_.state_slots >= options_.max_num_seqs, "{} states for {} sequences",
        options_.state_slots, options_.max_num_seqs);
}

void Scheduler::add(RequestId id, Request request) {
  auto state = std::make_unique<RequestState>();
  state->id = id;
  state->request = std::move(request);
  const uint64_t arrival = arrivals_++;
  const SamplingParams& sampling = state->request.sampling;
  if (!sampling.ignore_eos) state->end_tokens = options_.eos_token_ids;
  state->end_tokens.insert(state->end_tokens.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  if (sampling.prompt_logprobs)
    state->prompt_logprobs.push_back({.token = {.id = state->request.prompt[0]}, .top = {}});
  if (state->request.deadline) deadlines_.emplace(*state->request.deadline, id);

  state->choices.resize(state->request.n);
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
  trunk->most_tokens = options_.max_model_len;
  if (sampling.max_tokens)
    trunk->most_tokens = std::min(trunk->most_tokens, trunk->prompt_length + *sampling.max_tokens);
  trunk->plain = state->request.n == 1 && !sampling.prompt_logprobs;
  if (PenaltyCounts::needed(sampling)) {
    trunk->counts.add_prompt(trunk->tokens);
    trunk->task.counts = &trunk->counts;
  }
  enqueue(*trunk);
  state->choices[0] = std::move(trunk);
  const bool added = requests_.emplace(id, std::move(state)).second;
  CHECK(added, "request {} added twice", id);
}

ScheduledBatch Scheduler::next() {
  CHECK(in_flight_ <= 1, "{} steps are not committed", in_flight_);
  expire_deadlines();
  Step step{.out = std::exchange(spare_, {}),
            .number = steps_ + 1,
            .tokens_left = options_.max_num_batched_tokens,
            .rows_left = options_.max_logit_rows,
            .copy_sources = {}};
  const bool repeated = repeat(step);
  if (!repeated) {
    step.out.clear();
    step.out.batch.query_start.push_back(0);
    if (schedule_running(step, true)) schedule_running(step, false);
  }
  const size_t placed = repeated ? step.out.parts.size() : 0;
  admit_waiting(step);
  pool_.release(step.copy_sources);

  if (step.out.batch.empty()) return std::move(step.out);
  if (step.out.parts.size() > placed) write_places(step.out);
  step.out.number = step.number;
  step.out.set = decodes_all(step.out) ? running_set_ : 0;
  step.out.batch.state_copies = std::exchange(state_copies_, {});
  ++in_flight_;
  ++steps_;
  return std::move(step.out);
}

// Where the step's tokens go and what they see. Tables have room for some blocks more, so that they seldom change their
// shape from step to step.
void Scheduler::write_places(ScheduledBatch& out) const {
  constexpr int kRoom = 16;
  Batch& batch = out.batch;
  int longest = 0;
  for (const auto& part : out.parts) longest = std::max(longest, part.sequence->rows());
  batch.block_table_stride = std::min((longest + kRoom - 1) / kRoom * kRoom, blocks_for(options_.max_model_len));
  batch.slots.resize(batch.tokens.size() * options_.groups.size());
  batch.block_table.resize(out.parts.size() * batch.block_table_stride * options_.groups.size());
  for (size_t part = 0; part < out.parts.size(); ++part) write_places(out, part);
}

// Those of one part, in all groups.
void Scheduler::write_places(ScheduledBatch& out, size_t index) const {
  Batch& batch = out.batch;
  const ScheduledBatch::Part& part = out.parts[index];
  const int size = options_.block_size;
  const auto stride = static_cast<size_t>(batch.block_table_stride);
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    const int scale = options_.groups[group].ids_per_block;
    const std::vector<BlockId>& blocks = part.sequence->groups[group].blocks;
    int32_t* slots = batch.slots.data() + group * batch.tokens.size() + batch.query_start[index];
    for (int i = 0; i < part.tokens; ++i) {
      const BlockId block = blocks[(part.first + i) / size];
      CHECK(!pool_.in_prefix_cache(block), "a published block would be written");
      slots[i] = block * scale * size + (part.first + i) % size;
    }
    int32_t* table = batch.block_table.data() + (group * out.parts.size() + index) * stride;
    for (const BlockId block : blocks) *table++ = block == kNoBlock ? kNoBlock : block * scale;
    std::fill_n(table, stride - blocks.size(), kNoBlock);
  }
}

void Scheduler::expire_deadlines() {
  if (deadlines_.empty()) return;
  const auto now = options_.clock();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    end_request(*requests_.at(id),
                {.reason = FinishReason::kAbort, .stop_string = {}, .stop_token = {}, .message = {}});
  }
  erase_ended();
}

// Those that decode, or those that do not. Returns whether it passed by any.
bool Scheduler::schedule_running(Step& step, bool decodes) {
  bool passed_by = false;
  // Preemption removes only sequences behind the current one.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const bool decode = sequence.length() - sequence.computed == 1;
    passed_by |= decode != decodes;
    if (decode == decodes) schedule(step, sequence);
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
}

bool Scheduler::schedule(Step& step, Sequence& sequence) {
  if (sequence.awaits_host) return false;
  if (sequence.unknown > 0 && sequence.length() >= sequence.most_tokens) return false;
  const int wanted = chunk_size(step, sequence);
  draft_.clear();
  const int drafted = wanted > 0 && options_.draft ? draft(step, sequence) : 0;
  const int tokens = wanted > 0 ? provide_blocks(step, sequence, wanted + drafted) : 0;
  if (tokens > 0) append(step, sequence, tokens);
  return tokens > 0;
}

// Whether drafts may be made for a sequence. A recurrent state cannot go back, and penalties of a token depend on the
// tokens before it.
bool Scheduler::speculates(const Sequence& sequence) const {
  return options_.draft && !recurrent() && sequence.task.counts == nullptr;
}

// Fills draft_ for the next step of a sequence; returns its length. A draft takes no room that the sequences behind
// this one need for their next token, and no blocks that others hold.
int Scheduler::draft(const Step& step, const Sequence& sequence) {
  const bool decodes = sequence.unknown == 0 && sequence.known() == sequence.computed + 1;
  if (!decodes || sequence.known() == sequence.prompt_length || !speculates(sequence)) return 0;
  const int behind = static_cast<int>(running_.size() - step.out.parts.size()) - 1;
  int most =
      std::min({step.tokens_left - behind, step.rows_left - behind, sequence.most_tokens - sequence.known()}) - 1;
  const int shared = static_cast<int>(shared_at_end(step, sequence).size());
  const int rows = sequence.rows() + std::max(0, pool_.available() - shared) / groups();
  most = std::min(most, rows * options_.block_size - sequence.computed - 1);
  if (most > 0) options_.draft(sequence, most, draft_);
  CHECK(draft_.empty() || static_cast<int>(draft_.size()) <= most, "{} drafted tokens of {}", draft_.size(), most);
  return static_cast<int>(draft_.size());
}

// As many of the sequence's tokens as the budgets of tokens and logit rows allow.
int Scheduler::chunk_size(const Step& step, const Sequence& sequence) const {
  const int remaining = sequence.length() - sequence.computed;
  const int tokens = std::min(remaining, step.tokens_left);
  if (!sequence.plain && sequence.request->scores_prompt()) {
    const int unscored_rows = std::max(0, sequence.request->scored - sequence.computed);
    return stop_for_snapshot(sequence, std::min(tokens, unscored_rows + step.rows_left));
  }
  return stop_for_snapshot(sequence, tokens == remaining && step.rows_left == 0 ? tokens - 1 : tokens);
}

// Fewer of the next `tokens` tokens where a snapshot behind them will be of use to others. A later request cannot reuse
// its last token, so that the end of the sequence is of no use to one like it.
int Scheduler::stop_for_snapshot(const Sequence& sequence, int tokens) const {
  if (!recurrent() || !options_.prefix_caching || tokens <= 0) return tokens;
  const int end = sequence.computed + tokens;
  if (sequence.computed < sequence.snapshot_at && sequence.snapshot_at < end)
    return sequence.snapshot_at - sequence.computed;
  const int size = options_.block_size;
  const int stop = (end == sequence.length() ? end - 1 : end) / size * size;
  return stop > sequence.computed ? stop - sequence.computed : tokens;
}

// Makes the sequence own, alone, the blocks it writes the next `tokens` tokens to. Returns for how many of them there
// are blocks.
int Scheduler::provide_blocks(Step& step, Sequence& sequence, int tokens) {
  if (sequence.in_flight > 0) {  // before blocks slide out of their windows, and before the state moves on
    commit_blocks(sequence);
    take_snapshot(sequence);
  }
  give_back_slid_out(sequence);
  sequence.placed_in = step.number;
  const int owned = sequence.rows();
  if (sequence.plain && sequence.computed + tokens <= owned * options_.block_size) {  // nobody shares them
    sequence.blocks_stable_until = stable_until(sequence);
    return tokens;
  }
  std::vector<int> shared = shared_at_end(step, sequence);
  const auto missing = [&] {
    const int rows = std::max(0, blocks_for(sequence.computed + tokens) - owned);
    return rows * groups() + static_cast<int>(shared.size());
  };
  while (missing() > pool_.available()) {
    if (!preempt_behind(step, sequence)) {
      const int spare = pool_.available() - static_cast<int>(shared.size());
      const int rows = owned + spare / groups();
      tokens = spare < 0 ? 0 : std::min(tokens, rows * options_.block_size - sequence.computed);
      if (tokens <= 0) return 0;
    }
    shared = shared_at_end(step, sequence);
  }
  const std::vector<BlockId> taken = *pool_.take(missing());
  auto next = taken.begin();
  for (const int group : shared) {
    BlockId& block = sequence.groups[group].blocks[sequence.computed / options_.block_size];
    step.copy_sources.push_back(block);
    step.out.batch.copies.push_back({.from = block, .to = *next});
    block = *next++;
  }
  const auto rows = (taken.end() - next) / groups();
  for (SequenceBlocks& own : sequence.groups) {
    own.blocks.insert(own.blocks.end(), next, next + rows);
    next += rows;
  }
  sequence.blocks_stable_until = stable_until(sequence);
  return tokens;
}

// Up to how many computed tokens a sequence that decodes neither needs a block, nor gives one back, nor publishes one.
int Scheduler::stable_until(const Sequence& sequence) const {
  const int size = options_.block_size;
  int until = sequence.rows() * size;
  if (options_.prefix_caching) until = std::min(until, (sequence.in_prefix_cache + 1) * size);
  for (int group = 0; group < groups(); ++group) {
    if (options_.groups[group].window == 0) continue;
    const int more = sequence.groups[group].slid_out + (group == 0 ? 2 : 1);
    until = std::min(until, more * size + options_.groups[group].window - 1);
  }
  return until;
}

// The groups whose last block, which is not full and will be written, others hold, too.
std::vector<int> Scheduler::shared_at_end(const Step& step, const Sequence& sequence) const {
  std::vector<int> shared;
  if (sequence.computed % options_.block_size == 0) return shared;
  for (int group = 0; group < groups(); ++group) {
    const BlockId block = sequence.groups[group].blocks[sequence.computed / options_.block_size];
    if (pool_.holders(block) - std::ranges::count(step.copy_sources, block) > 1) shared.push_back(group);
  }
  return shared;
}

// The first block of a group that a sequence with so many computed tokens keeps.
int Scheduler::first_kept(int group, int computed) const {
  const int window = options_.groups[group].window;
  if (window == 0) return 0;
  const int first_seen = std::max(0, computed - window + 1) / options_.block_size;
  return group == 0 ? std::max(0, first_seen - 1) : first_seen;
}

void Scheduler::give_back_slid_out(Sequence& sequence) {
  for (int group = 0; group < groups(); ++group) {
    SequenceBlocks& own = sequence.groups[group];
    const int first = std::min(first_kept(group, sequence.computed), static_cast<int>(own.blocks.size()));
    if (first <= own.slid_out) continue;
    const auto begin = own.blocks.begin() + own.slid_out, end = own.blocks.begin() + first;
    pool_.release({begin, end});
    std::fill(begin, end, kNoBlock);
    own.slid_out = first;
  }
}

// Takes the blocks of the last running sequence in rank, if that is behind `sequence` and not part of the step yet.
bool Scheduler::preempt_behind(const Step& step, const Sequence& sequence) {
  for (size_t i = running_.size(); i-- > 0 && running_[i] != &sequence;) {
    Sequence& victim = *running_[i];
    if (victim.last_step == step.number) continue;
    if (victim.awaits_host) return false;  // after the step in flight, then
    running_.erase(running_.begin() + static_cast<int64_t>(i));
    ++running_set_;
    if (victim.request->unforked()) reserved_slots_ -= victim.request->request.n - 1;
    release_memory(victim);
    victim.computed = 0;
    victim.in_prefix_cache = 0;
    enqueue(victim);
    ++preemptions_;
    return true;
  }
  return false;
}

void Scheduler::append(Step& step, Sequence& sequence, int tokens) {
  Batch& batch = step.out.batch;
  const int first = sequence.computed, end = first + tokens, known = sequence.known();
  const int from_sample = sequence.sample;
  step.out.parts.push_back(
      {.sequence = &sequence, .first = first, .tokens = tokens, .first_task = static_cast<int>(step.out.tasks.size())});
  append_tasks(step, sequence, tokens);
  const ScheduledBatch::Part& part = step.out.parts.back();
  const bool verifies = part.outputs == Outputs::kVerify;
  for (int position = first; position < end; ++position) {
    const bool on_device = position >= known && !verifies;
    if (on_device) batch.from_sample.resize(batch.tokens.size(), -1), batch.from_sample.push_back(from_sample);
    batch.tokens.push_back(position < known ? sequence.tokens[position] : on_device ? 0 : draft_[position - known]);
    batch.positions.push_back(position);
  }
  if (!batch.from_sample.empty()) batch.from_sample.resize(batch.tokens.size(), -1);
  batch.query_start.push_back(batch.size());
  batch.kv_len.push_back(end);
  batch.prompt_len.push_back(sequence.prompt_length);
  if (recurrent()) batch.state_slots.push_back(sequence.state_slot);
  step.tokens_left -= tokens;
  sequence.computed = end;
  sequence.unknown += verifies ? part.samples : part.samples > 0 ? 1 : 0;
  sequence.awaits_host = part.scores > 0 || part.outputs == Outputs::kFork || speculates(sequence);
  sequence.last_step = step.number;
  ++sequence.in_flight;
}

void Scheduler::append_tasks(Step& step, Sequence& sequence, int tokens) {
  const RequestState& request = *sequence.request;
  ScheduledBatch::Part& part = step.out.parts.back();
  const int end = part.first + tokens;
  if (!sequence.plain && request.scores_prompt()) {
    const int scored_end = std::min(end, request.prompt_length() - 1);
    for (int position = std::max(part.first, request.scored); position < scored_end; ++position) {
      step.out.tasks.push_back({.row = add_logit_row(step, part, position),
                                .target = sequence.tokens[position + 1],
                                .params = sequence.task.params,
                                .logprobs = *sequence.task.params->prompt_logprobs});
      ++part.scores;
    }
    if (part.scores > 0) part.outputs = Outputs::kScores;
  }
  if (end < sequence.length()) return;
  sequence.sample = static_cast<int>(step.out.tasks.size());
  const int drafted = end - sequence.length();
  part.outputs = drafted > 0 ? Outputs::kVerify : Outputs::kToken;
  if (!sequence.plain && request.unforked()) part.outputs = Outputs::kFork;
  part.samples = part.outputs == Outputs::kFork ? request.request.n : drafted + 1;
  for (int i = 0, row = 0; i < part.samples; ++i) {
    const int ahead = drafted > 0 ? i : 0;
    if (i == 0 || drafted > 0) row = add_logit_row(step, part, sequence.length() - 1 + ahead);
    SampleTask& task = step.out.tasks.emplace_back(sequence.task);
    task.row = row;
    task.choice += part.outputs == Outputs::kFork ? i : 0;
    task.position = sequence.length() - sequence.prompt_length + ahead;
  }
}

// Asks for the logits of one of the part's positions, whose tokens come next in the batch. Returns their row.
int Scheduler::add_logit_row(Step& step, const ScheduledBatch::Part& part, int position) {
  Batch& batch = step.out.batch;
  batch.sample_rows.push_back(batch.size() + position - part.first);
  --step.rows_left;
  return static_cast<int>(batch.sample_rows.size()) - 1;
}

std::optional<std::chrono::steady_clock::time_point> Scheduler::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

SchedulerStats Scheduler::stats() const {
  return {.running = static_cast<int>(running_.size()),
          .waiting = static_cast<int>(policy_->size()),
          .preemptions = preemptions_,
          .steps = steps_,
          .prompt_tokens = prompt_tokens_,
          .generated_tokens = generated_tokens_};
}

}  // namespace sluice
