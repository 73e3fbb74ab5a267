// Blocks of the paged KV cache: who holds which, and which can be found again by their content. Ids only: the pool
// never sees keys or values.
//
// Layers that see equally far form a group, and a sequence keeps a list of blocks for each (nn/attention/kv_cache.h).
// All blocks are alike and lie in one pool: a group takes what another does not need. The blocks of all groups for the
// same tokens of a sequence are a block row. The block of group 0, which sees furthest, is its primary block; the
// others are its dependent blocks.
//
// A row of full blocks may be committed to the prefix cache. Its hash is a chain: SHA-256 over (domain tag, model
// fingerprint, salt) at the root, then over (parent's hash, tokens, extra keys). So it depends on the content alone and
// means the same in another process. Extra keys are whatever else the values depend on: an adapter, hashes of images.
// Cached blocks form a tree per salt. A hit is verified against the block's tokens, extra keys and parent (salt at the
// root), so that not even a collision of the hash can hand one prompt's cache to another.
//
// A holder of a cached block as a rule also holds its parents: find() and commit_to_cache() keep it that way. Release
// goes from the last block to the first, so the least recently used block without a holder is a leaf of the tree. A
// sequence with a window gives back the blocks that slid out of it and keeps what follows. Such a block can be evicted
// before those after it; they leave the cache with it, because a prefix is found from its start.
//
// Cached blocks may be pinned: they are evicted only after on_pinned_needed() has unpinned them. A pinned primary block
// has pinned parents, up to the root.
//
// Which of them is evicted first is a matter of the policy: the least recently used one, or among those that were used
// least often (in classes of 0, 1, 2-3, 4-7, ... uses) the least recently used one. A use of a block is also one of its
// parents.
//
// Only primary blocks are hashed. Dependent blocks are found through them, if they are still there: one without a
// holder is evicted alone, or with its primary block. A sequence that goes on from a prefix needs from each group only
// what its layers will see.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/sha256.h"
#include "sluice/request.h"

namespace sluice {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

struct BlockHash {
  Sha256 bytes{};
  bool operator==(const BlockHash&) const = default;
};
struct BlockHasher {
  size_t operator()(const BlockHash& hash) const;
};

enum class Eviction : uint8_t { kLru, kLfu };

struct BlockPoolOptions {
  int blocks = 0;
  int block_size = 16;        // tokens
  int groups = 1;             // blocks in a row
  std::string fingerprint{};  // what the cached values depend on besides tokens: model, types
  Eviction eviction = Eviction::kLru;
  int hash_bits = 256;                       // hashes are cut to so many bits; fewer than 256 only to test collisions
  std::function<void(BlockId)> on_forget{};  // a primary block left the prefix cache; may be null
  // take() needs blocks, and only pinned ones are left: must unpin some that nobody holds.
  std::function<void()> on_pinned_needed{};
};

struct BlockPoolStats {
  int total = 0;
  int free = 0;               // neither held nor in the prefix cache
  int cached = 0;             // in the prefix cache without a holder: available, and found until they are evicted
  int used = 0;               // held
  int pinned = 0;             // cached blocks that are pinned, with and without a holder
  uint64_t query_tokens = 0;  // tokens looked up in the prefix cache
  uint64_t hit_tokens = 0;    // tokens found there
  uint64_t evictions = 0;
};

// Owned by the engine thread; not thread-safe.
class BlockPool {
 public:
  explicit BlockPool(const BlockPoolOptions& options);

  int block_size() const { return options_.block_size; }
  int blocks() const { return options_.blocks; }
  int available() const { return static_cast<int>(free_.size()) + cached_; }  // what take() can give

  // n blocks held once each. Free ones come first, then the least recently used cached ones, which leave the cache with
  // all that follows them in the tree. Returns nullopt, changing nothing, when fewer than n are available. Never
  // touches a held block.
  std::optional<std::vector<BlockId>> take(int n);
  // Adds a holder to each block; each must be held or in the prefix cache.
  void share(std::span<const BlockId> blocks);
  // Takes a holder from each block, last block first. Blocks of the prefix cache without a holder stay cached.
  void release(std::span<const BlockId> blocks);
  int holders(BlockId block) const { return uses_[block].holders; }
  bool in_prefix_cache(BlockId block) const { return uses_[block].in_prefix_cache; }

  // Pins a cached primary block and all before it in the tree, and the dependent blocks of the last `rows` of them.
  // Pins are counted; unpin() takes the same ones away.
  void pin(BlockId primary, int rows) { change_pins(primary, rows, 1); }
  void unpin(BlockId primary, int rows) { change_pins(primary, rows, -1); }
  int pinned() const { return pinned_; }
  bool evicts_unpinned() const { return next_victim() != kNoBlock; }  // take() finds a cached block that is not pinned

  // Hashes of full blocks (block_size tokens each); the chain begins at root(salt).
  BlockHash root(const std::string& salt) const;
  BlockHash hash(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra = {}) const;
  const BlockHash& hash(BlockId primary) const { return nodes_[primary].hash; }  // of a block in the prefix cache

  // The longest cached chain of primary blocks for the first hashes.size() rows of `tokens`, verified. `extras` are the
  // extra keys of each row, or empty if there are none. Holds nothing and counts nothing: share() what is used and
  // count_query().
  std::vector<BlockId> find(const std::string& salt, std::span<const BlockHash> hashes, std::span<const TokenId> tokens,
                            std::span<const std::string_view> extras = {}) const;
  // The cached primary block with this hash, which is not verified against tokens; kNoBlock: there is none.
  BlockId find(const BlockHash& hash) const;
  // The block of `group` in the row of a cached primary block (itself for group 0); kNoBlock when it is gone.
  BlockId in_row(BlockId primary, int group) const { return group == 0 ? primary : dependents(primary)[group - 1]; }
  void count_query(int queried_tokens, int hit_tokens);

  // Commits a row of full blocks [groups] to the prefix cache; their values must be final from now on. The primary
  // block is held, and so are the dependent blocks; those that slid out of their windows are kNoBlock. `parent` is the
  // cached primary block before it in the same sequence, kNoBlock at the start. `row` becomes what the caller holds
  // from now on: the same blocks, or the cached ones with that content, which the caller holds in exchange for its own.
  // in_prefix_cache(row[0]) is false afterwards when the hash belongs to other content (a collision) or `parent` is not
  // cached any more.
  void commit_to_cache(std::span<BlockId> row, BlockId parent, const std::string& salt, const BlockHash& hash,
                       std::span<const TokenId> tokens, std::string_view extra = {});

  // Empties the prefix cache, in which nothing may be pinned. Held blocks stay with their holders.
  void reset_prefix_cache();

  BlockPoolStats stats() const;

 private:
  // Read in every step for many blocks: packed together.
  struct Use {
    int32_t holders = 0;
    bool in_prefix_cache = false;
    uint8_t uses = 0;  // since it was committed to the prefix cache; not above 255
  };
  // Read when a block is committed or evicted: one cache line.
  struct alignas(64) Node {
    BlockHash hash;                              // if it is a cached primary block
    BlockId older = kNoBlock, newer = kNoBlock;  // among the cached blocks without a holder
    BlockId primary = kNoBlock;                  // if it is a cached dependent block
    // If it is a cached primary block:
    BlockId parent = kNoBlock;
    BlockId first_child = kNoBlock;  // of the cached blocks whose parent this is
    BlockId next_sibling = kNoBlock, last_sibling = kNoBlock;
    int32_t pins = 0;
  };
  // Cached blocks without a holder, by their last release.
  struct Idle {
    BlockId oldest = kNoBlock, newest = kNoBlock;
  };
  std::span<BlockId> dependents(BlockId primary) {
    return std::span(dependents_).subspan(first_dependent(primary), dependents_each());
  }
  std::span<const BlockId> dependents(BlockId primary) const {
    return std::span(dependents_).subspan(first_dependent(primary), dependents_each());
  }
  size_t dependents_each() const { return static_cast<size_t>(options_.groups - 1); }
  size_t first_dependent(BlockId primary) const { return static_cast<size_t>(primary) * dependents_each(); }
  bool matches(BlockId block, BlockId parent, const std::string& salt, std::span<const TokenId> tokens,
               std::string_view extra) const;
  BlockId next_victim() const;  // kNoBlock: all cached blocks have holders or are pinned
  Idle& idle_of(BlockId block);
  bool pinned(BlockId block) const;
  void change_pins(BlockId primary, int rows, int by);
  template <class F>
  void move_pinned(std::span<const BlockId> blocks, F&& change);
  void cut(BlockHash& hash) const;
  void follow(BlockId primary, std::span<BlockId> row);
  void append_cached(BlockId block);
  void remove_cached(BlockId block);
  void evict(BlockId block);
  void free_unheld(BlockId block);
  void forget(BlockId primary);
  void remove_from_prefix_cache(BlockId primary);

  BlockPoolOptions options_;
  std::vector<Use> uses_;                            // [blocks]
  std::vector<Node> nodes_;                          // [blocks]
  std::vector<BlockId> dependents_;                  // [blocks, groups - 1] of cached primary blocks
  std::unordered_map<BlockId, std::string> salts_;   // of cached primary blocks without a parent
  std::unordered_map<BlockId, std::string> extras_;  // of cached primary blocks that have extra keys
  std::vector<TokenId> tokens_;                      // [blocks, block_size] of cached primary blocks
  std::vector<BlockId> free_;                        // taken from the back
  std::unordered_map<BlockHash, BlockId, BlockHasher> by_hash_;
  std::unordered_map<BlockId, int> row_pins_;  // of the dependent blocks of cached primary blocks
  std::array<Idle, 9> idle_;                   // by the bit width of their uses; with kLru all are in the first one
  Idle idle_pinned_;
  int cached_ = 0, pinned_ = 0;
  uint64_t query_tokens_ = 0, hit_tokens_ = 0, evictions_ = 0;
};

}  // namespace sluice
