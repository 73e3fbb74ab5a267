// The lists of a step.
#include "scheduler/batch_builder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {

BatchBuilder::BatchBuilder(const MemoryPools& pools, ScheduledBatch recycled, uint64_t number)
    : pools_(pools),
      out_(std::move(recycled)),
      number_(number),
      tokens_left_(pools.options.max_num_batched_tokens),
      rows_left_(pools.options.max_logit_rows) {}

void BatchBuilder::clear() {
  out_.clear();
  out_.batch.query_start.push_back(0);
  placed_ = 0;
}

void BatchBuilder::copy_block(BlockId from, BlockId to) {
  copied_.push_back(from);
  out_.batch.copies.push_back({.from = from, .to = to});
}

ScheduledBatch BatchBuilder::take() {
  if (out_.parts.size() > placed_) write_places();
  Batch& batch = out_.batch;
  if (!batch.adapters.empty()) {  // rows behind the last one that has an adapter
    batch.adapters.resize(batch.tokens.size(), -1);
    batch.sample_adapters.resize(batch.sample_rows.size(), -1);
  }
  out_.number = number_;
  return std::move(out_);
}

// Writes where the step's tokens go and what they see. Tables have room for some more blocks, so that they seldom
// change their shape from step to step.
void BatchBuilder::write_places() {
  constexpr int kRoom = 16;
  Batch& batch = out_.batch;
  int longest = 0;
  for (const auto& part : out_.parts) {
    const SequenceMemory& memory = part.sequence->memory;
    const bool own = part.module < 0;
    longest = std::max(longest, own ? memory.rows() : memory.layout->parts[static_cast<size_t>(part.module)].blocks());
  }
  batch.block_table_stride =
      std::min((longest + kRoom - 1) / kRoom * kRoom, pools_.blocks_for(pools_.options.max_model_len));
  batch.slots.resize(batch.tokens.size() * pools_.options.groups.size());
  batch.block_table.resize(out_.parts.size() * batch.block_table_stride * pools_.options.groups.size());
  for (size_t part = 0; part < out_.parts.size(); ++part) write_places(part);
  placed_ = out_.parts.size();
}

// Writes those of one part, in all groups.
void BatchBuilder::write_places(size_t index) {
  Batch& batch = out_.batch;
  const ScheduledBatch::Part& part = out_.parts[index];
  if (part.module >= 0) return write_module_places(index);
  const int size = pools_.options.block_size;
  const auto stride = static_cast<size_t>(batch.block_table_stride);
  for (size_t group = 0; group < pools_.options.groups.size(); ++group) {
    const int scale = pools_.options.groups[group].ids_per_block;
    const std::vector<BlockId>& blocks = part.sequence->memory.groups[group].blocks;
    int32_t* slots = batch.slots.data() + group * batch.tokens.size() + batch.query_start[index];
    for (int i = 0; i < part.tokens; ++i) {
      const BlockId block = blocks[(part.first + i) / size];
      CHECK(!pools_.blocks.in_prefix_cache(block), "a block of the prefix cache would be written");
      slots[i] = block * scale * size + (part.first + i) % size;
    }
    int32_t* table = batch.block_table.data() + (group * out_.parts.size() + index) * stride;
    for (const BlockId block : blocks) *table++ = block == kNoBlock ? kNoBlock : block * scale;
    std::fill_n(table, stride - blocks.size(), kNoBlock);
  }
}

// The same for a part of a module: it sees the blocks of this module alone. There is one group.
void BatchBuilder::write_module_places(size_t index) {
  Batch& batch = out_.batch;
  const ScheduledBatch::Part& part = out_.parts[index];
  const SequenceMemory& memory = part.sequence->memory;
  const auto module = static_cast<size_t>(part.module);
  const ModuleLayout::Part& of = memory.layout->parts[module];
  const auto size = static_cast<size_t>(pools_.options.block_size),
             stride = static_cast<size_t>(batch.block_table_stride);
  const auto rows =
      std::span(memory.groups[0].blocks).subspan(static_cast<size_t>(of.row), static_cast<size_t>(of.rows));
  std::vector<BlockId> blocks(rows.begin(), rows.end());
  if (of.tail > 0) blocks.push_back(memory.modules[module].tail);
  int32_t* slots = batch.slots.data() + batch.query_start[index];
  for (int i = 0; i < part.tokens; ++i) {
    const auto place = static_cast<size_t>(part.first - of.first + i);
    const BlockId block = blocks[place / size];
    CHECK(!pools_.blocks.in_prefix_cache(block), "a block of the prefix cache would be written");
    slots[i] = static_cast<int32_t>(static_cast<size_t>(block) * size + place % size);
  }
  int32_t* table = std::ranges::copy(blocks, batch.block_table.data() + index * stride).out;
  std::fill_n(table, stride - blocks.size(), kNoBlock);
}

void BatchBuilder::add(Sequence& sequence, int tokens, std::span<const TokenId> draft) {
  Batch& batch = out_.batch;
  const int first = sequence.computed, end = first + tokens, known = sequence.known();
  const int drafted = std::max(0, end - sequence.length()), from_sample = sequence.sample;
  ScheduledBatch::Part& part = out_.parts.emplace_back();
  part.sequence = &sequence;
  part.first = first;
  part.tokens = tokens;
  part.first_task = static_cast<int>(out_.tasks.size());
  part.later = !draft.empty() && draft.front() < 0;
  part.after_unseen = std::exchange(sequence.unseen, false);
  add_tasks(sequence, part, drafted);
  add_given(sequence, first, std::min(end, sequence.given));
  for (int position = first; position < end; ++position) {
    const bool on_device = position >= known && drafted == 0;
    if (on_device) batch.from_sample.resize(batch.tokens.size(), -1), batch.from_sample.push_back(from_sample);
    batch.tokens.push_back(position < known ? sequence.tokens[position] : on_device ? 0 : draft[position - known]);
    batch.positions.push_back(position + sequence.shift);
  }
  if (!batch.from_sample.empty()) batch.from_sample.resize(batch.tokens.size(), -1);
  add_adapter(sequence, first, end);
  batch.query_start.push_back(batch.size());
  batch.kv_len.push_back(end);
  batch.prompt_len.push_back(sequence.request->prompt_length());
  if (pools_.recurrent()) batch.state_slots.push_back(sequence.memory.state_slot);
  tokens_left_ -= tokens;
  if (part.samples > 0) {
    sequence.sample = part.first_task + part.scores;
    sequence.unknown += drafted > 0 ? part.samples : 1;
  }
  sequence.computed = end;
  sequence.awaits_host = part.scores > 0 || part.outputs == Outputs::kFork || part.outputs == Outputs::kVector ||
                         sequence.speculates || sequence.request->searches();
  sequence.last_step = number_;
  ++sequence.in_flight;
}

// The adapter of tokens [first, end), which were added last.
void BatchBuilder::add_adapter(const Sequence& sequence, int first, int end) {
  const int from = std::max(first, sequence.request->adapter.from);
  if (sequence.adapter_slot < 0 || from >= end) return;
  out_.batch.adapters.resize(out_.batch.tokens.size() - static_cast<size_t>(end - from), -1);
  out_.batch.adapters.resize(out_.batch.tokens.size(), sequence.adapter_slot);
}

void BatchBuilder::add_module(Sequence& sequence, int module, int tokens) {
  Batch& batch = out_.batch;
  const ModuleLayout::Part& of = sequence.memory.layout->parts[static_cast<size_t>(module)];
  int& computed = sequence.memory.modules[static_cast<size_t>(module)].computed;
  ScheduledBatch::Part& part = out_.parts.emplace_back();
  part.sequence = &sequence;
  part.first = of.first + computed;
  part.tokens = tokens;
  part.first_task = static_cast<int>(out_.tasks.size());
  part.module = module;
  for (int i = 0; i < tokens; ++i) {
    batch.tokens.push_back(sequence.tokens[static_cast<size_t>(part.first + i)]);
    batch.positions.push_back(of.position + computed + i);
  }
  if (!batch.from_sample.empty()) batch.from_sample.resize(batch.tokens.size(), -1);
  add_adapter(sequence, part.first, part.first + tokens);
  computed += tokens;
  batch.query_start.push_back(batch.size());
  batch.kv_len.push_back(computed);
  batch.prompt_len.push_back(sequence.request->prompt_length());
  tokens_left_ -= tokens;
  sequence.computed = sequence.memory.first_uncomputed(pools_.options.block_size);
  sequence.last_step = number_;
  ++sequence.in_flight;
}

// The vectors of positions [first, end), which come next in the batch.
void BatchBuilder::add_given(const Sequence& sequence, int first, int end) {
  if (first >= end) return;
  const std::shared_ptr<const PromptVectors>& vectors = sequence.request->request.prompt_vectors;
  out_.batch.given.push_back({.row = out_.batch.size(),
                              .count = end - first,
                              .values = vectors->values(first, end - first),
                              .owner = vectors});
}

// The tasks of a part whose tokens come next in the batch.
void BatchBuilder::add_tasks(const Sequence& sequence, ScheduledBatch::Part& part, int drafted) {
  const RequestState& request = *sequence.request;
  const int end = part.first + part.tokens;
  if (const auto& pooling = request.request.pooling) {
    if (end == sequence.length()) part.outputs = Outputs::kVector;
    out_.batch.wants_hidden |= part.outputs == Outputs::kVector || *pooling == HiddenPooling::kMean;
    return;
  }
  out_.batch.wants_hidden |= request.contrastive != nullptr;
  if (!sequence.plain && request.scores_prompt()) {
    const int scored_end = std::min(end, request.prompt_length() - 1);
    for (int position = std::max(part.first, request.scored); position < scored_end; ++position) {
      out_.tasks.push_back({.row = add_logit_row(part, position),
                            .target = sequence.tokens[position + 1],
                            .params = sequence.task.params,
                            .logprobs = *sequence.task.params->prompt_logprobs});
      ++part.scores;
    }
    if (part.scores > 0) part.outputs = Outputs::kScores;
  }
  if (end < sequence.length()) return;
  part.outputs = drafted > 0 ? Outputs::kVerify : Outputs::kToken;
  if (!sequence.plain && request.unforked() && !request.searches()) part.outputs = Outputs::kFork;
  const bool forks = part.outputs == Outputs::kFork;
  part.samples = forks ? request.request.n : drafted + 1;
  for (int i = 0, row = 0; i < part.samples; ++i) {
    const int ahead = forks ? 0 : i;
    if (i == 0 || !forks) row = add_logit_row(part, sequence.length() - 1 + ahead);
    SampleTask& task = out_.tasks.emplace_back(sequence.task);
    task.row = row;
    task.choice += forks ? i : 0;
    task.position = sequence.outputs() + sequence.unknown + ahead;
  }
}

// Asks for the logits of one of the part's positions. Returns their row.
int BatchBuilder::add_logit_row(const ScheduledBatch::Part& part, int position) {
  Batch& batch = out_.batch;
  if (part.sequence->adapter_slot >= 0 && position >= part.sequence->request->adapter.from) {
    batch.sample_adapters.resize(batch.sample_rows.size(), -1);
    batch.sample_adapters.push_back(part.sequence->adapter_slot);
  }
  batch.sample_rows.push_back(batch.size() + position - part.first);
  --rows_left_;
  return static_cast<int>(batch.sample_rows.size()) - 1;
}

void BatchBuilder::move_on(std::span<Sequence* const> sequences) {
  Batch& batch = out_.batch;
  const size_t count = sequences.size();
  batch.from_sample.assign(count, -1);
  batch.copies.clear();
  batch.token_copies.clear();
  bool unknown = false, fit = true;
  for (size_t i = 0; i < count; ++i) {
    Sequence& sequence = *sequences[i];
    const int position = sequence.computed, moved = position - out_.parts[i].first;
    batch.tokens[i] = 0;
    if (sequence.unknown > 0) {
      batch.from_sample[i] = sequence.sample;
      unknown = true;
    } else {
      batch.tokens[i] = sequence.tokens[position];
    }
    batch.positions[i] += moved;
    batch.kv_len[i] = position + 1;
    out_.parts[i].first = position;
    out_.tasks[i].position += moved;
    if (sequence.placed_in <= out_.number) {
      for (size_t slot = i; slot < batch.slots.size(); slot += count) batch.slots[slot] += moved;
    } else if (sequence.memory.rows() <= batch.block_table_stride) {
      write_places(i);
    } else {
      fit = false;
    }
    sequence.sample = static_cast<int>(i);
    sequence.computed = position + 1;
    ++sequence.unknown;
    ++sequence.in_flight;
    sequence.last_step = number_;
  }
  if (!unknown) batch.from_sample.clear();
  if (!fit) write_places();
  placed_ = out_.parts.size();
  tokens_left_ -= static_cast<int>(count);
  rows_left_ -= static_cast<int>(count);
}

}  // namespace sluice
