// Sizes of recordings, padding, recording.
#include "engine/decode_replay.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>

#include "base/log.h"

namespace sluice {
namespace {

constexpr int kFewestBlocks = 16;  // of a recording's longest sequence

int whole(int n, int step) { return (n + step - 1) / step * step; }

// Looks at all of them without a branch, as there are thousands in a step.
void check_within(const char* what, std::span<const int32_t> values, int32_t least, int32_t most) {
  int outside = 0;
  for (const int32_t value : values) outside |= static_cast<int>(value < least) | static_cast<int>(value > most);
  if (outside == 0) return;
  for (const int32_t value : values) CHECK(value >= least && value <= most, "{} {}", what, value);
}

}  // namespace

DecodeReplay::DecodeReplay(LoadedModel& loaded, ops::Ctx& context, StepInputs& inputs)
    : loaded_(loaded), context_(context), inputs_(inputs) {}

bool DecodeReplay::usable() const { return loaded_.plan.backend->record != nullptr && loaded_.plan.shape.replayable; }

bool DecodeReplay::takes(const Batch& batch) const {
  return usable() && batch.size() > 0 && batch.size() == batch.sequences() &&
         batch.sample_rows.size() == batch.kv_len.size();
}

int DecodeReplay::most_sequences() const {
  return static_cast<int>(std::min<int64_t>(loaded_.plan.max_num_seqs, loaded_.plan.step_tokens));
}

// One recording for every few sequences, and for every doubling of the length.
DecodeReplay::Size DecodeReplay::size_for(int sequences, int blocks) const {
  const LoadPlan& plan = loaded_.plan;
  const auto power = [](int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); };
  const int padded = sequences <= 4 ? power(sequences) : whole(sequences, sequences <= 64 ? 8 : 32);
  const int most_blocks = (plan.max_model_len + plan.block_size - 1) / plan.block_size;
  return {.sequences = std::min(padded, most_sequences()),
          .blocks = std::min(std::max(power(blocks), kFewestBlocks), most_blocks)};
}

void DecodeReplay::prepare() {
  if (!usable()) return;
  const auto begin = std::chrono::steady_clock::now();
  Memory& memory = loaded_.plan.backend->memory();
  const size_t free = memory.available();
  for (int n = 1; n <= most_sequences(); n = size_for(n, 1).sequences + 1) step(size_for(n, 1));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  log::info("{} sizes of decode steps recorded in {:.0f} ms, {} of device memory", steps_.size(), took.count(),
            format_bytes(free - std::min(free, memory.available())));
}

// The batch with rows of nobody's sequence until there are `size.sequences`.
const Batch& DecodeReplay::padded(const Batch& batch, Size size) {
  const LoadPlan& plan = loaded_.plan;
  const auto all = static_cast<size_t>(size.sequences), have = batch.kv_len.size();
  const auto fill = [&](std::vector<int32_t>& list, const std::vector<int32_t>& from, int32_t nobodys) {
    list.assign(from.begin(), from.end());
    list.resize(all, nobodys);
  };
  fill(padded_.tokens, batch.tokens, 0);
  fill(padded_.positions, batch.positions, 0);
  fill(padded_.kv_len, batch.kv_len, 1);
  fill(padded_.prompt_len, batch.prompt_len, 1);
  padded_.from_draw.clear();
  if (!batch.from_draw.empty()) fill(padded_.from_draw, batch.from_draw, -1);
  if (plan.shape.token_types) fill(padded_.types, batch.types, 0);
  if (plan.state_slots > 0) fill(padded_.state_slots, batch.state_slots, plan.state_slots);
  padded_.query_start.resize(all + 1);
  padded_.sample_rows.resize(all);
  std::iota(padded_.query_start.begin(), padded_.query_start.end(), 0);
  std::iota(padded_.sample_rows.begin(), padded_.sample_rows.end(), 0);

  const auto width = static_cast<size_t>(size.blocks), own = static_cast<size_t>(batch.block_table_stride);
  padded_.block_table_stride = size.blocks;
  padded_.slots.resize(all * plan.kv.groups.size());
  padded_.block_table.resize(all * width * plan.kv.groups.size());
  const int32_t *from_slots = batch.slots.data(), *from = batch.block_table.data();
  int32_t *slots = padded_.slots.data(), *table = padded_.block_table.data();
  for (const BlockGroup& group : plan.kv.groups) {
    const int32_t nobodys = plan.blocks * group.ids_per_block;
    slots = std::fill_n(std::copy_n(from_slots, have, slots), all - have, nobodys * plan.block_size);
    from_slots += have;
    for (size_t row = 0; row < have; ++row, from += own) {
      table = std::fill_n(std::copy_n(from, own, table), width - own, nobodys);
    }
    table = std::fill_n(table, (all - have) * width, nobodys);
  }
  return padded_;
}

// What ops check when they are called, they cannot when they are launched again.
void DecodeReplay::check(const Batch& batch) const {
  const LoadPlan& plan = loaded_.plan;
  const size_t rows = batch.tokens.size(), table = rows * static_cast<size_t>(batch.block_table_stride);
  check_within("token", batch.tokens, 0, plan.shape.vocab - 1);
  check_within("keys", batch.kv_len, 1, std::min(plan.max_model_len, batch.block_table_stride * plan.block_size));
  check_within("position", batch.positions, 0, plan.max_model_len - 1);
  for (size_t group = 0; group < plan.kv.groups.size(); ++group) {
    const int32_t most = plan.blocks * plan.kv.groups[group].ids_per_block;
    check_within("slot", std::span(batch.slots).subspan(group * rows, rows), 0, (most + 1) * plan.block_size - 1);
    check_within("block", std::span(batch.block_table).subspan(group * table, table), -1, most);
  }
  check_within("state", batch.state_slots, 0, plan.state_slots);
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
  const Batch& all = padded(batch, size);
  check(all);
  inputs_.place(context_, all, drawn);
  ready.recording->launch();
  return ready.result.slice_rows(0, batch.sequences());
}

}  // namespace sluice
