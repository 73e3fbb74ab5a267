// Blocks and states of sequences: taken, shared, given back, and found again.
#include "scheduler/memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sluice/prompt_vectors.h"

namespace sluice {
namespace {

// The store compares hashes only, so that they must be whole.
bool keeps_rows(const SchedulerOptions& options) {
  return options.prefix_caching && options.state_slots == 0 && options.hash_bits == 256;
}

}  // namespace

MemoryPools::MemoryPools(const SchedulerOptions& scheduler_options)
    : options(scheduler_options),
      states(options.state_slots),
      blocks({.blocks = options.blocks,
              .block_size = options.block_size,
              .groups = static_cast<int>(options.groups.size()),
              .fingerprint = options.fingerprint,
              .eviction = options.eviction,
              .hash_bits = options.hash_bits,
              .on_forget = [this](BlockId block) { states.forget(block); },
              .on_pinned_needed = [this] { sessions.displace(); }}),
      sessions(blocks, options.session_blocks),
      store(keeps_rows(options) ? options.row_store : RowStoreOptions{}) {}

int MemoryPools::first_kept(int group, int computed) const {
  const int window = options.groups[group].window;
  if (window == 0) return 0;
  const int first_seen = std::max(0, computed - window + 1) / options.block_size;
  return group == 0 ? std::max(0, first_seen - 1) : first_seen;
}

int MemoryPools::usable_rows(std::span<const BlockId> primaries, std::span<const BlockHash> hashes) const {
  std::vector<int> whole_from(options.groups.size(), 0);  // the first of the unbroken blocks of each group
  const int found = static_cast<int>(primaries.size()),
            most = store.enabled() ? static_cast<int>(hashes.size()) : found;
  int usable = 0;
  for (int rows = 1; rows <= most; ++rows) {
    const BlockId primary = rows <= found ? primaries[rows - 1] : kNoBlock;
    const auto stored = [&] { return store.enabled() && store.has(hashes[rows - 1]); };
    if (primary == kNoBlock && !stored()) break;
    bool complete = !recurrent() || states.has_snapshot(primary);
    for (int group = 0; group < groups(); ++group) {
      if (cached(primary, group) == kNoBlock && !stored()) whole_from[group] = rows;
      complete &= whole_from[group] <= first_kept(group, rows * options.block_size);
    }
    if (complete) usable = rows;
  }
  return usable;
}

bool MemoryPools::in_cache(BlockId primary) const {
  for (int group = 0; group < groups(); ++group) {
    if (cached(primary, group) == kNoBlock) return false;
  }
  return true;
}

// Rows of which a block slid out of its window before they were committed cannot be loaded whole: they are not saved.
void MemoryPools::save(const BlockHash& hash, std::span<const BlockId> row) {
  if (std::ranges::find(row, kNoBlock) != row.end() || !store.save(hash, row)) return;
  blocks.share(row);
}

void MemoryPools::finish_transfer(uint64_t transfer, std::span<const int> failed) {
  blocks.release(store.finish(transfer, failed));
}

int MemoryPools::only_saved() const {
  int count = 0;
  store.each_saving([&](BlockId block) { count += blocks.holders(block) == 1; });
  return count;
}

FoundRows SequenceMemory::find(const MemoryPools& pools, const std::string& salt, std::span<const TokenId> tokens,
                               int reusable, const BlockExtras& extras) {
  const int size = pools.options.block_size, full = pools.options.prefix_caching ? reusable / size : 0;
  extend_hashes(pools.blocks, salt, tokens, full, extras);
  const auto own = std::span(hashes).first(static_cast<size_t>(full));
  FoundRows found;
  found.rows = pools.blocks.find(salt, own, tokens, extras.keys(own.size(), size));
  found.known = static_cast<int>(found.rows.size());
  found.rows.resize(static_cast<size_t>(pools.usable_rows(found.rows, own)), kNoBlock);
  found.tokens = static_cast<int>(found.rows.size()) * size;
  return found;
}

void SequenceMemory::start(MemoryPools& pools, std::span<const BlockId> primaries) {
  const int rows = static_cast<int>(primaries.size());
  in_prefix_cache = rows;
  groups.resize(pools.options.groups.size());
  std::vector<BlockId> found;
  for (int group = 0; group < pools.groups(); ++group) {
    SequenceBlocks& own = groups[group];
    own.slid_out = std::min(pools.first_kept(group, rows * pools.options.block_size), rows);
    own.blocks.assign(own.slid_out, kNoBlock);
    for (const BlockId primary : primaries.subspan(own.slid_out)) {
      own.blocks.push_back(pools.cached(primary, group));
      if (own.blocks.back() != kNoBlock) found.push_back(own.blocks.back());
    }
  }
  pools.blocks.share(found);
  // The rows before them were used just now, even if they are not needed.
  std::vector<BlockId> before(primaries.begin(), primaries.begin() + groups[0].slid_out);
  std::erase(before, kNoBlock);
  pools.blocks.share(before);
  pools.blocks.release(before);
  if (!pools.recurrent()) return;
  const StateSlot snapshot = primaries.empty() ? kNoState : pools.states.use_snapshot(primaries.back());
  state_slot = pools.states.take();
  if (snapshot != kNoState) pools.state_copies.push_back({.from = snapshot, .to = state_slot});
}

uint64_t SequenceMemory::load(MemoryPools& pools) {
  std::vector<BlockHash> wanted;
  std::vector<BlockId*> missing;  // [wanted, groups]; null: found
  if (layout != nullptr) add_missing_tails(wanted, missing);
  for (int row = 0; row < rows(); ++row) {
    const auto lacks = [row](const SequenceBlocks& own) { return row >= own.slid_out && own.blocks[row] == kNoBlock; };
    if (std::ranges::none_of(groups, lacks)) continue;
    if (row < module_rows()) {
      forget_cached(row);
    } else {
      in_prefix_cache = std::min(in_prefix_cache, row);
    }
    wanted.push_back(hashes[row]);
    for (SequenceBlocks& own : groups) missing.push_back(lacks(own) ? &own.blocks[row] : nullptr);
  }
  if (wanted.empty()) return 0;
  const auto count = std::ranges::count_if(missing, [](const BlockId* place) { return place != nullptr; });
  const std::vector<BlockId> taken = pools.blocks.take(static_cast<int>(count)).value();
  auto next = taken.begin();
  std::vector<BlockId> into;
  for (BlockId* place : missing) {
    if (place != nullptr) *place = *next++;
    into.push_back(place != nullptr ? *place : kNoBlock);
  }
  return pools.store.load(wanted, into);
}

void SequenceMemory::release(MemoryPools& pools) {
  for (const Module& module : modules) {
    if (module.tail != kNoBlock) pools.blocks.release({&module.tail, 1});
  }
  for (const SequenceBlocks& own : groups) pools.blocks.release(own.held());  // primary blocks are the older ones then
  groups.clear();
  modules.clear();
  if (state_slot != kNoState) pools.states.release(std::exchange(state_slot, kNoState));
  last_snapshot = kNoBlock;
  in_prefix_cache = 0;
}

void SequenceMemory::keep_for(const std::string& session, Sessions::Time expires, MemoryPools& pools) const {
  if (groups.empty() || in_prefix_cache == 0) return;
  const BlockId last = groups[0].blocks[in_prefix_cache - 1];
  if (last == kNoBlock || !pools.blocks.in_prefix_cache(last)) return;
  int first_seen = in_prefix_cache;
  for (int group = 1; group < pools.groups(); ++group) {
    first_seen = std::min(first_seen, pools.first_kept(group, in_prefix_cache * pools.options.block_size));
  }
  pools.sessions.keep(session, last, in_prefix_cache - first_seen, expires);
}

SequenceMemory SequenceMemory::fork(MemoryPools& pools) const {
  SequenceMemory copy = *this;
  for (const SequenceBlocks& own : copy.groups) pools.blocks.share(own.held());
  if (!pools.recurrent()) return copy;
  copy.state_slot = pools.states.take();
  copy.last_snapshot = kNoBlock;
  pools.state_copies.push_back({.from = state_slot, .to = copy.state_slot});
  return copy;
}

void SequenceMemory::truncate(MemoryPools& pools, int tokens) {
  const auto kept = static_cast<size_t>(pools.blocks_for(tokens));
  CHECK(in_prefix_cache <= tokens / pools.options.block_size && kept <= static_cast<size_t>(rows()),
        "{} tokens kept of {} blocks, {} of them cached", tokens, rows(), in_prefix_cache);
  for (SequenceBlocks& own : groups) {
    pools.blocks.release(std::span(own.blocks).subspan(kept));
    own.blocks.resize(kept);
  }
}

void SequenceMemory::give_back_slid_out(MemoryPools& pools, int computed) {
  for (int group = 0; group < pools.groups(); ++group) {
    SequenceBlocks& own = groups[group];
    const int first = std::min(pools.first_kept(group, computed), static_cast<int>(own.blocks.size()));
    if (first <= own.slid_out) continue;
    const auto begin = own.blocks.begin() + own.slid_out, end = own.blocks.begin() + first;
    pools.blocks.release({begin, end});
    std::fill(begin, end, kNoBlock);
    own.slid_out = first;
  }
}

std::vector<int> SequenceMemory::shared_at_end(const MemoryPools& pools, int computed,
                                               std::span<const BlockId> copied) const {
  std::vector<int> shared;
  const int row = computed / pools.options.block_size;
  if (computed % pools.options.block_size == 0 || row >= rows()) return shared;  // of modules, without their tails
  for (int group = 0; group < pools.groups(); ++group) {
    const BlockId block = groups[group].blocks[row];
    if (pools.blocks.holders(block) - std::ranges::count(copied, block) > 1) shared.push_back(group);
  }
  return shared;
}

int SequenceMemory::stable_until(const MemoryPools& pools) const {
  const int size = pools.options.block_size;
  int until = rows() * size;
  if (pools.options.prefix_caching) until = std::min(until, (in_prefix_cache + 1) * size);
  for (int group = 0; group < pools.groups(); ++group) {
    if (pools.options.groups[group].window == 0) continue;
    const int more = groups[group].slid_out + (group == 0 ? 2 : 1);
    until = std::min(until, more * size + pools.options.groups[group].window - 1);
  }
  return until;
}

int SequenceMemory::missing_blocks(const MemoryPools& pools, int length) const {
  int missing = 0;
  for (int group = 0; group < pools.groups(); ++group) {
    const SequenceBlocks& own = groups[group];
    const int most = peak_blocks(length, pools.options.block_size, pools.options.groups[group],
                                 pools.options.max_num_batched_tokens);
    const int to_come = pools.blocks_for(length) - static_cast<int>(own.blocks.size());
    missing += std::max(0, std::min(to_come, most - static_cast<int>(own.held().size())));
  }
  return missing;
}

std::string_view BlockExtras::key(int block, int block_size) const {
  if (!adapter.empty()) return (block + 1) * block_size > adapter_from ? adapter : std::string_view();
  const size_t size = static_cast<size_t>(block_size) * PromptVectors::kDigest;
  return digests.substr(std::min(static_cast<size_t>(block) * size, digests.size()), size);
}

std::vector<std::string_view> BlockExtras::keys(size_t blocks, int block_size) const {
  std::vector<std::string_view> all;
  if (digests.empty() && adapter.empty()) return all;
  all.reserve(blocks);
  while (all.size() < blocks) all.push_back(key(static_cast<int>(all.size()), block_size));
  return all;
}

void SequenceMemory::extend_hashes(const BlockPool& pool, const std::string& salt, std::span<const TokenId> tokens,
                                   int blocks, const BlockExtras& extras) {
  const int size = pool.block_size(), first = module_rows();
  for (int i = static_cast<int>(hashes.size()); i < blocks; ++i) {
    const auto own = tokens.subspan((i - first) * size, size);
    hashes.push_back(pool.hash(i == first ? pool.root(salt) : hashes[i - 1], own, extras.key(i, size)));
  }
}

bool SequenceMemory::commit_to_cache(MemoryPools& pools, const std::string& salt, std::span<const TokenId> tokens,
                                     const BlockExtras& extras) {
  const int size = pools.options.block_size, first = module_rows();
  const int whole = std::min(first + static_cast<int>(tokens.size()) / size, rows());
  if (!pools.options.prefix_caching || whole <= in_prefix_cache) return false;
  const SequenceBlocks& primaries = groups[0];
  if (primaries.slid_out > 0 && in_prefix_cache <= primaries.slid_out) return false;  // the parent is gone
  BlockPool& pool = pools.blocks;
  std::vector<BlockId>& row = pools.row;
  row.resize(groups.size());
  for (int& i = in_prefix_cache; i < whole; ++i) {
    const BlockId parent = i == first ? kNoBlock : primaries.blocks[i - 1];
    if (i > first && !pool.in_prefix_cache(parent)) break;
    const auto own = tokens.subspan((i - first) * size, size);
    const bool hashed = i < static_cast<int>(hashes.size());
    const std::string_view extra = extras.key(i, size);
    const BlockHash hash = hashed ? hashes[i] : pool.hash(i == first ? pool.root(salt) : pool.hash(parent), own, extra);
    for (size_t group = 0; group < row.size(); ++group) row[group] = groups[group].blocks[i];
    pool.commit_to_cache(row, parent, salt, hash, own, extra);
    for (size_t group = 0; group < row.size(); ++group) groups[group].blocks[i] = row[group];
    if (!pool.in_prefix_cache(row[0])) break;
    pools.save(hash, row);
  }
  pools.sessions.keep_to_quota();
  return true;
}

void SequenceMemory::take_snapshot(MemoryPools& pools, int computed, int prompt_length) {
  if (!pools.recurrent() || !pools.options.prefix_caching || computed % pools.options.block_size != 0) return;
  const BlockId block = groups[0].blocks[computed / pools.options.block_size - 1];
  if (!pools.blocks.in_prefix_cache(block) || pools.states.has_snapshot(block)) return;
  const bool generated = computed > prompt_length;
  if (generated && last_snapshot != kNoBlock) pools.states.forget(std::exchange(last_snapshot, kNoBlock));
  const StateSlot slot = pools.states.add_snapshot(block);
  if (slot == kNoState) return;
  if (generated) last_snapshot = block;
  pools.state_copies.push_back({.from = state_slot, .to = slot});
}

}  // namespace sluice
