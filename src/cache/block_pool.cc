// See block_pool.h.
#include "cache/block_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/sha256.h"

namespace sluice {
namespace {

// Tags keep roots and blocks apart, and this scheme apart from any other use of the hash.
constexpr std::string_view kRootTag = "sluice.kv.root.1";
constexpr std::string_view kBlockTag = "sluice.kv.block.1";

std::string_view bytes_of(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }

}  // namespace

size_t BlockHasher::operator()(const BlockHash& hash) const {
  size_t value;
  std::memcpy(&value, hash.bytes.data(), sizeof value);
  return value;
}

BlockPool::BlockPool(const BlockPoolOptions& options) : options_(options) {
  CHECK(options.blocks > 0 && options.block_size > 0, "{} blocks of {} tokens", options.blocks, options.block_size);
  CHECK(options.hash_bits > 0 && options.hash_bits <= 256, "{} bits", options.hash_bits);
  CHECK(options.groups > 0, "{} groups", options.groups);
  uses_.resize(options.blocks);
  nodes_.resize(options.blocks);
  dependents_.resize(static_cast<size_t>(options.blocks) * dependents_each(), kNoBlock);
  tokens_.resize(static_cast<size_t>(options.blocks) * static_cast<size_t>(options.block_size));
  by_hash_.reserve(options.blocks);
  free_.reserve(options.blocks);
  for (BlockId block = options.blocks; block-- > 0;) free_.push_back(block);
}

std::optional<std::vector<BlockId>> BlockPool::take(int n) {
  if (n > available()) return std::nullopt;
  std::vector<BlockId> taken;
  taken.reserve(n);
  while (static_cast<int>(taken.size()) < n) {
    if (free_.empty() && !evicts_unpinned()) {
      options_.on_pinned_needed();
      CHECK(evicts_unpinned(), "{} blocks are pinned, and {} more are needed", pinned_, n);
    }
    if (free_.empty()) evict(next_victim());
    const BlockId block = free_.back();
    free_.pop_back();
    CHECK(uses_[block].holders == 0 && !uses_[block].in_prefix_cache, "block {} is not free", block);
    uses_[block].holders = 1;
    taken.push_back(block);
  }
  return taken;
}

// Evicts a dependent block alone; a primary block with its row and all that comes after it in the tree, leaves first.
// Blocks without a holder are free then.
void BlockPool::evict(BlockId block) {
  if (const BlockId primary = nodes_[block].primary; primary != kNoBlock) {
    *std::ranges::find(dependents(primary), block) = kNoBlock;
    free_unheld(block);
    uses_[block].in_prefix_cache = false;
    nodes_[block].primary = kNoBlock;
    return;
  }
  for (BlockId leaf = block;;) {
    while (nodes_[leaf].first_child != kNoBlock) leaf = nodes_[leaf].first_child;
    const BlockId parent = nodes_[leaf].parent;
    free_unheld(leaf);
    for (const BlockId dependent : dependents(leaf)) {
      if (dependent != kNoBlock) free_unheld(dependent);
    }
    forget(leaf);
    if (leaf == block) return;
    leaf = parent;
  }
}

void BlockPool::free_unheld(BlockId block) {
  if (uses_[block].holders > 0) return;
  remove_cached(block);
  free_.push_back(block);
  ++evictions_;
}

void BlockPool::share(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    Use& use = uses_[block];
    CHECK(use.holders > 0 || use.in_prefix_cache, "block {} is free", block);
    if (use.holders++ == 0) remove_cached(block);
    if (use.in_prefix_cache && use.uses < UINT8_MAX) ++use.uses;
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    Use& use = uses_[blocks[i]];
    CHECK(use.holders > 0, "block {} released once too often", blocks[i]);
    if (--use.holders > 0) continue;
    if (use.in_prefix_cache) {
      append_cached(blocks[i]);
    } else {
      free_.push_back(blocks[i]);
    }
  }
}

BlockId BlockPool::next_victim() const {
  for (const Idle& list : idle_) {
    if (list.oldest != kNoBlock) return list.oldest;
  }
  return kNoBlock;
}

BlockPool::Idle& BlockPool::idle_of(BlockId block) {
  if (pinned(block)) return idle_pinned_;
  return idle_[options_.eviction == Eviction::kLfu ? std::bit_width(uses_[block].uses) : 0];
}

bool BlockPool::pinned(BlockId block) const {
  const Node& node = nodes_[block];
  return node.primary == kNoBlock ? node.pins > 0 : row_pins_.contains(node.primary);
}

void BlockPool::change_pins(BlockId primary, int rows, int by) {
  for (BlockId block = primary; block != kNoBlock; block = nodes_[block].parent, --rows) {
    CHECK(uses_[block].in_prefix_cache && nodes_[block].pins + by >= 0, "block {} is not pinned", block);
    move_pinned({&block, 1}, [&] { nodes_[block].pins += by; });
    if (rows <= 0 || options_.groups == 1) continue;
    move_pinned(dependents(block), [&] {
      if ((row_pins_[block] += by) == 0) row_pins_.erase(block);
    });
  }
}

// Changes whether blocks are pinned.
template <class F>
void BlockPool::move_pinned(std::span<const BlockId> blocks, F&& change) {
  const auto idle = [this](BlockId block) { return block != kNoBlock && uses_[block].holders == 0; };
  for (const BlockId block : blocks) {
    if (idle(block)) remove_cached(block);
    pinned_ -= block != kNoBlock && pinned(block);
  }
  change();
  for (const BlockId block : blocks) {
    if (idle(block)) append_cached(block);
    pinned_ += block != kNoBlock && pinned(block);
  }
}

// Texts come after their lengths, so that no two lists of texts give the same bytes.
BlockHash BlockPool::root(const std::string& salt) const {
  const uint64_t tag_size = kRootTag.size(), fingerprint_size = options_.fingerprint.size(), salt_size = salt.size();
  const auto length = [](const uint64_t& size) { return bytes_of(&size, sizeof size); };
  BlockHash hash = {
      sha256({length(tag_size), kRootTag, length(fingerprint_size), options_.fingerprint, length(salt_size), salt})};
  cut(hash);
  return hash;
}

// The tokens of a block have a fixed length, so that the extra keys may follow them without their own.
BlockHash BlockPool::hash(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra) const {
  CHECK(static_cast<int>(tokens.size()) == options_.block_size, "{} tokens", tokens.size());
  const uint64_t tag_size = kBlockTag.size();
  BlockHash hash = {
      sha256({bytes_of(&tag_size, sizeof tag_size), kBlockTag, bytes_of(parent.bytes.data(), parent.bytes.size()),
              bytes_of(tokens.data(), tokens.size_bytes()), extra})};
  cut(hash);
  return hash;
}

void BlockPool::cut(BlockHash& hash) const {
  for (int bit = options_.hash_bits; bit < 256; ++bit) hash.bytes[bit / 8] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
}

std::vector<BlockId> BlockPool::find(const std::string& salt, std::span<const BlockHash> hashes,
                                     std::span<const TokenId> tokens, std::span<const std::string_view> extras) const {
  const size_t size = options_.block_size;
  CHECK(hashes.size() * size <= tokens.size(), "{} hashes, {} tokens", hashes.size(), tokens.size());
  CHECK(extras.empty() || extras.size() >= hashes.size(), "{} hashes, extra keys of {}", hashes.size(), extras.size());
  std::vector<BlockId> chain;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto found = by_hash_.find(hashes[i]);
    if (found == by_hash_.end()) break;
    const BlockId parent = chain.empty() ? kNoBlock : chain.back();
    const std::string_view extra = extras.empty() ? std::string_view() : extras[i];
    if (!matches(found->second, parent, salt, tokens.subspan(i * size, size), extra)) break;
    chain.push_back(found->second);
  }
  return chain;
}

BlockId BlockPool::find(const BlockHash& hash) const {
  const auto found = by_hash_.find(hash);
  return found == by_hash_.end() ? kNoBlock : found->second;
}

void BlockPool::count_query(int queried_tokens, int hit_tokens) {
  query_tokens_ += queried_tokens;
  hit_tokens_ += hit_tokens;
}

bool BlockPool::matches(BlockId block, BlockId parent, const std::string& salt, std::span<const TokenId> tokens,
                        std::string_view extra) const {
  const auto own = extras_.find(block);
  if (extra != (own == extras_.end() ? std::string_view() : std::string_view(own->second))) return false;
  return nodes_[block].parent == parent && (parent != kNoBlock || salts_.at(block) == salt) &&
         std::ranges::equal(tokens, std::span(tokens_).subspan(size_t(block) * tokens.size(), tokens.size()));
}

void BlockPool::commit_to_cache(std::span<BlockId> row, BlockId parent, const std::string& salt, const BlockHash& hash,
                                std::span<const TokenId> tokens, std::string_view extra) {
  CHECK(static_cast<int>(row.size()) == options_.groups, "{} blocks in a row of {}", row.size(), options_.groups);
  CHECK(uses_[row[0]].holders > 0, "block {} is not held", row[0]);
  CHECK(static_cast<int>(tokens.size()) == options_.block_size, "{} tokens", tokens.size());
  if (parent != kNoBlock && !uses_[parent].in_prefix_cache) return;
  const BlockId primary = row[0];
  const auto [entry, added] = by_hash_.try_emplace(hash, primary);
  const BlockId existing = entry->second;
  if (!added) {
    if (existing == primary || !matches(existing, parent, salt, tokens, extra)) return;
    share({&existing, 1});
    release({&primary, 1});
    row[0] = existing;
    return follow(existing, row);
  }
  CHECK(!uses_[primary].in_prefix_cache, "block {} has another hash", primary);
  uses_[primary].in_prefix_cache = true;
  uses_[primary].uses = 0;
  Node& node = nodes_[primary];
  node.parent = parent;
  node.hash = hash;
  if (parent == kNoBlock) salts_[primary] = salt;
  if (!extra.empty()) extras_[primary] = extra;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<int64_t>(primary) * options_.block_size);
  if (parent != kNoBlock) {
    node.next_sibling = nodes_[parent].first_child;
    if (node.next_sibling != kNoBlock) nodes_[node.next_sibling].last_sibling = primary;
    nodes_[parent].first_child = primary;
  }
  follow(primary, row);
}

// The dependent blocks of `row` become those of a cached primary block, or are exchanged for those it has.
void BlockPool::follow(BlockId primary, std::span<BlockId> row) {
  for (size_t group = 1; group < row.size(); ++group) {
    BlockId& place = dependents(primary)[group - 1];
    if (row[group] == kNoBlock || row[group] == place) continue;
    if (place == kNoBlock) {
      Use& use = uses_[row[group]];
      CHECK(use.holders > 0 && !use.in_prefix_cache, "block {} cannot depend on {}", row[group], primary);
      use.in_prefix_cache = true;
      use.uses = 0;
      nodes_[row[group]].primary = primary;
      place = row[group];
      pinned_ += pinned(place);
    } else {
      share({&place, 1});
      release({&row[group], 1});
      row[group] = place;
    }
  }
}

void BlockPool::reset_prefix_cache() {
  CHECK(pinned_ == 0, "{} blocks are pinned", pinned_);
  for (BlockId block = next_victim(); block != kNoBlock; block = next_victim()) {
    remove_cached(block);
    free_.push_back(block);
  }
  // What is left is held. The order does not matter: nobody reads the tree while all of it is forgotten.
  for (const auto& [hash, block] : by_hash_) remove_from_prefix_cache(block);
  by_hash_.clear();
}

BlockPoolStats BlockPool::stats() const {
  const int free = static_cast<int>(free_.size());
  return {.total = options_.blocks,
          .free = free,
          .cached = cached_,
          .used = options_.blocks - free - cached_,
          .pinned = pinned_,
          .query_tokens = query_tokens_,
          .hit_tokens = hit_tokens_,
          .evictions = evictions_};
}

void BlockPool::append_cached(BlockId block) {
  Node& node = nodes_[block];
  Idle& list = idle_of(block);
  node.older = list.newest;
  node.newer = kNoBlock;
  (list.newest == kNoBlock ? list.oldest : nodes_[list.newest].newer) = block;
  list.newest = block;
  ++cached_;
}

void BlockPool::remove_cached(BlockId block) {
  const Node& node = nodes_[block];
  Idle& list = idle_of(block);
  (node.older == kNoBlock ? list.oldest : nodes_[node.older].newer) = node.newer;
  (node.newer == kNoBlock ? list.newest : nodes_[node.newer].older) = node.older;
  --cached_;
}

void BlockPool::forget(BlockId primary) {
  const Node& node = nodes_[primary];
  CHECK(node.first_child == kNoBlock, "block {} is no leaf of the prefix tree", primary);
  by_hash_.erase(node.hash);
  if (node.next_sibling != kNoBlock) nodes_[node.next_sibling].last_sibling = node.last_sibling;
  if (node.last_sibling != kNoBlock) {
    nodes_[node.last_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kNoBlock) {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  remove_from_prefix_cache(primary);
}

// Takes the whole row out.
void BlockPool::remove_from_prefix_cache(BlockId primary) {
  uses_[primary].in_prefix_cache = false;
  Node& node = nodes_[primary];
  node.parent = node.first_child = node.next_sibling = node.last_sibling = kNoBlock;
  for (BlockId& dependent : dependents(primary)) {
    if (dependent == kNoBlock) continue;
    uses_[dependent].in_prefix_cache = false;
    nodes_[dependent].primary = kNoBlock;
    dependent = kNoBlock;
  }
  salts_.erase(primary);
  extras_.erase(primary);
  if (options_.on_forget) options_.on_forget(primary);
}

}  // namespace sluice
