// The "post_processor" of tokenizer.json: puts special tokens around the tokens of one text or of two texts.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

class PostProcessor {
 public:
  // `field` may be absent. `known` returns whether an ID is in the vocabulary; a template with an unknown ID is
  // corrupt.
  PostProcessor(const std::optional<Field>& field, const std::function<bool(TokenId)>& known);

  std::vector<TokenId> apply(std::vector<TokenId> tokens, bool add_special_tokens) const;
  // Joins two texts with their special tokens. Without a template, the second text follows the first.
  Tokenizer::Pair join(std::span<const TokenId> first, std::span<const TokenId> second) const;

 private:
  // A part of a template: a special token, or the place of a text's own tokens.
  struct Part {
    enum class Kind { kFirst, kSecond, kSpecial };
    Kind kind = Kind::kSpecial;
    std::vector<TokenId> special{};
    int32_t type = 0;
  };
  using Template = std::vector<Part>;
  struct Templates {
    Template single, pair;
  };

  void load(const Field& field, const std::function<bool(TokenId)>& known);
  static Template load_template(const Field& field, std::string_view key, const std::function<bool(TokenId)>& known);
  static Templates load_around(const Field& field, bool bert, const std::function<bool(TokenId)>& known);

  std::vector<Templates> templates_;  // applied in order
};

}  // namespace sluice::tokenizer
