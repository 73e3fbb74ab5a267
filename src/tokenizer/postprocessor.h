// The "post_processor" of tokenizer.json: puts special tokens around a text's own.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tokenizer/json_field.h"
#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

class PostProcessor {
 public:
  // `field` may be absent. `known` tells whether an id is in the vocabulary; a template with another is corrupt.
  PostProcessor(const std::optional<Field>& field, const std::function<bool(TokenId)>& known);

  std::vector<TokenId> apply(std::vector<TokenId> tokens, bool add_special_tokens) const;

 private:
  // A template for one text: special tokens, and the places of the text's own.
  struct Part {
    bool is_text = false;
    std::vector<TokenId> special;
  };
  using Template = std::vector<Part>;

  void load(const Field& field, const std::function<bool(TokenId)>& known);
  static Template load_template(const Field& field, const std::function<bool(TokenId)>& known);
  static Template load_around(const Field& field, const std::function<bool(TokenId)>& known);

  std::vector<Template> templates_;  // applied one after the other
};

}  // namespace sluice::tokenizer
