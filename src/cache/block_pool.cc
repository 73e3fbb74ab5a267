// See block_pool.h.
#include "cache/block_pool.h"

#include <algorithm>
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

size_t BlockPool::HashName::operator()(const BlockName& name) const {
  size_t value;
  std::memcpy(&value, name.bytes.data(), sizeof value);
  return value;
}

BlockPool::BlockPool(const BlockPoolOptions& options) : options_(options) {
  CHECK(options.blocks > 0 && options.block_size > 0, "{} blocks of {} tokens", options.blocks, options.block_size);
  CHECK(options.hash_bits > 0 && options.hash_bits <= 256, "{} bits", options.hash_bits);
  CHECK(options.groups > 0, "{} groups", options.groups);
  uses_.resize(options.blocks);
  nodes_.resize(options.blocks);
  followers_.resize(static_cast<size_t>(options.blocks) * followers_each(), kNoBlock);
  tokens_.resize(static_cast<size_t>(options.blocks) * static_cast<size_t>(options.block_size));
  by_name_.reserve(options.blocks);
  free_.reserve(options.blocks);
  for (BlockId block = options.blocks; block-- > 0;) free_.push_back(block);
}

std::optional<std::vector<BlockId>> BlockPool::take(int n) {
  if (n > available()) return std::nullopt;
  std::vector<BlockId> taken;
  taken.reserve(n);
  while (static_cast<int>(taken.size()) < n) {
    if (free_.empty()) evict(oldest_);
    const BlockId block = free_.back();
    free_.pop_back();
    CHECK(uses_[block].holders == 0 && !uses_[block].published, "block {} is not free", block);
    uses_[block].holders = 1;
    taken.push_back(block);
  }
  return taken;
}

// A follower alone; a leader with its row and all that comes after it in the tree, leaves first. What nobody holds is
// free then.
void BlockPool::evict(BlockId block) {
  if (const BlockId leader = nodes_[block].leader; leader != kNoBlock) {
    *std::ranges::find(followers(leader), block) = kNoBlock;
    free_unheld(block);
    uses_[block].published = false;
    nodes_[block].leader = kNoBlock;
    return;
  }
  for (BlockId leaf = block;;) {
    while (nodes_[leaf].first_child != kNoBlock) leaf = nodes_[leaf].first_child;
    const BlockId parent = nodes_[leaf].parent;
    free_unheld(leaf);
    for (const BlockId follower : followers(leaf)) {
      if (follower != kNoBlock) free_unheld(follower);
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
    CHECK(use.holders > 0 || use.published, "block {} is free", block);
    if (use.holders++ == 0) remove_cached(block);
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    Use& use = uses_[blocks[i]];
    CHECK(use.holders > 0, "block {} released once too often", blocks[i]);
    if (--use.holders > 0) continue;
    if (use.published) {
      append_cached(blocks[i]);
    } else {
      free_.push_back(blocks[i]);
    }
  }
}

// Texts come after their lengths, so that no two lists of texts give the same bytes.
BlockName BlockPool::root(const std::string& salt) const {
  const uint64_t tag_size = kRootTag.size(), fingerprint_size = options_.fingerprint.size(), salt_size = salt.size();
  const auto length = [](const uint64_t& size) { return bytes_of(&size, sizeof size); };
  BlockName name = {
      sha256({length(tag_size), kRootTag, length(fingerprint_size), options_.fingerprint, length(salt_size), salt})};
  cut(name);
  return name;
}

BlockName BlockPool::name(const BlockName& parent, std::span<const TokenId> tokens) const {
  CHECK(static_cast<int>(tokens.size()) == options_.block_size, "{} tokens", tokens.size());
  const uint64_t tag_size = kBlockTag.size();
  BlockName name = {
      sha256({bytes_of(&tag_size, sizeof tag_size), kBlockTag, bytes_of(parent.bytes.data(), parent.bytes.size()),
              bytes_of(tokens.data(), tokens.size_bytes())})};
  cut(name);
  return name;
}

void BlockPool::cut(BlockName& name) const {
  for (int bit = options_.hash_bits; bit < 256; ++bit) name.bytes[bit / 8] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
}

std::vector<BlockId> BlockPool::find(const std::string& salt, std::span<const BlockName> names,
                                     std::span<const TokenId> tokens) const {
  const size_t size = options_.block_size;
  CHECK(names.size() * size <= tokens.size(), "{} names, {} tokens", names.size(), tokens.size());
  std::vector<BlockId> chain;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = by_name_.find(names[i]);
    if (found == by_name_.end()) break;
    const BlockId parent = chain.empty() ? kNoBlock : chain.back();
    if (!matches(found->second, parent, salt, tokens.subspan(i * size, size))) break;
    chain.push_back(found->second);
  }
  return chain;
}

void BlockPool::count_query(int queried_tokens, int hit_tokens) {
  query_tokens_ += queried_tokens;
  hit_tokens_ += hit_tokens;
}

bool BlockPool::matches(BlockId block, BlockId parent, const std::string& salt, std::span<const TokenId> tokens) const {
  return nodes_[block].parent == parent && (parent != kNoBlock || salts_.at(block) == salt) &&
         std::ranges::equal(tokens, std::span(tokens_).subspan(size_t(block) * tokens.size(), tokens.size()));
}

void BlockPool::publish(std::span<BlockId> row, BlockId parent, const std::string& salt, const BlockName& name,
                        std::span<const TokenId> tokens) {
  CHECK(static_cast<int>(row.size()) == options_.groups, "{} blocks in a row of {}", row.size(), options_.groups);
  CHECK(uses_[row[0]].holders > 0, "block {} is not held", row[0]);
  CHECK(static_cast<int>(tokens.size()) == options_.block_size, "{} tokens", tokens.size());
  if (parent != kNoBlock && !uses_[parent].published) return;
  const BlockId leader = row[0];
  const auto [entry, added] = by_name_.try_emplace(name, leader);
  const BlockId existing = entry->second;
  if (!added) {
    if (existing == leader || !matches(existing, parent, salt, tokens)) return;
    share({&existing, 1});
    release({&leader, 1});
    row[0] = existing;
    return follow(existing, row);
  }
  CHECK(!uses_[leader].published, "block {} has another name", leader);
  uses_[leader].published = true;
  Node& node = nodes_[leader];
  node.parent = parent;
  node.name = name;
  if (parent == kNoBlock) salts_[leader] = salt;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<int64_t>(leader) * options_.block_size);
  if (parent != kNoBlock) {
    node.next_sibling = nodes_[parent].first_child;
    if (node.next_sibling != kNoBlock) nodes_[node.next_sibling].last_sibling = leader;
    nodes_[parent].first_child = leader;
  }
  follow(leader, row);
}

// The followers of `row` become those of a published leader, or are exchanged for those it has.
void BlockPool::follow(BlockId leader, std::span<BlockId> row) {
  for (size_t group = 1; group < row.size(); ++group) {
    BlockId& place = followers(leader)[group - 1];
    if (row[group] == kNoBlock || row[group] == place) continue;
    if (place == kNoBlock) {
      Use& use = uses_[row[group]];
      CHECK(use.holders > 0 && !use.published, "block {} cannot follow {}", row[group], leader);
      use.published = true;
      nodes_[row[group]].leader = leader;
      place = row[group];
    } else {
      share({&place, 1});
      release({&row[group], 1});
      row[group] = place;
    }
  }
}

void BlockPool::reset_prefix_cache() {
  while (oldest_ != kNoBlock) {
    const BlockId block = oldest_;
    remove_cached(block);
    free_.push_back(block);
  }
  // What is left is held. Deepest first is not needed: nobody looks at the tree while all of it is forgotten.
  for (const auto& [name, block] : by_name_) unpublish(block);
  by_name_.clear();
}

BlockPoolStats BlockPool::stats() const {
  const int free = static_cast<int>(free_.size());
  return {.total = options_.blocks,
          .free = free,
          .cached = cached_,
          .used = options_.blocks - free - cached_,
          .query_tokens = query_tokens_,
          .hit_tokens = hit_tokens_,
          .evictions = evictions_};
}

void BlockPool::append_cached(BlockId block) {
  Node& node = nodes_[block];
  node.older = newest_;
  node.newer = kNoBlock;
  (newest_ == kNoBlock ? oldest_ : nodes_[newest_].newer) = block;
  newest_ = block;
  ++cached_;
}

void BlockPool::remove_cached(BlockId block) {
  const Node& node = nodes_[block];
  (node.older == kNoBlock ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNoBlock ? newest_ : nodes_[node.newer].older) = node.older;
  --cached_;
}

void BlockPool::forget(BlockId leader) {
  const Node& node = nodes_[leader];
  CHECK(node.first_child == kNoBlock, "block {} is no leaf of the prefix tree", leader);
  by_name_.erase(node.name);
  if (node.next_sibling != kNoBlock) nodes_[node.next_sibling].last_sibling = node.last_sibling;
  if (node.last_sibling != kNoBlock) {
    nodes_[node.last_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kNoBlock) {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  unpublish(leader);
}

// With its row.
void BlockPool::unpublish(BlockId leader) {
  uses_[leader].published = false;
  Node& node = nodes_[leader];
  node.parent = node.first_child = node.next_sibling = node.last_sibling = kNoBlock;
  for (BlockId& follower : followers(leader)) {
    if (follower == kNoBlock) continue;
    uses_[follower].published = false;
    nodes_[follower].leader = kNoBlock;
    follower = kNoBlock;
  }
  salts_.erase(leader);
  if (options_.on_forget) options_.on_forget(leader);
}

}  // namespace sluice
