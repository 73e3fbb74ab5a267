// A step under construction.
#pragma once

#include <span>
#include <vector>

#include "scheduler/memory.h"
#include "scheduler/scheduled_batch.h"
#include "scheduler/sequence.h"

namespace sluice {

// Makes a step: part by part, or by moving a step of the same sequences on in place. Which sequences run, and with
// which blocks, is the scheduler's choice. Keeps the budgets of tokens and logit rows.
class BatchBuilder {
 public:
  // `recycled` is a committed step: one to move on, or memory for a new one.
  BatchBuilder(const MemoryPools& pools, ScheduledBatch recycled, uint64_t number);

  uint64_t number() const { return number_; }
  int tokens_left() const { return tokens_left_; }
  int rows_left() const { return rows_left_; }
  const ScheduledBatch& step() const { return out_; }
  // Sources of the copies so far. Whoever makes a copy keeps its source held until the step is built, so that no block
  // is source and target.
  std::span<const BlockId> copied() const { return copied_; }
  void copy_block(BlockId from, BlockId to);
  void copy_token(int from, int to) { out_.batch.token_copies.push_back({.from = from, .to = to}); }  // pool slots
  void release_later(BlockId block) { copied_.push_back(block); }  // a source of copy_token()

  // Forgets the recycled step, to build one part by part.
  void clear();
  // Adds the next `tokens` tokens of a sequence, which has the blocks for them. The last ones are `draft`, if it has
  // any. Moves the sequence on.
  void add(Sequence& sequence, int tokens, std::span<const TokenId> draft);

  // Adds the next `tokens` tokens of a module. Moves the module and the sequence on.
  void add_module(Sequence& sequence, int module, int tokens);

  // Turns the recycled step, one token of each of `sequences` in order, into the next one. Costs the host one cache
  // line per sequence besides the lists; blocks and tables only of those whose blocks changed since that step.
  void move_on(std::span<Sequence* const> sequences);

  // The step, complete.
  ScheduledBatch take();

 private:
  void add_adapter(const Sequence& sequence, int first, int end);
  void add_given(const Sequence& sequence, int first, int end);
  void add_tasks(const Sequence& sequence, ScheduledBatch::Part& part, int drafted);
  int add_logit_row(const ScheduledBatch::Part& part, int position);
  void write_places();
  void write_places(size_t part);
  void write_module_places(size_t part);

  const MemoryPools& pools_;
  ScheduledBatch out_;
  const uint64_t number_;
  int tokens_left_, rows_left_;
  size_t placed_ = 0;  // parts whose places are written
  std::vector<BlockId> copied_;
};

}  // namespace sluice
