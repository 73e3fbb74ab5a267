// Python's str operations on UTF-8 text: code points, character classes, case, strip, split.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja::text {

bool is_valid(std::string_view s);  // true if it is UTF-8; all other functions require that

// Returns the code point at `at` and moves `at` after it.
char32_t next(std::string_view s, size_t& at);
// Returns the code point that ends at `end` and moves `end` before it.
char32_t previous(std::string_view s, size_t& end);
void append(std::string& out, char32_t c);
size_t count(std::string_view s);                      // number of code points
size_t skip(std::string_view s, size_t at, size_t n);  // offset after n more code points, at most s.size()

std::string_view clip(std::string_view s);  // the beginning of a text, for error messages

bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
int digit_value(char32_t c);  // value of a decimal digit of any script
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_alnum(char32_t c);
bool is_word(char32_t c);  // \w of Python's re
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);
bool is_printable(char32_t c);
bool is_identifier(std::string_view s);

std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string title(std::string_view s);
std::string capitalize(std::string_view s);
std::string swapcase(std::string_view s);
std::string casefold(std::string_view s);

enum Side { kLeft = 1, kRight = 2, kBoth = 3 };
std::string_view strip(std::string_view s, Side side = kBoth);
std::string_view strip(std::string_view s, std::string_view characters, Side side);

// maxsplit < 0: no limit. Without a separator they split at runs of whitespace and return no empty pieces. All stop
// after `most` pieces; the result is then longer than `most`.
std::vector<std::string_view> split(std::string_view s, int64_t maxsplit, size_t most);
std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t maxsplit, size_t most);
std::vector<std::string_view> rsplit(std::string_view s, int64_t maxsplit, size_t most);
std::vector<std::string_view> rsplit(std::string_view s, std::string_view separator, int64_t maxsplit, size_t most);
std::vector<std::string_view> splitlines(std::string_view s, bool keep_ends, size_t most);

// First occurrence at or after `from`, and last occurrence; npos if there is none. Linear in the length of `s`.
size_t find(std::string_view s, std::string_view what, size_t from = 0);
size_t rfind(std::string_view s, std::string_view what);

// Counts what str.replace would replace; `replace` replaces it. limit < 0: all. An empty `old` matches between
// characters.
size_t count_matches(std::string_view s, std::string_view old);
std::string replace(std::string_view s, std::string_view old, std::string_view with, int64_t limit);

}  // namespace sluice::jinja::text
