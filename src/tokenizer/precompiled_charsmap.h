// The normalizer "Precompiled": SentencePiece's table of replacements, a double-array trie over UTF-8.
#pragma once

#include <memory>

#include "tokenizer/normalizer.h"

namespace sluice::tokenizer {

std::unique_ptr<Normalizer> load_precompiled_charsmap(const Field& field);

}  // namespace sluice::tokenizer
