// Chooses the sizes of captured graphs, pads batches to them, and captures.
#include "engine/graph_runner.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <iterator>
#include <span>

#include "base/bytes.h"
#include "base/log.h"
#include "base/wide.h"
#include "engine/key_parts.h"
#include "engine/model_step.h"

namespace sluice {
namespace {

constexpr int kFewestBlocks = 16;  // smallest Size::blocks
constexpr int kFirstRows = 32;     // most rows of the steps that are captured before the first request

int whole(int n, int step) { return (n + step - 1) / step * step; }

void check_within(const char* what, std::span<const int32_t> values, int32_t least, int32_t most) {
  for (const int32_t value : values) CHECK(value >= least && value <= most, "{} {}", what, value);
}

struct TableRows {
  const int32_t* blocks = nullptr;
  size_t rows = 0, width = 0;
};

// The rows that every sequence has. 0: some have more than others, or not all rows are sampled.
int rows_of_each(const Batch& batch) {
  const int sequences = batch.sequences(), rows = sequences > 0 ? batch.size() / sequences : 0;
  if (rows * sequences != batch.size() || batch.sample_rows.size() != batch.tokens.size()) return 0;
  for (int i = 0; i < sequences; ++i) {
    if (batch.query_start[i] != i * rows) return 0;
  }
  return rows;
}

// Copies a block table to one with wider rows and fills the rest of each row with `nobodys`. Returns how many entries
// are neither -1 nor a block below `nobodys`. A step has thousands of entries, so the check has no branch per entry.
SLUICE_WIDE uint32_t copy_rows(TableRows from, int32_t* to, size_t width, int32_t nobodys) {
  uint32_t bad = 0;
  const auto most = static_cast<uint32_t>(nobodys);
  for (size_t row = 0; row < from.rows; ++row, from.blocks += from.width, to += width) {
    for (size_t i = 0; i < from.width; ++i) {
      const int32_t block = from.blocks[i];
      bad += static_cast<uint32_t>(static_cast<uint32_t>(block) + 1 > most);
      to[i] = block;
    }
    for (size_t i = from.width; i < width; ++i) to[i] = nobodys;
  }
  return bad;
}

}  // namespace

GraphRunner::GraphRunner(LoadedModel& loaded, ops::Ctx& context, StepInputs& inputs)
    : loaded_(loaded), context_(context), inputs_(inputs) {}

// The stages of a pipeline exchange results outside of the model (Runner::run_stage).
bool GraphRunner::usable() const {
  const LoadPlan& plan = loaded_.plan;
  return plan.backend->can.captures && plan.shape.capturable && !plan.stage.many();
}

bool GraphRunner::takes(const Batch& batch) const {
  if (!batch.adapters.empty() && !loaded_.adapters->plain()) return false;
  if (!usable() || batch.wants_hidden != keeps_hidden(loaded_) || !batch.given.empty()) return false;
  const int rows = rows_of_each(batch);
  return rows >= 1 && rows <= most_rows();
}

int GraphRunner::most_rows() const {
  return std::min(1 + (loaded_.plan.drafts ? loaded_.plan.drafts->tokens : 0), loaded_.plan.max_model_len);
}

int GraphRunner::most_sequences(int rows) const {
  const LoadPlan& plan = loaded_.plan;
  return std::min(plan.max_num_seqs, std::min(plan.step_tokens, plan.logit_rows) / rows);
}

// Rounds the number of sequences up to a multiple (8 up to 64, then 32; powers of 2 up to 4), and the blocks up to a
// power of 2.
GraphRunner::Size GraphRunner::size_for(int sequences, int rows, int blocks, bool adapters) const {
  const LoadPlan& plan = loaded_.plan;
  const auto power = [](int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); };
  const int padded = sequences <= 4 ? power(sequences) : whole(sequences, sequences <= 64 ? 8 : 32);
  const int most_blocks = (plan.max_model_len + plan.block_size - 1) / plan.block_size;
  return {.sequences = std::min(padded, most_sequences(rows)),
          .rows = rows,
          .blocks = std::min(std::max(power(blocks), kFewestBlocks), most_blocks),
          .adapters = adapters};
}

void GraphRunner::prepare() {
  if (!usable()) return;
  free_before_ = loaded_.plan.device->memory().available();
  std::vector<Size> all;
  for (const int rows : std::set<int>{1, most_rows()}) {
    for (int n = 1; n <= most_sequences(rows); n = all.back().sequences + 1) all.push_back(size_for(n, rows, 1, false));
  }
  const auto larger = std::stable_partition(all.begin(), all.end(),
                                            [](const Size& size) { return size.sequences * size.rows <= kFirstRows; });
  later_.assign(std::make_reverse_iterator(all.end()), std::make_reverse_iterator(larger));
  for (const Size& size : std::span(all.begin(), larger)) prepare(size);
  if (!has_more()) report();
}

void GraphRunner::prepare_more() {
  const Size size = later_.back();
  later_.pop_back();
  prepare(size);
  if (!has_more()) report();
}

void GraphRunner::report() const {
  const size_t free = loaded_.plan.device->memory().available();
  log::info("{} sizes of decode steps captured as graphs in {:.0f} ms, {} of device memory", prepared_,
            prepared_in_.count(), format_bytes(free_before_ - std::min(free_before_, free)));
}

void GraphRunner::prepare(Size size) {
  const auto begin = std::chrono::steady_clock::now();
  step(size);
  ++prepared_;
  prepared_in_ += std::chrono::steady_clock::now() - begin;
}

// Pads the batch to `size.sequences` sequences and writes it where the graph of that size reads its inputs.
BatchView GraphRunner::place(const Batch& batch, Size size, const Tensor& sampled) {
  const LoadPlan& plan = loaded_.plan;
  const auto all = static_cast<size_t>(size.sequences), have = batch.kv_len.size();
  const auto rows = static_cast<size_t>(size.rows), all_rows = all * rows, have_rows = have * rows;
  inputs_.begin();
  const auto add = [&](std::span<const int32_t> own, size_t count, int32_t nobodys) -> Indices {
    const StepInputs::List list = inputs_.add(count);
    std::ranges::fill(std::ranges::copy(own, list.host.begin()).out, list.host.end(), nobodys);
    return list;
  };
  const auto add_counted = [&](size_t count, int32_t step) -> Indices {
    const StepInputs::List list = inputs_.add(count);
    for (size_t i = 0; i < count; ++i) list.host[i] = static_cast<int32_t>(i) * step;
    return list;
  };
  BatchView view;
  view.wants_hidden = keeps_hidden(loaded_);
  view.tokens = add(batch.tokens, all_rows, 0);
  view.positions = add(batch.positions, all_rows, 0);
  view.kv_len = add(batch.kv_len, all, size.rows);
  view.query_start = add_counted(all + 1, size.rows);
  view.sample_rows = add_counted(all_rows, 1);
  if (plan.shape.token_types) view.types = add(batch.types, all_rows, 0);
  if (plan.state_slots > 0) view.state_slots = add(batch.state_slots, all, plan.state_slots);
  if (size.adapters) view.adapters = view.sample_adapters = add(batch.adapters, all_rows, -1);

  const size_t groups = plan.kv.groups.size(), width = static_cast<size_t>(size.blocks);
  const StepInputs::List slots = inputs_.add(all_rows * groups), table = inputs_.add(all * width * groups);
  const int32_t *own_slots = batch.slots.data(), *own_table = batch.block_table.data();
  int32_t *slot = slots.host.data(), *row = table.host.data();
  for (const BlockGroup& group : plan.kv.groups) {
    const int32_t nobodys = plan.blocks * group.ids_per_block;
    slot = std::fill_n(std::copy_n(own_slots, have_rows, slot), all_rows - have_rows, nobodys * plan.block_size);
    const TableRows own = {.blocks = own_table, .rows = have, .width = static_cast<size_t>(batch.block_table_stride)};
    CHECK(own.width <= width && copy_rows(own, row, width, nobodys) == 0, "a block beyond {}", nobodys);
    std::fill_n(row + have * width, (all - have) * width, nobodys);
    own_slots += have_rows, own_table += have * own.width, row += all * width;
  }
  to_own_slots(plan.kv.share, slots.host);
  view.slots = slots, view.block_table = table, view.block_table_stride = size.blocks;

  Indices from_sample;  // must be the last list: the others are then at the same addresses in steps without it
  if (!batch.from_sample.empty()) from_sample = add(batch.from_sample, all_rows, -1);
  inputs_.send();
  inputs_.feed_sampled(context_, view.tokens, from_sample, sampled);
  return view;
}

// Checks the batch's values. Ops check them when they are called, but not when a captured graph is launched.
void GraphRunner::check(const Batch& batch) const {
  const LoadPlan& plan = loaded_.plan;
  const size_t rows = batch.tokens.size();
  check_within("token", batch.tokens, 0, plan.shape.vocab - 1);
  check_within("keys", batch.kv_len, 1, std::min(plan.max_model_len, batch.block_table_stride * plan.block_size));
  check_within("position", batch.positions, 0, plan.max_model_len - 1);
  for (size_t group = 0; group < plan.kv.groups.size(); ++group) {
    const int32_t blocks = plan.blocks * plan.kv.groups[group].ids_per_block;
    check_within("slot", std::span(batch.slots).subspan(group * rows, rows), 0, blocks * plan.block_size - 1);
  }
  check_within("state", batch.state_slots, 0, plan.state_slots - 1);
  check_within("adapter", batch.adapters, -1, plan.adapters.slots - 1);
}

GraphRunner::Step GraphRunner::capture(Size size) {
  const LoadPlan& plan = loaded_.plan;
  BatchView view = place({}, size, {});  // holds the device addresses of the indices for this size
  const std::vector<int32_t> lengths(static_cast<size_t>(size.sequences), size.rows);
  view.prompt_len = lengths;
  Size any_blocks = size;
  any_blocks.blocks = 0;
  if (warm_.insert(any_blocks).second) {  // libraries initialize themselves in a step that is not captured
    context_.arena.reset();
    run_model(loaded_, context_, view);
  }
  const std::vector<int32_t> longest(lengths.size(), std::min(size.blocks * plan.block_size, plan.max_model_len));
  view.kv_len = Indices(longest, view.kv_len.device);
  Step step;
  step.graph = plan.queue->capture([&] {
    context_.arena.reset();
    step.output = run_model(loaded_, context_, view);
  });
  return step;
}

const GraphRunner::Step& GraphRunner::step(Size size) {
  auto found = steps_.find(size);
  if (found == steps_.end()) found = steps_.emplace(size, capture(size)).first;
  return found->second;
}

// Their kernels leave out layers that an adapter has changed since.
void GraphRunner::drop_outdated_steps() {
  const int changed = loaded_.adapters->changed();
  if (changed == std::exchange(changed_layers_, changed)) return;
  loaded_.plan.queue->wait();  // for steps that run
  std::erase_if(steps_, [](const auto& step) { return step.first.adapters; });
}

StepOutput GraphRunner::forward(const Batch& batch, const Tensor& sampled) {
  const Size size = size_for(batch.sequences(), rows_of_each(batch), batch.block_table_stride, !batch.adapters.empty());
  if (size.adapters) drop_outdated_steps();
  const Step& ready = step(size);
  check(batch);
  place(batch, size, sampled);
  ready.graph->launch();
  const auto rows_of = [&](const Tensor& all) { return all.data != nullptr ? all.slice_rows(0, batch.size()) : all; };
  return {.logits = rows_of(ready.output.logits), .hidden = rows_of(ready.output.hidden)};
}

}  // namespace sluice
