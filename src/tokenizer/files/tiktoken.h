// Vocabularies in tiktoken's files: a line per token, its bytes in base64 and its rank. The files say neither how text
// is cut nor which special tokens there are; both are known for the models that publish such files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/models/model.h"

namespace sluice::tokenizer {

// Whether a file begins with such a line.
bool looks_like_tiktoken(std::string_view bytes);

struct TiktokenScheme {
  std::string_view name;                    // "llama-3"
  std::vector<std::string_view> files{};    // names that tell the scheme
  std::vector<std::string_view> classes{};  // values of tokenizer_config.json's tokenizer_class that do
  std::string_view pattern;                 // what a piece is, Oniguruma's syntax
  bool nfc = false;
  std::vector<std::string_view> prefix{};  // special tokens in front of every text
  // Special tokens behind a vocabulary of `base` tokens, first id first; a function because some count up.
  std::vector<std::string> (*special)(int base) = nullptr;
};

// By the class when it is known, else by the name of the file. Throws Error(kUnsupportedModel) that names both.
const TiktokenScheme& find_tiktoken_scheme(std::string_view file_name, std::string_view tokenizer_class,
                                           const std::string& path);

struct TiktokenVocab {
  std::unique_ptr<Model> model;
  int size = 0;  // highest id + 1
};
// Throws Error(kCorruptFile) that names the file and the line.
TiktokenVocab read_tiktoken(std::string_view bytes, const std::string& path);

}  // namespace sluice::tokenizer
