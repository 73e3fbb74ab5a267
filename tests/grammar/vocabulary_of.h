// Vocabularies and masks for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace sluice::grammar {

// Five ids behind the tokens are part of the masks, too.
inline std::shared_ptr<const Vocabulary> vocabulary_of(const std::vector<std::string>& tokens,
                                                       std::vector<TokenId> ends = {}) {
  const int width = static_cast<int>(tokens.size()) + 5;
  return std::make_shared<const Vocabulary>(tokens, Vocabulary::Options{.width = width, .end_tokens = std::move(ends)});
}

inline bool allowed(const std::vector<uint32_t>& mask, TokenId token) {
  return (mask[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1) != 0;
}

inline std::vector<uint32_t> mask_of(const Matcher& matcher, const Vocabulary& vocabulary) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.width()) + 31) / 32, ~0u);
  matcher.fill_mask(mask);
  return mask;
}

}  // namespace sluice::grammar
