// The "added_tokens" of tokenizer.json: strings that become tokens wherever they occur, before any other rule.
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
  std::string normalized_content;  // the normalized content if `normalized`, else the content
  bool single_word = false;        // matches only between characters that are not word characters
  bool lstrip = false;             // absorbs the white space on its left
  bool rstrip = false;
  bool normalized = true;  // matched after normalization
  bool special = false;
};

class AddedTokens {
 public:
  // A token that the model's vocabulary contains keeps its ID there, whatever the file says, as in Hugging Face's
  // library. `field` may be absent and `normalizer` null.
  AddedTokens(const std::optional<Field>& field, const Vocab& vocab, const Normalizer* normalizer);

  const AddedToken* by_id(TokenId id) const;
  std::optional<TokenId> find(std::string_view content) const;
  TokenId highest_id() const { return highest_id_; }  // -1 when there are no added tokens

  struct Segment {
    std::string_view text;
    std::optional<TokenId> token;  // nullopt: plain text
  };
  // Splits text at the tokens that are matched before (normalized = false) or after normalization.
  std::vector<Segment> split(std::string_view text, bool normalized) const;

 private:
  AddedToken load(const Field& field, const Vocab& vocab, const Normalizer* normalizer) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, size_t> index_of_id_;
  std::unordered_map<std::string, TokenId> id_of_content_;
  TokenMatcher matchers_[2];  // one for raw and one for normalized text; the values are IDs
  TokenId highest_id_ = -1;
};

}  // namespace sluice::tokenizer
