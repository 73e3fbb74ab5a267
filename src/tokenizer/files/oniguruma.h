// Rewrites a regular expression from Oniguruma's Ruby syntax to PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace sluice::tokenizer {

// What differs and occurs in published tokenizers: \s, \w, \h, their complements and POSIX classes (other sets of
// characters), \uHHHH, long names of properties (\p{Letter}), names of scripts (PCRE2 takes script extensions), nested
// classes and && in classes, {,n}, + behind {m,n} (a repeat, possessive in PCRE2), (?m) (dot matches newline). Other
// syntax passes unchanged. Throws std::invalid_argument for an unclosed class.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace sluice::tokenizer
