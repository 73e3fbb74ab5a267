// Base64 (RFC 4648).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Returns nullopt for a character outside the alphabet. Padding at the end is optional, as in tokenizer files.
std::optional<std::string> decode_base64(std::string_view text);
// The same, but nullopt also without the right padding.
std::optional<std::string> decode_padded_base64(std::string_view text);

}  // namespace sluice
