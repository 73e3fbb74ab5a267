// Blocks of the paged KV cache: who holds which, and which can be found again by what is in them. Ids only: the pool
// never sees keys or values.
//
// Layers that see equally far form a group, and a sequence keeps a list of blocks for each (nn/attention/kv_cache.h).
// All blocks are alike and lie in one pool: a group takes what another does not need. The blocks of all groups for the
// same tokens of a sequence are a row; that of group 0, which sees furthest, leads it, the others follow.
//
// A full block may be published. Its name is a hash chain, SHA-256 over (domain tag, model fingerprint, salt) and then
// over (parent's name, tokens), so it depends on the content alone and means the same in another process. Published
// blocks form a tree per salt. A hit is verified against the block's tokens and its parent (salt at the root), so that
// not even a collision of the hash can hand one prompt's cache to another.
//
// Whoever holds a published block as a rule also holds its parents: find() and publish() keep it that way. Release goes
// from the last block to the first, therefore the least recently used block nobody holds is then a leaf of the tree.
// Who attends in a window gives back the blocks that slid out of it and keeps what follows. Such a block can be evicted
// before those after it; they lose their names with it, because a prefix is found from its start.
//
// Only leaders have names. Followers are found through them, if they are still there: one that nobody holds is evicted
// alone, or with its leader. Whoever goes on from a prefix needs of each group only what its layers will see.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
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

struct BlockPoolOptions {
  int blocks = 0;
  int block_size = 16;                       // tokens
  int groups = 1;                            // blocks of a row
  std::string fingerprint{};                 // what the cached values depend on besides tokens: model, types
  int hash_bits = 256;                       // names are cut to so many bits; fewer than 256 only to test collisions
  std::function<void(BlockId)> on_forget{};  // a published leader lost its name; may be null
};

struct BlockPoolStats {
  int total = 0;
  int free = 0;               // held by nobody, not published
  int cached = 0;             // published, held by nobody: available, and found until they are evicted
  int used = 0;               // held
  uint64_t query_tokens = 0;  // tokens looked up in the prefix cache
  uint64_t hit_tokens = 0;    // of them found
  uint64_t evictions = 0;
};

// Owned by the engine thread; not thread-safe.
class BlockPool {
 public:
  explicit BlockPool(const BlockPoolOptions& options);

  int block_size() const { return options_.block_size; }
  int blocks() const { return options_.blocks; }
  int available() const { return static_cast<int>(free_.size()) + cached_; }  // what take() can give

  // n blocks held once each. Free ones first, then the least recently used cached ones, which are forgotten with all
  // that follows them in the tree. Returns
  // nullopt, changing nothing, when fewer than n are available. Never touches a held block.
  std::optional<std::vector<BlockId>> take(int n);
  // One more holder for each block; each must be held or published.
  void share(std::span<const BlockId> blocks);
  // One holder less for each block, last block first. Published blocks without a holder stay cached.
  void release(std::span<const BlockId> blocks);
  int holders(BlockId block) const { return uses_[block].holders; }
  bool in_prefix_cache(BlockId block) const { return uses_[block].in_prefix_cache; }

  // Names of full blocks: the chain begins at root(salt).
  BlockHash root(const std::string& salt) const;
  BlockHash hash(const BlockHash& parent, std::span<const TokenId> tokens) const;  // block_size tokens
  const BlockHash& hash(BlockId primary) const { return nodes_[primary].hash; }    // of a published one

  // The longest published chain of leaders for the first names.size() rows of `tokens`, verified. Holds nothing and
  // counts nothing: share() what is used and count_query().
  std::vector<BlockId> find(const std::string& salt, std::span<const BlockHash> hashes,
                            std::span<const TokenId> tokens) const;
  // The block of `group` in the row that a published `leader` leads (itself for group 0); kNoBlock when it is gone.
  BlockId in_row(BlockId primary, int group) const { return group == 0 ? primary : dependents(primary)[group - 1]; }
  void count_query(int queried_tokens, int hit_tokens);

  // Publishes a row of full blocks [groups], whose values must be final from now on. The leader is held, and so are
  // the followers; those that slid out of their windows are kNoBlock. `parent` is the published leader before it in the
  // same sequence, kNoBlock at the start. `row` becomes what the caller holds from now on: the same blocks, or those
  // already published with that content, whose holder the caller became in exchange for its own. Check
  // published(row[0]): it is false when the name is taken by other content (a collision) or `parent` is not published
  // any more.
  void commit_to_cache(std::span<BlockId> row, BlockId parent, const std::string& salt, const BlockHash& hash,
                       std::span<const TokenId> tokens);

  // Forgets every name. Held blocks stay with their holders.
  void reset_prefix_cache();

  BlockPoolStats stats() const;

 private:
  // What every step looks at, of many blocks: packed together.
  struct Use {
    int32_t holders = 0;
    bool in_prefix_cache = false;
  };
  // What publication and eviction look at: one line of the cache.
  struct alignas(64) Node {
    BlockHash hash;                              // of a published leader
    BlockId older = kNoBlock, newer = kNoBlock;  // among the cached blocks
    BlockId primary = kNoBlock;                  // of a published follower
    // Of published leaders:
    BlockId parent = kNoBlock;
    BlockId first_child = kNoBlock;  // of the published blocks whose parent this is
    BlockId next_sibling = kNoBlock, last_sibling = kNoBlock;
  };
  struct BlockHasher {
    size_t operator()(const BlockHash& hash) const;
  };

  std::span<BlockId> dependents(BlockId primary) {
    return std::span(dependents_).subspan(first_dependent(primary), dependents_each());
  }
  std::span<const BlockId> dependents(BlockId primary) const {
    return std::span(dependents_).subspan(first_dependent(primary), dependents_each());
  }
  size_t dependents_each() const { return static_cast<size_t>(options_.groups - 1); }
  size_t first_dependent(BlockId primary) const { return static_cast<size_t>(primary) * dependents_each(); }
  bool matches(BlockId block, BlockId parent, const std::string& salt, std::span<const TokenId> tokens) const;
  void cut(BlockHash& hash) const;
  void follow(BlockId primary, std::span<BlockId> row);
  void append_cached(BlockId block);
  void remove_cached(BlockId block);
  void evict(BlockId block);
  void free_unheld(BlockId block);
  void forget(BlockId primary);
  void remove_from_prefix_cache(BlockId primary);

  BlockPoolOptions options_;
  std::vector<Use> uses_;                           // [blocks]
  std::vector<Node> nodes_;                         // [blocks]
  std::vector<BlockId> dependents_;                 // [blocks, groups - 1] of published leaders
  std::unordered_map<BlockId, std::string> salts_;  // of published leaders without a parent
  std::vector<TokenId> tokens_;                     // [blocks, block_size] of published leaders
  std::vector<BlockId> free_;                       // taken from the back
  std::unordered_map<BlockHash, BlockId, BlockHasher> by_hash_;
  BlockId oldest_ = kNoBlock, newest_ = kNoBlock;  // cached blocks, by the time of their last release
  int cached_ = 0;
  uint64_t query_tokens_ = 0, hit_tokens_ = 0, evictions_ = 0;
};

}  // namespace sluice
