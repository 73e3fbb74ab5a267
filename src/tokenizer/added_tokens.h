// The "added_tokens" of tokenizer.json: strings that are tokens wherever they occur, before any other rule.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/models/vocab.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/token_matcher.h"
#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  std::string normalized_content;  // what the normalizer makes of it, when it is `normalized`; else the content
  bool single_word = false;        // only between characters that are no word characters
  bool lstrip = false;             // takes the white space on its left along
  bool rstrip = false;
  bool normalized = true;  // looked for after normalization
  bool special = false;
};

class AddedTokens {
 public:
  // A token that the model's vocabulary has keeps its id there, whatever the file says (as Hugging Face does).
  // `field` may be absent, `normalizer` null.
  AddedTokens(const std::optional<Field>& field, const Vocab& vocab, const Normalizer* normalizer);

  const AddedToken* by_id(TokenId id) const;
  std::optional<TokenId> find(std::string_view content) const;
  TokenId highest_id() const { return highest_id_; }  // -1 when there are none

  struct Segment {
    std::string_view text;
    std::optional<TokenId> token;  // else text
  };
  // Cuts text at the tokens that are looked for before (normalized = false) or after normalization.
  std::vector<Segment> split(std::string_view text, bool normalized) const;

 private:
  AddedToken load(const Field& field, const Vocab& vocab, const Normalizer* normalizer) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, size_t> index_of_id_;
  std::unordered_map<std::string, TokenId> id_of_content_;
  TokenMatcher matchers_[2];  // for raw and for normalized text; values are ids
  TokenId highest_id_ = -1;
};

}  // namespace sluice::tokenizer
