// Steps like the one before: while the same sequences decode, a token each, their lists only move on. What a step of
// hundreds of them costs the host is the lines of the cache that it touches: one of every sequence here, besides the
// lists; blocks and tables only of those that begin a block.
#include <algorithm>

#include "base/check.h"
#include "scheduler/step.h"

namespace sluice {

// Whether a step is one token of every running sequence, in order, and nothing else.
bool Scheduler::decodes_all(const ScheduledBatch& step) const {
  if (step.parts.size() != running_.size() || step.batch.tokens.size() != running_.size()) return false;
  if (step.tasks.size() != running_.size()) return false;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (step.parts[i].sequence != running_[i] || step.parts[i].outputs != Outputs::kToken) return false;
  }
  return true;
}

// Whether all of them have a token to compute, and blocks for it.
bool Scheduler::repeatable(const Step& step) const {
  if (step.out.set != running_set_ || options_.draft) return false;
  int missing = 0;
  for (const Sequence* sequence : running_) {
    const int length = sequence->length();
    if (length != sequence->computed + 1 || sequence->awaits_host) return false;
    if (sequence->unknown > 0 && length >= sequence->most_tokens) return false;
    if (sequence->computed >= sequence->blocks_stable_until) missing += groups();
  }
  return missing <= pool_.available();
}

// Turns the step that was committed last, if it was one of the same sequences, into the next one. Blocks that changed
// since that step are written anew.
bool Scheduler::repeat(Step& step) {
  if (!repeatable(step)) return false;
  ScheduledBatch& out = step.out;
  Batch& batch = out.batch;
  const size_t count = running_.size();
  batch.from_sample.assign(count, -1);
  batch.copies.clear();
  bool unknown = false, fit = true;
  for (size_t i = 0; i < count; ++i) {
    Sequence& sequence = *running_[i];
    const int position = sequence.computed;
    if (position >= sequence.blocks_stable_until) {
      const int provided = provide_blocks(step, sequence, 1);
      CHECK(provided == 1 && batch.copies.empty(), "a sequence that decodes lacks its next block");
    }
    const int moved = position - out.parts[i].first;
    batch.tokens[i] = 0;
    if (sequence.unknown > 0) {
      batch.from_sample[i] = sequence.sample;
      unknown = true;
    } else {
      batch.tokens[i] = sequence.tokens[position];
    }
    batch.positions[i] = position;
    batch.kv_len[i] = position + 1;
    out.parts[i].first = position;
    out.tasks[i].position += moved;
    if (sequence.placed_in <= out.number) {
      for (size_t slot = i; slot < batch.slots.size(); slot += count) batch.slots[slot] += moved;
    } else if (sequence.rows() <= batch.block_table_stride) {
      write_places(out, i);
    } else {
      fit = false;
    }
    sequence.sample = static_cast<int>(i);
    sequence.computed = position + 1;
    ++sequence.unknown;
    ++sequence.in_flight;
    sequence.last_step = step.number;
  }
  if (!unknown) batch.from_sample.clear();
  if (!fit) write_places(out);
  step.tokens_left -= static_cast<int>(count);
  step.rows_left -= static_cast<int>(count);
  return true;
}

}  // namespace sluice
