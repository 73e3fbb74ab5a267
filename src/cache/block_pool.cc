// See block_pool.h.
#include "cache/block_pool.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sluice {
namespace {

// Tags keep roots and blocks apart, and this scheme apart from any other use of the hash.
constexpr std::string_view kRootTag = "sluice.kv.root.1";
constexpr std::string_view kBlockTag = "sluice.kv.block.1";

BlockName sha256(const std::vector<uint8_t>& bytes) {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  BlockName name;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), name.bytes.data(), nullptr, algorithm, nullptr) == 1, "SHA-256 failed");
  return name;
}

void append(std::vector<uint8_t>& bytes, const void* data, size_t size) {
  const auto* begin = static_cast<const uint8_t*>(data);
  bytes.insert(bytes.end(), begin, begin + size);
}

// With its length, so that no two lists of strings give the same bytes.
void append(std::vector<uint8_t>& bytes, std::string_view text) {
  const uint64_t size = text.size();
  append(bytes, &size, sizeof size);
  append(bytes, text.data(), text.size());
}

}  // namespace

size_t BlockPool::HashName::operator()(const BlockName& name) const {
  size_t value;
  std::memcpy(&value, name.bytes.data(), sizeof value);
  return value;
}

BlockPool::BlockPool(const BlockPoolOptions& options) : options_(options) {
  CHECK(options.blocks > 0 && options.block_size > 0, "{} blocks of {} tokens", options.blocks, options.block_size);
  CHECK(options.hash_bits > 0 && options.hash_bits <= 256, "{} bits", options.hash_bits);
  nodes_.resize(options.blocks);
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
    CHECK(nodes_[block].holders == 0 && !nodes_[block].published, "block {} is not free", block);
    nodes_[block].holders = 1;
    taken.push_back(block);
  }
  return taken;
}

// Forgets the block and what follows it, leaves first; those that nobody holds are free.
void BlockPool::evict(BlockId block) {
  for (BlockId leaf = block;;) {
    while (nodes_[leaf].first_child != kNoBlock) leaf = nodes_[leaf].first_child;
    const BlockId parent = nodes_[leaf].parent;
    if (nodes_[leaf].holders == 0) {
      remove_cached(leaf);
      free_.push_back(leaf);
      ++evictions_;
    }
    forget(leaf);
    if (leaf == block) return;
    leaf = parent;
  }
}

void BlockPool::share(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    Node& node = nodes_[block];
    CHECK(node.holders > 0 || node.published, "block {} is free", block);
    if (node.holders++ == 0) remove_cached(block);
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    Node& node = nodes_[blocks[i]];
    CHECK(node.holders > 0, "block {} released once too often", blocks[i]);
    if (--node.holders > 0) continue;
    if (node.published) {
      append_cached(blocks[i]);
    } else {
      free_.push_back(blocks[i]);
    }
  }
}

BlockName BlockPool::root(const std::string& salt) const {
  std::vector<uint8_t> bytes;
  append(bytes, kRootTag);
  append(bytes, options_.fingerprint);
  append(bytes, salt);
  BlockName name = sha256(bytes);
  cut(name);
  return name;
}

BlockName BlockPool::name(const BlockName& parent, std::span<const TokenId> tokens) const {
  CHECK(static_cast<int>(tokens.size()) == options_.block_size, "{} tokens", tokens.size());
  std::vector<uint8_t> bytes;
  bytes.reserve(64 + tokens.size_bytes());
  append(bytes, kBlockTag);
  append(bytes, parent.bytes.data(), parent.bytes.size());
  append(bytes, tokens.data(), tokens.size_bytes());
  BlockName name = sha256(bytes);
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
    if (!matches(nodes_[found->second], parent, salt, tokens.subspan(i * size, size))) break;
    chain.push_back(found->second);
  }
  return chain;
}

void BlockPool::count_query(int queried_tokens, int hit_tokens) {
  query_tokens_ += queried_tokens;
  hit_tokens_ += hit_tokens;
}

bool BlockPool::matches(const Node& node, BlockId parent, const std::string& salt,
                        std::span<const TokenId> tokens) const {
  return node.parent == parent && (parent != kNoBlock || node.salt == salt) && std::ranges::equal(node.tokens, tokens);
}

BlockId BlockPool::publish(BlockId block, BlockId parent, const std::string& salt, const BlockName& name,
                           std::span<const TokenId> tokens) {
  CHECK(nodes_[block].holders > 0, "block {} is not held", block);
  CHECK(static_cast<int>(tokens.size()) == options_.block_size, "{} tokens", tokens.size());
  if (parent != kNoBlock && !nodes_[parent].published) return block;
  const auto [entry, added] = by_name_.try_emplace(name, block);
  const BlockId existing = entry->second;
  if (!added) {
    if (existing == block || !matches(nodes_[existing], parent, salt, tokens)) return block;
    share({&existing, 1});
    release({&block, 1});
    return existing;
  }
  Node& node = nodes_[block];
  CHECK(!node.published, "block {} has another name", block);
  node.published = true;
  node.parent = parent;
  node.name = name;
  node.salt = parent == kNoBlock ? salt : std::string();
  node.tokens.assign(tokens.begin(), tokens.end());
  if (parent == kNoBlock) return block;
  node.next_sibling = nodes_[parent].first_child;
  if (node.next_sibling != kNoBlock) nodes_[node.next_sibling].last_sibling = block;
  nodes_[parent].first_child = block;
  return block;
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

void BlockPool::forget(BlockId block) {
  const Node& node = nodes_[block];
  CHECK(node.first_child == kNoBlock, "block {} is no leaf of the prefix tree", block);
  by_name_.erase(node.name);
  if (node.next_sibling != kNoBlock) nodes_[node.next_sibling].last_sibling = node.last_sibling;
  if (node.last_sibling != kNoBlock) {
    nodes_[node.last_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kNoBlock) {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  unpublish(block);
}

void BlockPool::unpublish(BlockId block) {
  Node& node = nodes_[block];
  node.published = false;
  node.parent = node.first_child = node.next_sibling = node.last_sibling = kNoBlock;
  if (options_.on_forget) options_.on_forget(block);
}

}  // namespace sluice
