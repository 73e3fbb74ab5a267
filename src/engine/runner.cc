// Runs steps on the device, and single texts.
#include "engine/runner.h"

#include <algorithm>
#include <utility>

#include "engine/batch_message.h"
#include "engine/model_step.h"
#include "nn/moe/balancer.h"
#include "scheduler/options.h"

namespace sluice {

namespace {

// Flattens the pairs of block copies to one list of indices.
template <class Copy>
Indices pairs_of(const std::vector<Copy>& copies) {
  static_assert(sizeof(Copy) == 2 * sizeof(int32_t));
  return std::span(reinterpret_cast<const int32_t*>(copies.data()), 2 * copies.size());
}

// The parts that a step of a pipeline is cut into. More parts let the stages compute at the same time for longer, but
// matmuls of fewer rows are less efficient.
int stage_parts(int rows, int stages) {
  constexpr int kLeastRows = 128;
  return std::clamp(rows / kLeastRows, 1, 2 * stages);
}

}  // namespace

Runner::Runner(LoadedModel& loaded, Role role)
    : loaded_(loaded),
      role_(role),
      context_{*loaded.plan.queue, *loaded.arena},
      inputs_(loaded.plan),
      graph_runner_(loaded, context_, inputs_) {
  context_.communicator = loaded.plan.group.get();
  context_.key_ranks = loaded.plan.key_ranks.get();
  if (loaded.plan.stage.many()) context_.pipeline = loaded.plan.communicator.get();
}

void Runner::tell(Message about, std::vector<std::byte> message) {
  Communicator& ranks = *loaded_.plan.communicator;
  CHECK(ranks.rank() == 0, "rank {} does not follow rank 0", ranks.rank());
  message_ = std::move(message);
  message_.push_back(static_cast<std::byte>(about) |
                     std::byte{role_ == Role::kDraftModel ? kOfDraftModel : uint8_t{0}});
  ranks.broadcast(message_, 0);
}

StepOutput Runner::run(const Batch& batch, const Tensor& sampled) {
  if (loaded_.plan.communicator != nullptr) tell(Message::kBatch, to_message(batch));
  return run_here(batch, sampled);
}

void Runner::prepare() {
  if (loaded_.plan.communicator != nullptr) tell(Message::kPrepare, {});
  graph_runner_.prepare();
}

bool Runner::prepare_more() {
  if (!graph_runner_.has_more()) return false;
  if (loaded_.plan.communicator != nullptr) tell(Message::kPrepareMore, {});
  graph_runner_.prepare_more();
  return true;
}

void Runner::tell_about_adapters(std::vector<std::byte> message) {
  if (!message.empty()) tell(Message::kAdapter, std::move(message));
}

void Runner::add_adapter(const std::shared_ptr<const Adapter>& adapter) {
  if (loaded_.plan.communicator == nullptr) return;
  tell_about_adapters(sent_adapters_.drop());
  tell_about_adapters(sent_adapters_.send(adapter));
}

void Runner::place_adapter(const Adapter& adapter, int slot, float scale) {
  if (loaded_.plan.communicator != nullptr) tell_about_adapters(sent_adapters_.place(adapter, slot, scale));
  sluice::place_adapter(&adapter, slot, scale, *loaded_.adapters, *loaded_.plan.queue);
}

void Runner::follow(const std::function<std::unique_ptr<RankRows>()>& make_rows) {
  std::unique_ptr<RankRows> rows;
  ReceivedAdapters adapters(loaded_);
  std::unique_ptr<Runner> draft;
  if (loaded_.draft != nullptr) draft = std::make_unique<Runner>(*loaded_.draft, Role::kDraftModel);
  for (;;) {
    loaded_.plan.communicator->broadcast(message_, 0);
    if (message_.empty()) return;
    const auto last = static_cast<uint8_t>(message_.back());
    const auto about = static_cast<Message>(last & ~kOfDraftModel);
    message_.pop_back();
    if ((last & kOfDraftModel) != 0) {
      CHECK(draft != nullptr, "rank 0 has a draft model, and this rank has none");
      draft->follow_step(about, message_);
      continue;
    }
    follow_step(about, message_);
    if (about == Message::kAdapter) {
      adapters.take(message_);
      message_ = {};  // it may have been large
    }
    if (about != Message::kRows) continue;
    if (rows != nullptr) {
      rows->follow(message_);
    } else {
      rows = make_rows();
    }
  }
}

// Does what rank 0's call did, unless the message is about something else.
void Runner::follow_step(Message about, std::span<const std::byte> message) {
  if (about == Message::kBatch) run_here(from_message(message), {});
  if (about == Message::kCopies) copy(from_message(message));
  if (about == Message::kPrepare) graph_runner_.prepare();
  if (about == Message::kPrepareMore) graph_runner_.prepare_more();
}

std::optional<ExpertBalance> Runner::expert_balance() const {
  if (loaded_.balancer == nullptr) return std::nullopt;
  return ExpertBalance{.balance = loaded_.balancer->balance(), .moved = loaded_.balancer->moved()};
}

void Runner::make_copies(Batch& batch) {
  Batch copies;
  copies.copies = std::exchange(batch.copies, {});
  copies.token_copies = std::exchange(batch.token_copies, {});
  copies.state_copies = std::exchange(batch.state_copies, {});
  if (copies.copies.empty() && copies.token_copies.empty() && copies.state_copies.empty()) return;
  if (loaded_.plan.communicator != nullptr) tell(Message::kCopies, to_message(copies));
  copy(copies);
}

void Runner::copy(const Batch& batch) {
  loaded_.kv->copy_blocks(context_, pairs_of(batch.copies));
  loaded_.kv->copy_tokens(context_, pairs_of(batch.token_copies));
  loaded_.states->copy_slots(context_, pairs_of(batch.state_copies));
}

StepOutput Runner::run_here(const Batch& batch, const Tensor& sampled) {
  if (loaded_.balancer != nullptr) loaded_.balancer->begin_step();
  copy(batch);
  if (graph_runner_.takes(batch)) return graph_runner_.forward(batch, sampled);
  loaded_.arena->reset();
  const StepOutput output = loaded_.plan.stage.many() ? run_stage(batch, sampled) : forward_here(batch, sampled);
  loaded_.check_files();  // weights on a device were copied there; on the host the step is done
  return output;
}

StepOutput Runner::forward_here(const Batch& batch, const Tensor& sampled) {
  const BatchView view = inputs_.place(context_, batch, sampled);
  return run_model(loaded_, context_, view);
}

// The last stage collects the results of all parts before it sends them to rank 0. Rank 0 can therefore hand on all
// parts before it waits for results.
StepOutput Runner::run_stage(const Batch& batch, const Tensor& sampled) {
  const LoadPlan& plan = loaded_.plan;
  const bool generates = plan.task == Task::kGenerate;
  const auto rows_of = [&](const Batch& b) {
    return generates ? static_cast<int64_t>(b.sample_rows.size()) : int64_t{b.sequences()};
  };
  const bool leads = plan.ranks.rank == 0;  // its stage
  const bool gives = leads && plan.stage.last(), takes = leads && plan.stage.rank == 0;
  StepOutput results;
  Tensor& result = generates ? results.logits : results.hidden;
  if (gives || takes) {
    result = context_.arena.take(&kFloat32, {rows_of(batch), plan.shape.width});
    if (generates && batch.wants_hidden) {
      results.hidden = context_.arena.take(&kFloat32, {batch.size(), plan.shape.hidden});
    }
  }
  int64_t done = 0, tokens = 0;
  for (const Batch& part : split(batch, stage_parts(batch.size(), plan.stage.size), !generates)) {
    Arena::Scope scope(context_.arena);
    const StepOutput output = forward_here(part, sampled);
    const int64_t rows = rows_of(part);
    if (gives && rows > 0) ops::copy(context_, result.slice_rows(done, rows), output.of_task(plan.task));
    if (gives && generates && batch.wants_hidden) {
      ops::copy(context_, results.hidden.slice_rows(tokens, part.size()), output.hidden);
    }
    done += rows, tokens += part.size();
  }
  for (const Tensor& collected : {results.logits, results.hidden}) {
    if (collected.data == nullptr) continue;
    if (gives) ops::send(context_, 0, collected);
    if (takes) ops::receive(context_, (plan.stage.size - 1) * plan.ranks.size, collected);
  }
  return results;
}

Tensor Runner::to_host(const Tensor& result) {
  if (loaded_.plan.device->memory().host_accessible()) return result;
  CHECK(result.dense(), "results {}", result.shape.str());
  if (result.bytes() > results_.size()) {
    const LoadPlan& plan = loaded_.plan;
    results_ = Buffer(static_cast<size_t>(plan.logit_rows) * static_cast<size_t>(plan.shape.width) * sizeof(float),
                      plan.device->pinned_memory());
    CHECK(result.bytes() <= results_.size(), "results {}", result.shape.str());
  }
  context_.queue.copy_async(results_.data(), result.data, result.bytes());
  context_.queue.wait();
  return Tensor(results_.data(), result.dtype, result.shape);
}

void for_each_logits(Runner& runner, const LoadPlan& plan, int block_size, std::span<const int32_t> tokens, int chunk,
                     const std::function<void(int, std::span<const float>)>& row, int adapter, int adapter_from) {
  const int total = static_cast<int>(tokens.size());
  const int needed = peak_blocks(total, block_size, plan.kv.groups, chunk);
  CHECK(needed <= plan.blocks, "{} tokens need {} of {} blocks", total, needed, plan.blocks);
  CHECK(chunk >= 1 && chunk <= plan.logit_rows, "chunk {} of at most {} rows", chunk, plan.logit_rows);
  for (int begin = 0; begin < total; begin += chunk) {
    const int count = std::min(chunk, total - begin);
    Batch batch;
    for (int i = 0; i < count; ++i) {
      batch.tokens.push_back(tokens[begin + i]);
      batch.positions.push_back(begin + i);
      batch.sample_rows.push_back(i);
    }
    if (plan.task != Task::kGenerate) batch.types.assign(static_cast<size_t>(count), 0);
    if (adapter >= 0 && adapter_from < begin + count) {
      batch.adapters.assign(static_cast<size_t>(std::max(adapter_from - begin, 0)), -1);
      batch.adapters.resize(static_cast<size_t>(count), adapter);
      batch.sample_adapters = batch.adapters;
    }
    batch.query_start = {0, count};
    batch.kv_len = {begin + count};
    batch.prompt_len = {total};
    if (plan.state_slots > 0) batch.state_slots = {0};
    batch.block_table_stride = (begin + count + block_size - 1) / block_size;
    int first = 0;  // first block of the group
    for (const BlockGroup& group : plan.kv.groups) {
      const int blocks = peak_blocks(total, block_size, group, chunk);
      // The blocks of a window are used in turn: a block takes the place of one that no later token reads.
      const auto number = [&](int block) { return (first + block % blocks) * group.ids_per_block; };
      for (int at = begin; at < begin + count; ++at) {
        batch.slots.push_back(number(at / block_size) * block_size + at % block_size);
      }
      for (int block = 0; block < batch.block_table_stride; ++block) batch.block_table.push_back(number(block));
      first += blocks;
    }
    const Tensor logits = runner.forward(batch);
    for (int i = 0; i < logits.rows(); ++i) {
      row(begin + i, {logits.f32() + i * logits.row_stride, static_cast<size_t>(logits.shape[1])});
    }
  }
}

}  // namespace sluice
