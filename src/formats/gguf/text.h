// Reads a GGUF file's text settings other than the vocabulary (tokenizer/files/gguf_tokenizer.h): end tokens and the
// chat template.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/gguf/file.h"

namespace sluice {

// Returns the tokens that end an answer: those named by the metadata, and special tokens whose text is known to end a
// turn.
std::vector<int32_t> gguf_end_tokens(const GgufMetadata& metadata);

// Returns the equivalent of tokenizer_config.json: chat templates, and the special tokens they may use. Empty when the
// file has no template.
std::string gguf_tokenizer_config(const GgufMetadata& metadata);

}  // namespace sluice
