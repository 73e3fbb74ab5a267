// The tokens that transformers keeps beside a vocabulary: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/files/json_field.h"
#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

class SpecialTokens {
 public:
  // Reads what lies in the folder; each file may be missing. Throws Error that names file and field.
  explicit SpecialTokens(const std::filesystem::path& folder);

  // "tokenizer_class", "" when it is not given; without the ending Fast.
  std::string_view tokenizer_class() const;
  // A boolean of tokenizer_config.json.
  std::optional<bool> flag(std::string_view key) const;
  // The text of "bos_token" and the like; nullopt when there is none.
  std::optional<std::string> named(std::string_view key) const;

  // Both add to an array of added tokens, as tokenizer.json has it, what the files say, as transformers does.
  // Tokens with ids (added_tokens_decoder, added_tokens.json): those of the decoder replace tokens of the same text.
  void add_given(Json& added_tokens) const;
  // Special tokens (bos_token and the like): what is missing is added with its id in the vocabulary, as `find` tells
  // it, or the next one; the vocabulary's highest id is `vocab_size` - 1.
  void add_special(Json& added_tokens, int vocab_size,
                   const std::function<std::optional<TokenId>(std::string_view)>& find) const;

 private:
  const Json* find_named(std::string_view key) const;
  std::vector<Json> special() const;

  std::string config_path_, map_path_, added_path_;
  Json config_, map_, added_;
};

// {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
Json added_token(TokenId id, std::string_view content, bool special);

}  // namespace sluice::tokenizer
