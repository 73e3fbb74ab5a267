// Reads vocabularies in tiktoken's format: one line per token with its bytes in base64 and its rank. The files specify
// neither the split pattern nor the special tokens. Both are built in for the models that publish such files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/models/model.h"

namespace sluice::tokenizer {

// Returns whether a file begins with such a line.
bool looks_like_tiktoken(std::string_view bytes);

struct TiktokenScheme {
  std::string_view name;                  // "llama-3"
  std::vector<std::string_view> files{};  // file names that identify the scheme
  // Values of tokenizer_class in tokenizer_config.json that identify the scheme.
  std::vector<std::string_view> classes{};
  std::string_view pattern;  // pattern of a piece in Oniguruma's syntax
  bool nfc = false;
  std::vector<std::string_view> prefix{};  // special tokens before every text
  // Returns the special tokens after a vocabulary of `base` tokens, in order of IDs. It is a function because some
  // names contain a counter.
  std::vector<std::string> (*special)(int base) = nullptr;
};

// Selects the scheme by the class if it is known, else by the file name. Throws Error(kUnsupportedModel) that names
// both.
const TiktokenScheme& find_tiktoken_scheme(std::string_view file_name, std::string_view tokenizer_class,
                                           const std::string& path);

struct TiktokenVocab {
  std::unique_ptr<Model> model;
  int size = 0;  // highest ID + 1
};
// Throws Error(kCorruptFile) that names the file and the line.
TiktokenVocab read_tiktoken(std::string_view bytes, const std::string& path);

}  // namespace sluice::tokenizer
