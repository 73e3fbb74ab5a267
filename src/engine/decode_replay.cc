// Sizes of recordings, padding, recording.
#include "engine/decode_replay.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/log.h"

namespace sluice {
namespace {

constexpr int kFewestBlocks = 16;  // of a recording's longest sequence

int whole(int n, int step) { return (n + step - 1) / step * step; }

}  // namespace

DecodeReplay::DecodeReplay(LoadedModel& loaded, ops::Ctx& context, StepInputs& inputs)
    : loaded_(loaded), context_(context), inputs_(inputs) {}

bool DecodeReplay::usable() const { return loaded_.plan.backend->record != nullptr && loaded_.plan.shape.replayable; }

bool DecodeReplay::takes(const Batch& batch) const {
  return usable() && batch.size() > 0 && batch.size() == batch.sequences() &&
         batch.sample_rows.size() == batch.kv_len.size();
}

// One recording for every few sequences, and for every doubling of the length.
DecodeReplay::Size DecodeReplay::size_for(int sequences, int blocks) const {
  const LoadPlan& plan = loaded_.plan;
  const auto power = [](int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); };
  const int padded = sequences <= 4 ? power(sequences) : whole(sequences, sequences <= 64 ? 8 : 32);
  const int most_blocks = (plan.max_model_len + plan.block_size - 1) / plan.block_size;
  return {.sequences = std::min(padded, plan.max_num_seqs),
          .blocks = std::min(std::max(power(blocks), kFewestBlocks), most_blocks)};
}

void DecodeReplay::prepare() {
  if (!usable()) return;
  const auto begin = std::chrono::steady_clock::now();
  Memory& memory = loaded_.plan.backend->memory();
  const size_t free = memory.available();
  for (int n = 1; n <= loaded_.plan.max_num_seqs; n = size_for(n, 1).sequences + 1) step(size_for(n, 1));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  log::info("{} sizes of decode steps recorded in {:.0f} ms, {} of device memory", steps_.size(), took.count(),
            format_bytes(free - std::min(free, memory.available())));
}

// The batch with rows of nobody's sequence until there are `size.sequences`.
Batch DecodeReplay::padded(Batch batch, Size size) const {
  const LoadPlan& plan = loaded_.plan;
  const auto all = static_cast<size_t>(size.sequences), have = batch.kv_len.size();
  batch.tokens.resize(all, 0);
  batch.positions.resize(all, 0);
  if (!batch.from_draw.empty()) batch.from_draw.resize(all, -1);
  if (plan.shape.token_types) batch.types.resize(all, 0);
  batch.kv_len.resize(all, 1);
  batch.prompt_len.resize(all, 1);
  if (plan.state_slots > 0) batch.state_slots.resize(all, plan.state_slots);
  if (batch.query_start.empty()) batch.query_start = {0};
  for (size_t row = have; row < all; ++row) {
    batch.query_start.push_back(static_cast<int32_t>(row + 1));
    batch.sample_rows.push_back(static_cast<int32_t>(row));
  }
  std::vector<int32_t> slots, table;
  slots.reserve(all * plan.kv.groups.size());
  table.reserve(slots.capacity() * static_cast<size_t>(size.blocks));
  auto slot = batch.slots.begin(), blocks = batch.block_table.begin();
  for (const BlockGroup& group : plan.kv.groups) {
    const int32_t nobodys = plan.blocks * group.ids_per_block;
    slots.insert(slots.end(), slot, slot + static_cast<int64_t>(have));
    slots.resize(slots.size() + all - have, nobodys * plan.block_size);
    slot += static_cast<int64_t>(have);
    for (size_t row = 0; row < have; ++row, blocks += batch.block_table_stride) {
      table.insert(table.end(), blocks, blocks + batch.block_table_stride);
      table.resize(table.size() + static_cast<size_t>(size.blocks - batch.block_table_stride), nobodys);
    }
    table.resize(table.size() + (all - have) * static_cast<size_t>(size.blocks), nobodys);
  }
  batch.slots = std::move(slots);
  batch.block_table = std::move(table);
  batch.block_table_stride = size.blocks;
  return batch;
}

// What ops check when they are called, they cannot when they are launched again.
void DecodeReplay::check(const Batch& batch) const {
  const LoadPlan& plan = loaded_.plan;
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    const int32_t length = batch.kv_len[row], position = batch.positions[row];
    CHECK(batch.tokens[row] >= 0 && batch.tokens[row] < plan.shape.vocab, "token {}", batch.tokens[row]);
    CHECK(length >= 1 && length <= plan.max_model_len, "{} keys", length);
    CHECK(position >= 0 && position < plan.max_model_len, "position {}", position);
    const int used = (length + plan.block_size - 1) / plan.block_size;
    CHECK(used <= batch.block_table_stride, "{} blocks of {}", used, batch.block_table_stride);
    for (size_t group = 0; group < plan.kv.groups.size(); ++group) {
      const size_t of_group = group * batch.tokens.size() + row;
      const int32_t slot = batch.slots[of_group], most = plan.blocks * plan.kv.groups[group].ids_per_block;
      CHECK(slot >= 0 && slot / plan.block_size <= most, "slot {}", slot);
      const int32_t* table = batch.block_table.data() + of_group * static_cast<size_t>(batch.block_table_stride);
      for (int i = 0; i < used; ++i) CHECK(table[i] >= -1 && table[i] <= most, "block {}", table[i]);
    }
    if (plan.state_slots > 0) {
      CHECK(batch.state_slots[row] >= 0 && batch.state_slots[row] <= plan.state_slots, "state {}",
            batch.state_slots[row]);
    }
  }
}

DecodeReplay::Step DecodeReplay::record(Size size) {
  const LoadPlan& plan = loaded_.plan;
  Batch longest = padded({}, size);
  BatchView view = inputs_.place(context_, longest);  // tells where the indices of this size lie
  if (warm_.insert(size.sequences).second) {          // libraries get ready in a step that is not recorded
    context_.arena.reset();
    loaded_.model->forward(context_, view, *loaded_.kv, *loaded_.states);
  }
  std::ranges::fill(longest.kv_len, std::min(size.blocks * plan.block_size, plan.max_model_len));
  view.kv_len = ops::Indices(longest.kv_len, view.kv_len.device);
  Step step;
  step.recording = plan.backend->record([&] {
    context_.arena.reset();
    step.result = loaded_.model->forward(context_, view, *loaded_.kv, *loaded_.states);
  });
  return step;
}

const DecodeReplay::Step& DecodeReplay::step(Size size) {
  auto found = steps_.find(size);
  if (found == steps_.end()) found = steps_.emplace(size, record(size)).first;
  return found->second;
}

Tensor DecodeReplay::forward(const Batch& batch, const Tensor& drawn) {
  const Size size = size_for(batch.sequences(), batch.block_table_stride);
  const Step& ready = step(size);
  const Batch all = padded(batch, size);
  check(all);
  inputs_.place(context_, all, drawn);
  ready.recording->launch();
  return ready.result.slice_rows(0, batch.sequences());
}

}  // namespace sluice
