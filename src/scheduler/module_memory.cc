// The rows of modules: looked for, held and put into the prefix cache.
#include <algorithm>
#include <iterator>
#include <span>

#include "scheduler/memory.h"

namespace sluice {

// Own rows are of use only if all rows before them are there, and if they have the tails.
FoundRows SequenceMemory::find_with_modules(const MemoryPools& pools, std::span<const TokenId> tokens, int reusable,
                                            const BlockExtras& extras) {
  FoundRows found;
  const int size = pools.options.block_size;
  if (hashes.empty()) {
    for (const ModuleLayout::Part& part : layout->parts) {
      hashes.insert(hashes.end(), part.hashes.begin(), part.hashes.begin() + part.rows);
    }
  }
  bool whole = true;
  for (const ModuleLayout::Part& part : layout->parts) {
    std::vector<BlockId> hits = pools.blocks.find(part.salt, part.hashes, part.padded);
    const int usable = pools.usable_rows(hits, part.hashes);
    hits.resize(static_cast<size_t>(part.blocks()), kNoBlock);
    found.rows.insert(found.rows.end(), hits.begin(), hits.begin() + part.rows);
    found.tails.push_back(part.tail > 0 ? hits.back() : kNoBlock);
    found.missing_tails += part.tail > 0 && hits.back() == kNoBlock;
    found.blocks.push_back(usable);
    found.tokens += std::min(part.tokens, usable * size);
    whole &= usable >= part.rows;
  }
  const int full = pools.options.prefix_caching ? reusable / size : 0;
  found.known = layout->rows;
  if (!whole || full <= layout->rows) return found;

  const std::vector<TokenId> rows = layout->own_rows(tokens);
  extend_hashes(pools.blocks, layout->own_salt, rows, full, extras);
  const auto first = static_cast<size_t>(layout->rows), count = static_cast<size_t>(full) - first;
  const auto own = std::span(hashes).subspan(first, count);
  const std::vector<std::string_view> keys = extras.keys(static_cast<size_t>(full), size);
  std::vector<BlockId> hits = pools.blocks.find(
      layout->own_salt, own, rows, keys.empty() ? std::span<const std::string_view>() : std::span(keys).subspan(first));
  const int usable = pools.usable_rows(hits, own);
  if (usable * size < std::max(layout->tails, 1)) return found;
  hits.resize(static_cast<size_t>(usable), kNoBlock);
  found.rows.insert(found.rows.end(), hits.begin(), hits.end());
  found.known = layout->rows + usable;
  found.tokens = layout->tokens + usable * size - layout->tails;
  std::ranges::fill(found.tails, kNoBlock);  // the own rows have them
  found.missing_tails = 0;
  for (size_t i = 0; i < layout->parts.size(); ++i) found.blocks[i] = layout->parts[i].blocks();
  return found;
}

void SequenceMemory::start_modules(MemoryPools& pools, const FoundRows& found) {
  const int size = pools.options.block_size;
  groups.assign(1, {.blocks = found.rows});
  in_prefix_cache = static_cast<int>(found.rows.size());
  std::vector<BlockId> held;
  for (const std::vector<BlockId>& list : {found.rows, found.tails}) {
    std::ranges::copy_if(list, std::back_inserter(held), [](BlockId block) { return block != kNoBlock; });
  }
  pools.blocks.share(held);
  modules.assign(layout->parts.size(), {});
  std::vector<BlockId*> fresh;
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleLayout::Part& part = layout->parts[i];
    modules[i] = {
        .computed = std::min(part.tokens, found.blocks[i] * size), .cached = found.blocks[i], .tail = found.tails[i]};
    for (int row = found.blocks[i]; row < part.rows; ++row) fresh.push_back(&groups[0].blocks[part.row + row]);
    if (part.tail > 0 && found.blocks[i] < part.blocks()) fresh.push_back(&modules[i].tail);
  }
  const std::vector<BlockId> taken = pools.blocks.take(static_cast<int>(fresh.size())).value();
  for (size_t i = 0; i < fresh.size(); ++i) *fresh[i] = taken[i];
}

void SequenceMemory::add_missing_tails(std::vector<BlockHash>& wanted, std::vector<BlockId*>& missing) {
  if (rows() > layout->rows) return;  // the own rows have them
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleLayout::Part& part = layout->parts[i];
    if (part.tail == 0 || modules[i].tail != kNoBlock) continue;
    wanted.push_back(part.hashes.back());
    missing.push_back(&modules[i].tail);
    modules[i].cached = part.rows;
  }
}

void SequenceMemory::forget_cached(int row) {
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleLayout::Part& part = layout->parts[i];
    if (row >= part.row && row < part.row + part.rows) modules[i].cached = std::min(modules[i].cached, row - part.row);
  }
}

int SequenceMemory::next_module() const {
  for (size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].computed < layout->parts[i].tokens) return static_cast<int>(i);
  }
  return -1;
}

int SequenceMemory::first_uncomputed(int block_size) const {
  const int next = next_module();
  if (next < 0) return std::max(layout->tokens, rows() * block_size);
  return layout->parts[static_cast<size_t>(next)].first + modules[static_cast<size_t>(next)].computed;
}

bool SequenceMemory::commit_modules(MemoryPools& pools) {
  if (!pools.options.prefix_caching) return false;
  const auto size = static_cast<size_t>(pools.options.block_size);
  bool looked = false;
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleLayout::Part& part = layout->parts[i];
    Module& module = modules[i];
    const int whole = module.computed == part.tokens ? part.blocks() : module.computed / static_cast<int>(size);
    for (int& row = module.cached; row < whole; ++row) {
      BlockId& block = row < part.rows ? groups[0].blocks[part.row + row] : module.tail;
      const BlockId parent = row == 0 ? kNoBlock : groups[0].blocks[part.row + row - 1];
      if (block == kNoBlock || (row > 0 && !pools.blocks.in_prefix_cache(parent))) break;
      const auto tokens = std::span(part.padded).subspan(static_cast<size_t>(row) * size, size);
      const BlockHash& hash = part.hashes[static_cast<size_t>(row)];
      pools.blocks.commit_to_cache({&block, 1}, parent, part.salt, hash, tokens);
      looked = true;
      if (!pools.blocks.in_prefix_cache(block)) break;
      pools.save(hash, {&block, 1});
    }
  }
  return looked;
}

}  // namespace sluice
