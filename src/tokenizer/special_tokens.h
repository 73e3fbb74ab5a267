// The tokens that transformers stores next to a vocabulary: tokenizer_config.json, special_tokens_map.json and
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
  // Reads these files from the folder. Each may be missing. Throws Error that names file and field.
  explicit SpecialTokens(const std::filesystem::path& folder);

  // Returns "tokenizer_class" without the suffix Fast, "" when absent.
  std::string_view tokenizer_class() const;
  // Returns a boolean of tokenizer_config.json.
  std::optional<bool> flag(std::string_view key) const;
  // Returns the text of "bos_token" and similar keys; nullopt when absent.
  std::optional<std::string> named(std::string_view key) const;

  // Both functions add to an array of added tokens in the form of tokenizer.json, following transformers. add_given()
  // adds tokens with IDs (added_tokens_decoder, added_tokens.json). Those of the decoder replace tokens of the same
  // text.
  void add_given(Json& added_tokens) const;
  // Adds the missing special tokens (bos_token and similar). Their ID is the one in the vocabulary, found by `find`, or
  // the next unused one. The vocabulary's highest ID is `vocab_size` - 1.
  void add_special(Json& added_tokens, int vocab_size,
                   const std::function<std::optional<TokenId>(std::string_view)>& find) const;

 private:
  const Json* find_named(std::string_view key) const;
  std::vector<Json> special() const;

  std::string config_path_, map_path_, added_path_;
  Json config_, map_, added_;
};

// Returns {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}.
Json added_token(TokenId id, std::string_view content, bool special);

}  // namespace sluice::tokenizer
