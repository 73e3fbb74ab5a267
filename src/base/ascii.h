// Letters of ASCII, whatever the locale is.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Returns the text with A to Z in lower case. Other bytes stay.
inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

}  // namespace sluice
