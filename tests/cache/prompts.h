// Prompts in a pool of blocks.
#pragma once

#include <string>
#include <vector>

#include "cache/block_pool.h"

namespace sluice::testing {

using Tokens = std::vector<TokenId>;

inline std::vector<BlockHash> hashes_of_prompt(const BlockPool& pool, const std::string& salt, const Tokens& tokens) {
  std::vector<BlockHash> hashes;
  BlockHash hash = pool.root(salt);
  for (size_t i = 0; i + pool.block_size() <= tokens.size(); i += pool.block_size()) {
    hashes.push_back(hash = pool.hash(hash, std::span(tokens).subspan(i, pool.block_size())));
  }
  return hashes;
}

inline std::vector<BlockId> find(const BlockPool& pool, const std::string& salt, const Tokens& tokens) {
  return pool.find(salt, hashes_of_prompt(pool, salt, tokens), tokens);
}

// Takes blocks for all of `tokens` (a multiple of the block size) and commits them to the prefix cache. Returns what
// the caller holds.
inline std::vector<BlockId> fill(BlockPool& pool, const std::string& salt, const Tokens& tokens) {
  const int size = pool.block_size();
  const std::vector<BlockHash> hashes = hashes_of_prompt(pool, salt, tokens);
  std::vector<BlockId> blocks = *pool.take(static_cast<int>(hashes.size()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    pool.commit_to_cache({&blocks[i], 1}, i == 0 ? kNoBlock : blocks[i - 1], salt, hashes[i],
                         std::span(tokens).subspan(i * size, size));
  }
  return blocks;
}

}  // namespace sluice::testing
