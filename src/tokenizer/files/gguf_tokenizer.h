// Reads the tokenizer inside a GGUF file: vocabulary and settings in metadata "tokenizer.ggml.*".
#pragma once

#include <memory>

#include "formats/gguf/file.h"
#include "tokenizer/tokenizer_parts.h"

namespace sluice::tokenizer {

// Supports the models "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE), "t5" (Unigram), "bert" (WordPiece) and
// "gemma4" (BPE of characters). Throws Error that names file and key: kUnsupportedModel for another model or
// pre-tokenizer, kCorruptFile for inconsistent lists.
std::unique_ptr<const Tokenizer::Parts> read_gguf_tokenizer(const GgufMetadata& metadata);

// How a byte-level BPE splits text, by the name in "tokenizer.ggml.pre". The expressions are applied in order.
struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // in Oniguruma's syntax
  bool ignore_merges = false;              // a piece that is a token is encoded as that token
  bool begin = false;                      // texts start with the begin token, unless the file says otherwise
};
// Returns nullptr for an unknown name.
const GgufPreTokenizer* find_gguf_pretokenizer(std::string_view name);

}  // namespace sluice::tokenizer
