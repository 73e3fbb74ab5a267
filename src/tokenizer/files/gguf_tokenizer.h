// The tokenizer inside a GGUF file: vocabulary and settings in metadata "tokenizer.ggml.*".
#pragma once

#include <memory>

#include "formats/gguf/file.h"
#include "tokenizer/tokenizer_parts.h"

namespace sluice::tokenizer {

// Models "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE), "t5" (Unigram), "bert" (WordPiece) and "gemma4" (BPE
// of characters). Throws Error that names file and key: kUnsupportedModel for another model or pre-tokenizer,
// kCorruptFile for lists that do not fit together.
std::unique_ptr<const Tokenizer::Parts> read_gguf_tokenizer(const GgufMetadata& metadata);

// How a byte-level BPE cuts text, by the name under "tokenizer.ggml.pre": expressions applied one after the other.
struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // Oniguruma's syntax
  bool ignore_merges = false;              // a piece that is a token is this token
  bool begin = false;                      // texts begin with the begin token, unless the file says otherwise
};
// nullptr when there is none of that name.
const GgufPreTokenizer* find_gguf_pretokenizer(std::string_view name);

}  // namespace sluice::tokenizer
