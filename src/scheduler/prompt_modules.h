// Where the modules of a prompt (Request::modules) lie in the memory of its sequences.
//
// Each module is computed like a text of its own: a part of a step sees the blocks of one module only. Its blocks hang
// in the prefix cache below a root that says where it begins, so that every prompt with this module finds them.
//
// Places and positions differ. The rows of a sequence begin with the whole blocks of all modules. What is left of a
// module, its tail, has fewer tokens than a block. It waits in a block of its own. Once all modules are computed, the
// tails are copied to the rows behind the whole blocks, one after the other, and the prompt's own text follows without
// a gap. Its rows have a root that says which modules are before them. Attention counts places, and keys have the
// rotation of their position. So nothing needs a mask, and the number of keys is that of the tokens.
//
//   prompt     a a a a a a | b b b b b | c c c ...    modules a and b, then its own text; blocks of 4 tokens
//   rows       [a a a a] [b b b b] [a a b c] [c c ...
//
// In the prefix cache the last block of a module is filled up with kPadding. Nobody reads the keys there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/block_pool.h"
#include "sluice/request.h"

namespace sluice {

inline constexpr TokenId kPadding = -1;

struct ModuleLayout {
  struct Part {
    int first = 0;                  // index of its first token in the prompt
    int tokens = 0;                 // at least one
    int position = 0;               // of the first one
    int row = 0;                    // of its first whole block in a sequence
    int rows = 0;                   // whole blocks
    int tail = 0;                   // tokens behind them
    std::string salt;               // its root in the prefix cache
    std::vector<TokenId> padded;    // its tokens, filled up to whole blocks
    std::vector<BlockHash> hashes;  // of its blocks
    int blocks() const { return static_cast<int>(hashes.size()); }
  };
  std::vector<Part> parts;
  int tokens = 0, rows = 0, tails = 0;  // of all parts
  int shift = 0;                        // a token of the prompt's own text at index i has position i + shift
  std::string own_salt;                 // root of the own text's rows

  // What the rows behind the modules' whole blocks have of `text`, whose own part begins at index `tokens`: the tails,
  // as padding, as own_salt stands for them, then the own tokens.
  std::vector<TokenId> own_rows(std::span<const TokenId> text) const;
};

// The layout of a request whose modules are settled (engine/prompt_modules.h); null: it has none.
std::unique_ptr<const ModuleLayout> lay_out(const Request& request, const BlockPool& pool);

// The most blocks that a sequence of a request needs, of `tokens` tokens together.
int64_t blocks_with_modules(const Request& request, int64_t tokens, int block_size);

}  // namespace sluice
