// Where the tokens of a text are in it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine.h"

namespace sluice::server {

struct TokenSpan {
  TokenId id = 0;
  std::string text{};                     // of the span, or the vocabulary's spelling of the token if there is none
  bool special = false;                   // the tokenizer added it around the text
  std::optional<size_t> start{}, stop{};  // characters; none: the token does not stand for a part of the text
};

// The tokens of the text. The span of a token is found by the text that it stands for, ignoring case: a tokenizer may
// change letters.
std::vector<TokenSpan> token_spans(const Engine& engine, std::string_view text, bool add_special_tokens);

}  // namespace sluice::server
