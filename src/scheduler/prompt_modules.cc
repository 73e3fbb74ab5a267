#include "scheduler/prompt_modules.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "base/sha256.h"

namespace sluice {

std::vector<TokenId> ModuleLayout::own_rows(std::span<const TokenId> text) const {
  std::vector<TokenId> all(static_cast<size_t>(tails), kPadding);
  const auto own = text.subspan(std::min(static_cast<size_t>(tokens), text.size()));
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::unique_ptr<const ModuleLayout> lay_out(const Request& request, const BlockPool& pool) {
  if (request.modules.empty()) return nullptr;
  auto layout = std::make_unique<ModuleLayout>();
  const int size = pool.block_size();
  std::vector<TokenId> content;  // what own rows depend on: positions, lengths and tokens
  int end = 0;                   // the position behind the last one
  for (const PromptModule& module : request.modules) {
    ModuleLayout::Part& part = layout->parts.emplace_back();
    part.first = layout->tokens;
    part.tokens = module.tokens;
    part.position = module.position;
    part.row = layout->rows;
    part.rows = module.tokens / size;
    part.tail = module.tokens % size;
    part.salt = fmt::format("{}\x1fmodule at {}", request.cache_salt, module.position);
    const auto begin = request.prompt.begin() + part.first;
    part.padded.assign(begin, begin + part.tokens);
    const size_t blocks = static_cast<size_t>(part.rows) + (part.tail > 0 ? 1 : 0), width = static_cast<size_t>(size);
    part.padded.resize(blocks * width, kPadding);
    for (size_t block = 0; block < blocks; ++block) {
      const BlockHash parent = block == 0 ? pool.root(part.salt) : part.hashes.back();
      part.hashes.push_back(pool.hash(parent, std::span(part.padded).subspan(block * width, width)));
    }
    content.insert(content.end(), {part.position, part.tokens});
    content.insert(content.end(), begin, begin + part.tokens);
    layout->tokens += part.tokens;
    layout->rows += part.rows;
    layout->tails += part.tail;
    end = std::max(end, part.position + part.tokens);
  }
  layout->shift = end - layout->tokens;
  const Sha256 digest = sha256({reinterpret_cast<const char*>(content.data()), content.size() * sizeof(TokenId)});
  layout->own_salt = fmt::format("{}\x1fmodules {}", request.cache_salt, hex(digest));
  return layout;
}

int64_t blocks_with_modules(const Request& request, int64_t tokens, int block_size) {
  int64_t blocks = 0, whole = 0;
  for (const PromptModule& module : request.modules) {
    whole += module.tokens / block_size;
    blocks += module.tokens % block_size > 0;
  }
  return blocks + whole + (tokens - whole * block_size + block_size - 1) / block_size;
}

}  // namespace sluice
