// What a splitting pre-tokenizer does with the delimiters it finds.
#pragma once

#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/pieces.h"

namespace sluice::tokenizer {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior load_split_behavior(const Field& field);

// A stretch of a piece: a delimiter, or what lies between two.
struct Stretch {
  Span span;
  bool delimiter;
};

// Appends the pieces that remain of adjoining stretches which cover one piece. Empty stretches leave no piece, but
// count as neighbours.
void append_split(const std::vector<Stretch>& stretches, SplitBehavior behavior, std::vector<Span>& out);

}  // namespace sluice::tokenizer
