#include "chat/tools/json_pieces.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace sluice {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits at the front, which leave `text`.
std::string_view take_digits(std::string_view& text) {
  const size_t n = static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  const std::string_view digits = text.substr(0, n);
  text.remove_prefix(n);
  return digits;
}

// A number in JSON's form; empty if the word is none. Python also writes 1_000, +5, .5, 5. and 07 (an error there, but
// models write it).
std::string json_number(std::string word) {
  for (size_t i = word.find('_'); i != std::string::npos; i = word.find('_', i)) {
    if (i == 0 || i + 1 == word.size() || !is_digit(word[i - 1]) || !is_digit(word[i + 1])) return "";
    word.erase(i, 1);
  }
  std::string_view rest = word;
  std::string out;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
    if (rest[0] == '-') out = "-";
    rest.remove_prefix(1);
  }
  std::string_view whole = take_digits(rest), fraction;
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (whole.empty() && fraction.empty()) return "";
    if (fraction.empty()) fraction = "0";
  }
  if (whole.empty() && fraction.empty()) return "";
  whole.remove_prefix(std::min(whole.find_first_not_of('0'), whole.size()));
  out += whole.empty() ? "0" : whole;
  if (!fraction.empty()) out.append(".").append(fraction);
  if (!rest.empty() && (rest[0] == 'e' || rest[0] == 'E')) {
    out += 'e';
    rest.remove_prefix(1);
    if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
      out += rest[0];
      rest.remove_prefix(1);
    }
    const std::string_view exponent = take_digits(rest);
    if (exponent.empty()) return "";
    out += exponent;
  }
  return rest.empty() ? out : "";
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  return out += '"';
}

void append_character(std::string& out, char32_t c) {
  const bool surrogate = c >= 0xd800 && c <= 0xdfff;
  append_utf8(out, c > 0x10ffff || surrogate ? U'\xfffd' : c);
}

std::string json_of_word(std::string_view word) {
  word = trimmed(word);
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null") return "null";
  const std::string number = json_number(std::string(word));
  return number.empty() ? json_quoted(word) : number;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace sluice
