// GPT-2's byte-level alphabet. Every byte has a printable character, so a vocabulary of strings can spell any text.
// Printable ASCII and Latin-1 represent themselves, the other bytes U+0100 and above ("Ġ" is the space).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::tokenizer {

// Returns the character of a byte as UTF-8 (one or two bytes).
std::string_view byte_level_character(unsigned char byte);

// Appends the spelling of some bytes to `out`.
void append_byte_level(std::string& out, std::string_view bytes);

// Decodes a spelling. Returns nullopt when a character is not in the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

}  // namespace sluice::tokenizer
