// The waiting queue: its order, and when a sequence begins to run, with what the prefix cache has of it.
#include <algorithm>
#include <span>

#include "scheduler/step.h"

namespace sluice {

void Scheduler::admit_waiting(Step& step) {
  while (step.tokens_left > 0) {
    Sequence* head = policy_->head();
    if (head == nullptr || !admit(step, *head)) break;
  }
}

bool Scheduler::admit(Step& step, Sequence& sequence) {
  if (sequence.in_flight > 0) return false;  // preempted: its last token comes with the step's results
  RequestState& request = *sequence.request;
  const int slots = request.unforked() ? request.request.n : 1;
  if (static_cast<int>(running_.size()) + reserved_slots_ + slots > options_.max_num_seqs) return false;

  if (recurrent() && states_.live() == options_.state_slots) return false;  // of sequences that ended in flight

  // The last token is always computed, for its logits; so are prompt rows that are to be scored.
  int reusable = sequence.length() - 1;
  if (request.scores_prompt()) reusable = std::min(reusable, request.scored);
  std::vector<BlockId> hits;  // leaders
  if (options_.prefix_caching) {
    const int full_blocks = reusable / options_.block_size;
    extend_hashes(sequence, full_blocks);
    hits = pool_.find(request.request.cache_salt, std::span(sequence.hashes).first(full_blocks), sequence.tokens);
  }
  const auto known = static_cast<int>(hits.size()) * options_.block_size;
  hits.resize(usable_rows(hits));
  const int computed = static_cast<int>(hits.size()) * options_.block_size;
  int missing = 0, idle_hits = 0;
  for (int group = 0; group < groups(); ++group) {
    const int first = std::min(first_kept(group, computed), static_cast<int>(hits.size()));
    for (const BlockId primary : std::span(hits).subspan(first)) {
      --missing;
      if (pool_.holders(pool_.in_row(primary, group)) == 0) ++idle_hits;
    }
    missing += std::min(
        peak_blocks(sequence.length(), options_.block_size, options_.groups[group], options_.max_num_batched_tokens),
        blocks_for(sequence.length()) - first);
  }
  if (missing > pool_.available() - idle_hits - promised_blocks()) return false;
  sequence.computed = computed;
  sequence.snapshot_at = known;
  if (chunk_size(step, sequence) == 0) {
    sequence.computed = 0;
    return false;
  }

  policy_->admit(sequence);
  sequence.state = SequenceState::kRunning;
  start_running(sequence);
  reserved_slots_ += slots - 1;
  sequence.groups = hold_rows(hits);
  sequence.in_prefix_cache = static_cast<int>(hits.size());
  if (recurrent()) {
    const StateSlot snapshot = hits.empty() ? kNoState : states_.use_snapshot(hits.back());
    sequence.state_slot = states_.take();
    if (snapshot != kNoState) state_copies_.push_back({.from = snapshot, .to = sequence.state_slot});
  }
  if (!request.admitted) {
    request.admitted = true;
    sequence.admitted_at = options_.clock();
    sequence.cached_tokens = sequence.computed;
    queue_limit_.leave(request.request.n, request.prompt_length());
    if (options_.prefix_caching) pool_.count_query(request.prompt_length(), sequence.cached_tokens);
  }
  return schedule(step, sequence);
}

// How many of the leading cached rows a sequence can go on from: of every group those that the next token sees must be
// there, and of recurrent layers a state.
int Scheduler::usable_rows(std::span<const BlockId> primaries) const {
  std::vector<int> whole_from(options_.groups.size(), 0);  // the first of the unbroken blocks of a group
  int usable = 0;
  for (int rows = 1; rows <= static_cast<int>(primaries.size()); ++rows) {
    const BlockId primary = primaries[rows - 1];
    bool complete = !recurrent() || states_.has_snapshot(primary);
    for (int group = 0; group < groups(); ++group) {
      if (pool_.in_row(primary, group) == kNoBlock) whole_from[group] = rows;
      complete &= whole_from[group] <= first_kept(group, rows * options_.block_size);
    }
    if (complete) usable = rows;
  }
  return usable;
}

// The blocks of a sequence that goes on from cached rows: those it sees, held.
std::vector<SequenceBlocks> Scheduler::hold_rows(std::span<const BlockId> primaries) {
  std::vector<SequenceBlocks> held(options_.groups.size());
  for (int group = 0; group < groups(); ++group) {
    SequenceBlocks& own = held[group];
    own.slid_out = std::min(first_kept(group, static_cast<int>(primaries.size()) * options_.block_size),
                            static_cast<int>(primaries.size()));
    own.blocks.assign(own.slid_out, kNoBlock);
    for (const BlockId primary : primaries.subspan(own.slid_out)) own.blocks.push_back(pool_.in_row(primary, group));
    pool_.share(own.held());
  }
  // Those before them were used just now, if not needed.
  const auto before = primaries.first(held[0].slid_out);
  pool_.share(before);
  pool_.release(before);
  return held;
}

// Blocks that running sequences still need for the tokens they have.
int Scheduler::promised_blocks() const {
  int blocks = 0;
  for (const Sequence* sequence : running_) blocks += missing_blocks(*sequence);
  return blocks;
}

int Scheduler::missing_blocks(const Sequence& sequence) const {
  const int length = sequence.length(), size = options_.block_size;
  int missing = 0;
  for (int group = 0; group < groups(); ++group) {
    const SequenceBlocks& own = sequence.groups[group];
    const int most = peak_blocks(length, size, options_.groups[group], options_.max_num_batched_tokens);
    const int to_come = blocks_for(length) - static_cast<int>(own.blocks.size());
    missing += std::max(0, std::min(to_come, most - static_cast<int>(own.held().size())));
  }
  return missing;
}

void Scheduler::enqueue(Sequence& sequence) {
  sequence.state = SequenceState::kWaiting;
  policy_->push(sequence);
}

}  // namespace sluice
