// Drafts without a model: what followed the last tokens of a text when they occurred before. It pays where an answer
// repeats its prompt or itself: code that is edited, quotations, summaries, JSON. (Prompt lookup decoding, Saxena
// 2023.)
#pragma once

#include <span>
#include <vector>

#include "sluice/token.h"
#include "speculative/options.h"

namespace sluice {

// Appends up to min(most, options.tokens) tokens that may follow `text` to `draft`, which is empty. They come from
// behind the longest match, the latest one among equals. A draft that reaches the end of the text goes on with itself.
// None if fewer than options.shortest tokens match. Reads the text once, from its end, until a match is long enough.
void draft_ngram(const SpeculativeOptions& options, std::span<const TokenId> text, int most,
                 std::vector<TokenId>& draft);

}  // namespace sluice
