// What a splitting pre-tokenizer does with the delimiters it finds.
#pragma once

#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/pieces.h"

namespace sluice::tokenizer {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior load_split_behavior(const Field& field);

// A stretch of a piece: a delimiter, or the text between two delimiters.
struct Stretch {
  Span span;
  bool delimiter;
};

// Appends the pieces that result from adjacent stretches which cover one piece. Empty stretches produce no piece, but
// count as neighbors.
void append_split(const std::vector<Stretch>& stretches, SplitBehavior behavior, std::vector<Span>& out);

}  // namespace sluice::tokenizer
