// Reads tekken.json, Mistral's vocabularies: tokens with their bytes in base64 by rank, the split pattern, and special
// tokens, which have the first IDs. Many of Mistral's models are published with this file only.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "tokenizer/models/model.h"

namespace sluice::tokenizer {

struct Tekken {
  std::unique_ptr<Model> model;
  std::string pattern;  // of a piece
  Json added_tokens;    // in the form of tokenizer.json
};
// `json` is the file's content. Throws Error that names the file and the field.
Tekken read_tekken(const Json& json, const std::string& path);

}  // namespace sluice::tokenizer
