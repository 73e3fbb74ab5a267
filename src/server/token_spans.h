// Where the tokens of a text are in it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/engine.h"

namespace sluice::server {

struct TokenSpan {
  TokenId id = 0;
  std::string text{};                     // of the span, or the vocabulary's spelling of the token if there is none
  bool special = false;                   // the tokenizer added it around the text
  std::optional<size_t> start{}, stop{};  // characters; none: the token does not stand for a part of the text
};

// Most bytes of a text whose spans are listed, whatever the context: an answer has about 60 bytes for each token.
inline constexpr size_t kMostSpannedBytes = 256 << 10;

// Calls visit(span) for each token of the text in turn. The span of a token is found by the text that it stands for,
// ignoring case: a tokenizer may change letters.
void each_token_span(const Engine& engine, std::string_view text, bool add_special_tokens,
                     const std::function<void(const TokenSpan& span)>& visit);

}  // namespace sluice::server
