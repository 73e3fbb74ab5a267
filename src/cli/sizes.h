// Whole numbers with units, as vLLM reads them: 8k is 8,000 and 8K is 8,192; so are m and M, g and G, t and T.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::cli {

// Parses "4096", "-1", "8k", "25.6k", "8G" or "8GiB". Only decimal units take fractions, and the result must be a
// whole number. Returns nullopt if the text is anything else, or beyond 64 bits.
std::optional<int64_t> parse_size(std::string_view text);

}  // namespace sluice::cli
