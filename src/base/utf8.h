// Code points to UTF-8.
#pragma once

#include <string>

namespace sluice {

// Appends a code point up to U+10FFFF. Surrogates are encoded like other code points.
void append_utf8(std::string& out, char32_t c);

}  // namespace sluice
