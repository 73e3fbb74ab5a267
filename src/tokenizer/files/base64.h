// Base64 (RFC 4648) as used in tokenizer files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::tokenizer {

// Returns nullopt for a character outside the alphabet. Padding at the end is optional.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace sluice::tokenizer
