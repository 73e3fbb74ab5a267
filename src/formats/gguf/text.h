// What a GGUF file says about text besides its vocabulary (tokenizer/files/gguf_tokenizer.h): ends and the chat
// template.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/gguf/file.h"

namespace sluice {

// Tokens that end an answer: those the metadata name, and special tokens of texts that are known to end a turn.
std::vector<int32_t> gguf_end_tokens(const GgufMetadata& metadata);

// The text of a tokenizer_config.json: chat templates, and the special tokens they may ask for. Empty when the file has
// no template.
std::string gguf_tokenizer_config(const GgufMetadata& metadata);

}  // namespace sluice
