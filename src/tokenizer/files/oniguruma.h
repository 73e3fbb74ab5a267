// Rewrites a regular expression from Oniguruma's Ruby syntax to PCRE2's syntax.
#pragma once

#include <string>
#include <string_view>

namespace sluice::tokenizer {

// Handles the differences that occur in published tokenizers. These are \s, \w, \h, their complements and POSIX classes
// (different sets of characters), \uHHHH, long property names (\p{Letter}), and script names (PCRE2 uses script
// extensions). They also include nested classes and && in classes, {,n}, + after {m,n} (a repeat, possessive in PCRE2),
// and (?m) (dot matches newline). Other syntax is copied unchanged. Throws std::invalid_argument for an unclosed class.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace sluice::tokenizer
