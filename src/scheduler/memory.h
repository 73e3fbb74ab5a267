// What sequences hold of the KV cache and of the state slots. Ids only: no keys, values or states.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "batch/batch.h"
#include "cache/block_pool.h"
#include "cache/row_store.h"
#include "cache/sessions.h"
#include "cache/state_pool.h"
#include "scheduler/options.h"
#include "scheduler/prompt_modules.h"

namespace sluice {

// The pools that all sequences share.
struct MemoryPools {
  explicit MemoryPools(const SchedulerOptions& scheduler_options);

  const SchedulerOptions& options;
  StatePool states;
  BlockPool blocks;
  Sessions sessions;
  RowStore store;
  std::vector<StateCopy> state_copies;  // done before the next step
  std::vector<BlockId> row;             // scratch: blocks that are being committed to the prefix cache

  int groups() const { return static_cast<int>(options.groups.size()); }
  bool recurrent() const { return options.state_slots > 0; }
  int blocks_for(int tokens) const { return (tokens + options.block_size - 1) / options.block_size; }
  // The first block of a group that a sequence with `computed` tokens keeps.
  int first_kept(int group, int computed) const;
  // The block of a group in a row of the prefix cache, which is given by its primary block; kNoBlock if there is none.
  BlockId cached(BlockId primary, int group) const {
    return primary == kNoBlock ? kNoBlock : blocks.in_row(primary, group);
  }
  // Whether all blocks of a row of the prefix cache are still there.
  bool in_cache(BlockId primary) const;
  // How many leading rows a sequence can go on from. For every group the blocks that the next token sees must be there
  // or in the store, and for recurrent layers a state. `hashes` are those of the sequence's full blocks, `primaries`
  // the primary blocks of its leading rows in the prefix cache.
  int usable_rows(std::span<const BlockId> primaries, std::span<const BlockHash> hashes) const;
  // Has the store save a row of the prefix cache. Its blocks are held until finish_transfer().
  void save(const BlockHash& hash, std::span<const BlockId> row);
  // See RowStore::finish.
  void finish_transfer(uint64_t transfer, std::span<const int> failed);
  // Blocks that nobody holds but the store, which saves them. They are soon available.
  int only_saved() const;
};

// The blocks of a sequence for one group of layers.
struct SequenceBlocks {
  std::vector<BlockId> blocks;  // one for every block_size computed tokens, the last one perhaps not full
  int slid_out = 0;             // leading blocks that no later token sees: kNoBlock, given back

  std::span<const BlockId> held() const { return std::span(blocks).subspan(slid_out); }
};

// What the values of a sequence's blocks depend on besides tokens and salt. A request has one of them at most.
struct BlockExtras {
  std::string_view digests{};  // those of all leading tokens that stand for vectors (PromptVectors::digests)
  std::string_view adapter{};  // key of an adapter that changes only tokens from `adapter_from` on (RequestAdapter)
  int adapter_from = 0;

  // The extra key of a block (cache/block_pool.h).
  std::string_view key(int block, int block_size) const;
  // Those of the first `blocks` blocks; none if there is nothing.
  std::vector<std::string_view> keys(size_t blocks, int block_size) const;
};

// What the prefix cache and the store have of a sequence's rows, as far as it can go on from them.
struct FoundRows {
  std::vector<BlockId> rows;  // primary blocks of the leading rows; kNoBlock: in the store, or not here (of modules)
  int known = 0;              // leading rows in the prefix cache, whether it can go on from them or not
  // With modules:
  std::vector<BlockId> tails;  // [parts]; kNoBlock also if there is none, or if own rows have it
  std::vector<int> blocks;     // [parts] leading blocks that are there
  int missing_tails = 0;       // that need a block

  int tokens = 0;  // that are found
};

// The memory of one sequence. While it waits it holds nothing.
struct SequenceMemory {
  std::vector<SequenceBlocks> groups;  // [groups], equally many blocks in each; empty while the sequence waits
  int in_prefix_cache = 0;             // leading rows that were found in the cache or committed to it
  std::vector<BlockHash> hashes;       // of leading full blocks, as far as they were looked for in the cache
  // With recurrent layers:
  StateSlot state_slot = kNoState;  // while running
  int snapshot_at = 0;              // tokens known in cached blocks when it was admitted, without a state to go on from
  BlockId last_snapshot = kNoBlock;  // the last one made while generating

  // With modules. Their whole blocks are the first rows; in_prefix_cache counts them as if they were cached.
  const ModuleLayout* layout = nullptr;  // the request's; null: no modules
  struct Module {
    int computed = 0;         // tokens
    int cached = 0;           // leading blocks in the prefix cache
    BlockId tail = kNoBlock;  // until it is copied
  };
  std::vector<Module> modules;  // [layout->parts]; empty while the sequence waits

  // The next module to compute; -1: none is left.
  int next_module() const;
  // The first token of the text to compute next, unless that is behind the first one of its own.
  int first_uncomputed(int block_size) const;
  // Rows before the first one of the text's own.
  int module_rows() const { return layout != nullptr ? layout->rows : 0; }

  // Blocks of each group, those that slid out included.
  int rows() const { return groups.empty() ? 0 : static_cast<int>(groups[0].blocks.size()); }

  // Looks for the rows of a sequence with `tokens`, of which at most `reusable` may be found. Holds nothing.
  FoundRows find(const MemoryPools& pools, const std::string& salt, std::span<const TokenId> tokens, int reusable,
                 const BlockExtras& extras);
  FoundRows find_with_modules(const MemoryPools& pools, std::span<const TokenId> tokens, int reusable,
                              const BlockExtras& extras);
  // Begins to hold memory: what the next token sees of the leading rows, and a state slot. The rows are given by their
  // primary blocks. Where one is not in the prefix cache, or lacks a block, there is kNoBlock until load().
  void start(MemoryPools& pools, std::span<const BlockId> primaries);
  // The same with modules: also takes blocks for what is to be computed of them. There must be enough.
  void start_modules(MemoryPools& pools, const FoundRows& found);
  // Has the store load the blocks that start() did not find, into new blocks. Returns the number of the load; 0:
  // nothing is to be loaded.
  uint64_t load(MemoryPools& pools);
  // The blocks of tails that start_modules() did not find, and their hashes, for load().
  void add_missing_tails(std::vector<BlockHash>& wanted, std::vector<BlockId*>& missing);
  // A row of a module is loaded before it is in the prefix cache.
  void forget_cached(int row);
  // Gives everything back.
  void release(MemoryPools& pools);
  // Pins for a session what a longer sequence can go on from. Nothing changes if nothing of it is in the prefix cache.
  void keep_for(const std::string& session, Sessions::Time expires, MemoryPools& pools) const;
  // The memory of another sequence with the same tokens: the same blocks, and a copy of the state.
  SequenceMemory fork(MemoryPools& pools) const;
  // Keeps what the first `tokens` computed tokens need. They must reach as far as the prefix cache has them.
  void truncate(MemoryPools& pools, int tokens);

  // Gives back the blocks that slid out of their group's window.
  void give_back_slid_out(MemoryPools& pools, int computed);
  // The groups whose last block is not full and is also held by others: it must be copied before it is written. Holders
  // among `copied`, the sources of the step's copies, do not count.
  std::vector<int> shared_at_end(const MemoryPools& pools, int computed, std::span<const BlockId> copied) const;
  // Up to how many computed tokens a sequence that decodes neither needs a block, nor gives one back, nor commits one
  // to the prefix cache.
  int stable_until(const MemoryPools& pools) const;
  // Blocks that `length` tokens still need.
  int missing_blocks(const MemoryPools& pools, int length) const;

  // Commits the computed blocks of modules to the prefix cache. Returns whether it looked at any.
  bool commit_modules(MemoryPools& pools);

  // Hashes the first `blocks` blocks of `tokens`, behind the rows of modules.
  void extend_hashes(const BlockPool& pool, const std::string& salt, std::span<const TokenId> tokens, int blocks,
                     const BlockExtras& extras = {});
  // Commits the full blocks of `tokens`, which are computed and begin behind the rows of modules, to the prefix cache.
  // Returns whether it looked at any:
  // then blocks may have been exchanged for equal ones of the cache.
  bool commit_to_cache(MemoryPools& pools, const std::string& salt, std::span<const TokenId> tokens,
                       const BlockExtras& extras = {});
  // Keeps the state at the end of a cached block for those who will share it; `computed` tokens end there. Of what a
  // sequence generates only the last state is kept: the next turn of a conversation goes on from there.
  void take_snapshot(MemoryPools& pools, int computed, int prompt_length);
};

}  // namespace sluice
