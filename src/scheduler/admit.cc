// When a waiting sequence begins to run, and what the prefix cache has of it.
#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "scheduler/scheduler.h"

namespace sluice {

void Scheduler::admit_waiting(BatchBuilder& builder) {
  lacks_adapter_slot_ = false;
  while (builder.tokens_left() > 0) {
    Sequence* head = policy_->head();
    if (head == nullptr || !admit(builder, *head)) break;
  }
}

bool Scheduler::admit(BatchBuilder& builder, Sequence& sequence) {
  if (sequence.in_flight > 0) return false;  // preempted: its last token comes with the step's results
  RequestState& request = *sequence.request;
  SequenceMemory& memory = sequence.memory;
  const int slots = request.unforked() ? request.width() : 1;
  const auto without_waiting = [&] { return park_waiting(builder) && admit(builder, sequence); };
  if (static_cast<int>(running_.size()) + reserved_slots_ + slots > options_.max_num_seqs) return without_waiting();

  if (pools_.recurrent() && pools_.states.live() == options_.state_slots)
    return without_waiting();  // or of sequences that ended in flight

  const int hidden_rows = hidden_rows_of(request);
  if (hidden_rows > hidden_rows_.free()) {
    for (const auto& [id, other] : requests_) release_hidden(*other);
    if (hidden_rows > hidden_rows_.free()) return without_waiting();
  }

  // The last token is always computed, for its logits; so are prompt rows that are to be scored, tokens whose hidden
  // states are not kept, and all rows of a mean.
  int reusable = sequence.length() - 1;
  if (request.scores_prompt()) reusable = std::min(reusable, request.scored);
  if (request.contrastive) reusable = std::min(reusable, request.hidden.known);
  if (request.request.pooling == HiddenPooling::kMean) reusable = 0;
  const bool has_modules = memory.layout != nullptr;
  const BlockExtras extras = request.extras();
  const FoundRows found = has_modules
                              ? memory.find_with_modules(pools_, sequence.tokens, reusable, extras)
                              : memory.find(pools_, request.request.cache_salt, sequence.tokens, reusable, extras);
  if (has_modules && options_.prefix_caching && others_compute(*memory.layout, found)) return false;
  const std::vector<BlockId>& hits = found.rows;
  const int computed = static_cast<int>(hits.size()) * options_.block_size;
  int missing = 0, idle_hits = 0;
  for (int group = 0; group < pools_.groups(); ++group) {
    const int first = std::min(pools_.first_kept(group, computed), static_cast<int>(hits.size()));
    for (const BlockId primary : std::span(hits).subspan(first)) {
      const BlockId block = pools_.cached(primary, group);
      if (block == kNoBlock) continue;
      --missing;
      if (pools_.blocks.holders(block) == 0) ++idle_hits;
    }
    missing += std::min(
        peak_blocks(sequence.length(), options_.block_size, options_.groups[group], options_.max_num_batched_tokens),
        pools_.blocks_for(sequence.length()) - first);
  }
  missing += found.missing_tails;
  for (const BlockId tail : found.tails) idle_hits += tail != kNoBlock && pools_.blocks.holders(tail) == 0;
  if (missing > pools_.blocks.available() - idle_hits - promised_blocks()) return without_waiting();
  sequence.computed = has_modules ? std::max(computed, memory.layout->tokens) : computed;
  memory.snapshot_at = found.known * options_.block_size;
  if (chunk_size(builder, sequence) == 0) {
    sequence.computed = 0;
    return false;
  }
  const bool has_adapter = request.adapter.adapter != nullptr;
  if (has_adapter) sequence.adapter_slot = adapters_.take(request.adapter);
  if (has_adapter && sequence.adapter_slot < 0) {
    sequence.computed = 0;
    lacks_adapter_slot_ = true;
    return false;
  }

  policy_->admit(sequence);
  sequence.state = SequenceState::kRunning;
  start_running(sequence);
  reserved_slots_ += slots - 1;
  if (has_modules) {
    memory.start_modules(pools_, found);
    sequence.computed = memory.first_uncomputed(options_.block_size);
  } else {
    memory.start(pools_, hits);
  }
  if (hidden_rows > 0) request.hidden.rows = hidden_rows_.take(hidden_rows);
  const bool first = !request.admitted;
  if (first) {
    request.admitted = true;
    sequence.admitted_at = options_.clock();
    sequence.cached_tokens = found.tokens;
    for (size_t i = 0; i < found.blocks.size(); ++i) {
      ++(found.blocks[i] == memory.layout->parts[i].blocks() ? modules_found_ : modules_computed_);
    }
    queue_limit_.leave(request.request.n, request.prompt_length());
    if (options_.prefix_caching) pools_.blocks.count_query(request.prompt_length(), sequence.cached_tokens);
  }
  if (const uint64_t load = memory.load(pools_); load != 0) {
    begin_load(sequence, load, first);
    return true;
  }
  if (pools_.store.enabled()) {
    for (size_t row = hits.size(); row-- > 0;) pools_.store.touch(memory.hashes[row]);
  }
  return schedule(builder, sequence);
}

// Whether another sequence computes a module that is not found. It will be in the prefix cache soon.
bool Scheduler::others_compute(const ModuleLayout& wanted, const FoundRows& found) const {
  std::unordered_set<BlockHash, BlockHasher> missing;
  for (size_t i = 0; i < wanted.parts.size(); ++i) {
    if (found.blocks[i] < wanted.parts[i].blocks()) missing.insert(wanted.parts[i].hashes.back());
  }
  if (missing.empty()) return false;
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    const SequenceMemory& memory = other->memory;
    for (size_t i = 0; i < memory.modules.size(); ++i) {
      const ModuleLayout::Part& part = memory.layout->parts[i];
      const bool done = memory.modules[i].computed == part.tokens;
      const bool committed = memory.modules[i].cached == part.blocks() || other->in_flight == 0;
      if (!(done && committed) && missing.contains(part.hashes.back())) return true;
    }
    return false;
  });
}

// Until the load ends, the sequence is like one whose step is in flight.
void Scheduler::begin_load(Sequence& sequence, uint64_t load, bool first) {
  loads_[load] = {.sequence = &sequence, .first = first};
  ++sequence.in_flight;
  sequence.awaits_host = true;
}

std::vector<BlockHash> Scheduler::row_hashes(const Request& request) const {
  SequenceMemory prompt;
  if (!options_.prefix_caching) return {};
  const int rows = static_cast<int>(request.prompt.size()) / options_.block_size;
  prompt.extend_hashes(pools_.blocks, request.cache_salt, request.prompt, rows);
  return std::move(prompt.hashes);
}

// The last token is always computed.
uint64_t Scheduler::fetch(const Request& request) {
  const bool computes_all = request.sampling.prompt_logprobs || searches_contrastively(request.sampling);
  if (computes_all) return 0;
  std::vector<BlockHash> rows = row_hashes(request);
  if (static_cast<int>(request.prompt.size()) % options_.block_size == 0 && !rows.empty()) rows.pop_back();
  std::erase_if(rows, [&](const BlockHash& row) {
    const BlockId primary = pools_.blocks.find(row);
    return primary != kNoBlock && pools_.in_cache(primary);
  });
  if (rows.empty()) return 0;
  return pools_.store.receive(
      rows, {.host = request.kv_transfer->host, .port = request.kv_transfer->port, .id = request.kv_transfer->id});
}

std::vector<std::shared_ptr<const RowTransfer>> Scheduler::take_transfers() {
  exports_.advance(options_.clock());
  return pools_.store.take_transfers();
}

void Scheduler::finish_transfer(uint64_t transfer, std::span<const int> failed) {
  pools_.finish_transfer(transfer, failed);
  finish_loads();
}

// A sequence whose load failed begins at its first token. One with modules waits again, as it must hold blocks for all
// of them when it begins.
void Scheduler::finish_loads() {
  for (const RowStore::Load& load : pools_.store.take_loads()) {
    if (auto prefetch = prefetches_.extract(load.number)) {
      const bool failed = load.failed || prefetch.mapped().forgotten;
      finish_prefetch(std::move(prefetch.mapped()), failed);
      continue;
    }
    const auto [sequence, first] = loads_.extract(load.number).mapped();
    --sequence->in_flight;
    sequence->awaits_host = false;
    sequence->blocks_stable_until = 0;
    if (sequence->state == SequenceState::kEnded) {
      release(*sequence);
    } else if (load.failed && sequence->memory.layout != nullptr) {
      if (first) sequence->cached_tokens = 0;
      preempt(*sequence);
    } else if (load.failed) {
      sequence->memory.release(pools_);
      sequence->memory.start(pools_, {});
      sequence->computed = 0;
      if (first) sequence->cached_tokens = 0;
    } else {
      commit_blocks(*sequence);
    }
  }
  erase_ended();
}

void Scheduler::reset_prefix_cache() {
  pools_.sessions.end_all();
  session_texts_.clear();
  for (auto& [load, prefetch] : prefetches_) prefetch.forgotten = true;
  exports_.clear();
  pools_.blocks.reset_prefix_cache();
  pools_.store.clear();
  finish_loads();
}

// Blocks that running sequences still need for the tokens they have.
int Scheduler::promised_blocks() const {
  int blocks = 0;
  for (const Sequence* sequence : running_) blocks += sequence->memory.missing_blocks(pools_, sequence->length());
  return blocks;
}

void Scheduler::enqueue(Sequence& sequence) {
  sequence.state = SequenceState::kWaiting;
  policy_->push(sequence);
}

}  // namespace sluice
