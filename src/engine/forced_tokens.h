// Turns the text that a grammar forces into tokens.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sluice {

// Thread-safe.
class ForcedTokens {
 public:
  // tokens[id]: its bytes; empty for tokens that are never forced. The tokenizer must outlive this.
  ForcedTokens(const Tokenizer& tokenizer, std::vector<std::string> tokens);

  // Appends the tokens of `text`, which comes after the tokens `before`, as the tokenizer writes both together: at most
  // `most`, and only those that stay the same whatever follows. With `ends`, nothing follows. Returns how many.
  int append(std::span<const TokenId> before, std::string_view text, bool ends, int most,
             std::vector<TokenId>& out) const;

 private:
  std::string context_of(std::span<const TokenId> before) const;
  std::vector<TokenId> tokens_after(size_t boundary, std::string_view text) const;
  std::vector<TokenId> lasting_tokens(const std::string& context, std::string_view text, bool ends) const;
  bool begins_a_token(std::string_view text) const;

  const Tokenizer& tokenizer_;
  const std::vector<std::string> tokens_;
  std::vector<std::string_view> sorted_;  // by bytes
  size_t longest_ = 0;
};

}  // namespace sluice
