// GPT-2's byte-level alphabet: every byte has a printable character, so that any text can be spelled by a vocabulary of
// strings. Printable ASCII and Latin-1 stand for themselves, the others for U+0100 upwards ("Ġ" is the space).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::tokenizer {

// The character of a byte, as UTF-8 (one or two bytes).
std::string_view byte_level_character(unsigned char byte);

// Spells bytes in the alphabet, after what `out` holds.
void append_byte_level(std::string& out, std::string_view bytes);

// Reads a spelling back; nullopt when a character is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

}  // namespace sluice::tokenizer
