// Base64 (RFC 4648), as tokenizer files have it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::tokenizer {

// nullopt for a character outside of the alphabet. Padding at the end may be left out.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace sluice::tokenizer
