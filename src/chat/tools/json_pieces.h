// Pieces of JSON text for arguments that a model writes in another notation.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Appends the text of a JSON string, without quotes. Bytes from 0x80 on stay as they are.
void append_json_escaped(std::string& out, std::string_view text);
// With quotes.
std::string json_quoted(std::string_view text);

// Appends a code point in UTF-8. Surrogates and values above U+10FFFF become U+FFFD.
void append_character(std::string& out, char32_t c);

// JSON of a bare word: numbers in Python's forms, True and true, None and null; else a string.
std::string json_of_word(std::string_view word);

// Without white space (" \t\r\n") at its ends.
std::string_view trimmed(std::string_view text);
inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace sluice
