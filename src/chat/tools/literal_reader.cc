#include "chat/tools/literal_reader.h"

#include <utility>

#include "chat/tools/json_pieces.h"

namespace sluice {
namespace {

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

// Letters before a quote: r"", f"" and others.
bool is_prefix(std::string_view word) {
  return !word.empty() && word.size() <= 2 && word.find_first_not_of("rRbBfFuU") == std::string_view::npos;
}

}  // namespace

LiteralReader LiteralReader::members(LiteralNotation notation) {
  LiteralReader reader(notation);
  reader.frames_.push_back({.close = notation.close, .assign = notation.assign});
  reader.phase_ = Phase::kKey;
  return reader;
}

size_t LiteralReader::read(std::string_view text, std::string& json) {
  size_t i = 0;
  while (i < text.size() && !done()) {
    if (step(text[i], json)) ++i;
  }
  return i;
}

bool LiteralReader::step(char c, std::string& json) {
  switch (phase_) {
    case Phase::kKey:
    case Phase::kValue:
      if (is_space(c)) return true;
      return begin_value(c, json);
    case Phase::kAfterValue:
      if (is_space(c)) return true;
      if (c == frames_.back().close) {
        close_frame(json);
      } else if (c == ',') {
        phase_ = frames_.back().assign != 0 ? Phase::kKey : Phase::kValue;
      } else {
        guessed_ = true;
      }
      return true;
    case Phase::kWord:
      return word(c, json);
    case Phase::kString:
      if (notation_.quote.empty() && c == quote_) {
        held_ = c;
        phase_ = Phase::kQuote;
      } else if (!notation_.quote.empty() && c == notation_.quote[0]) {
        held_ = c;
        phase_ = Phase::kMark;
      } else if (notation_.quote.empty() && c == '\\' && !raw_) {
        held_.clear();
        phase_ = Phase::kEscape;
      } else {
        add({&c, 1}, json);
      }
      return true;
    case Phase::kEscape:
      return escape(c, json);
    case Phase::kQuote:
      return quote(c, json);
    case Phase::kMark:
      return mark(c, json);
    case Phase::kDone:
      return true;
  }
  return true;
}

// The comma or bracket before an item.
void LiteralReader::begin_item(std::string& json) {
  if (frames_.empty()) return;
  Frame& frame = frames_.back();
  const bool value_of_key = frame.assign != 0 && phase_ == Phase::kValue;
  if (value_of_key) return;
  if (!frame.empty) json += ", ";
  frame.empty = false;
}

bool LiteralReader::begin_value(char c, std::string& json) {
  const bool key = phase_ == Phase::kKey;
  if (!frames_.empty()) {
    const Frame& frame = frames_.back();
    if (c == frame.close && (key || frame.assign == 0)) return close_frame(json), true;
    if (c == ',' && (key || frame.assign == 0)) return true;
    if (frame.assign != 0 && !key && (c == ',' || c == frame.close)) {
      json += "null";  // a key without a value
      guessed_ = true;
      return end_value(json), false;
    }
  }
  begin_item(json);
  in_key_ = key;
  if (!notation_.quote.empty() && c == notation_.quote[0]) {
    held_ = c;
    quote_ = 0;  // the mark at the begin is not complete
    nested_.clear();
    phase_ = Phase::kMark;
    return true;
  }
  raw_ = false;
  if (notation_.quote.empty() && (c == '"' || c == '\'')) return begin_string(c, json), true;
  if (!key && c == '[') return open(']', 0, json), true;
  if (!key && c == '(') return open(')', 0, json), true;
  if (!key && c == '{') return open('}', ':', json), true;
  held_.clear();
  nested_.clear();
  phase_ = Phase::kWord;
  return false;
}

void LiteralReader::open(char close, char assign, std::string& json) {
  frames_.push_back({.close = close, .assign = assign});
  json += assign != 0 ? '{' : '[';
  phase_ = assign != 0 ? Phase::kKey : Phase::kValue;
}

void LiteralReader::close_frame(std::string& json) {
  json += frames_.back().assign != 0 ? '}' : ']';
  frames_.pop_back();
  phase_ = frames_.empty() ? Phase::kDone : Phase::kAfterValue;
}

// Behind a key or a value. The assignment is the next character of a key: words and strings end only before it.
void LiteralReader::end_value(std::string& json) {
  if (in_key_) {
    json += ": ";
    in_key_ = false;
    phase_ = Phase::kValue;
    return;
  }
  phase_ = frames_.empty() ? Phase::kDone : Phase::kAfterValue;
}

void LiteralReader::begin_string(char quote, std::string& json) {
  quote_ = quote;
  surrogate_ = 0;
  held_.clear();
  json += '"';
  phase_ = Phase::kString;
}

void LiteralReader::end_string(std::string& json) {
  if (surrogate_ != 0) add_unit(0, json);
  json += '"';
  held_.clear();
  end_value(json);
}

void LiteralReader::add(std::string_view text, std::string& json) {
  if (surrogate_ != 0) add_unit(0, json);
  append_json_escaped(json, text);
}

// Whether this character behind a quote shows that the string has ended.
bool LiteralReader::ends_string(char c) const {
  if (in_key_) return c == frames_.back().assign;
  if (frames_.empty()) return false;
  return c == ',' || c == frames_.back().close;
}

bool LiteralReader::quote(char c, std::string& json) {
  if (frames_.empty()) return end_string(json), false;
  if (is_space(c)) return held_ += c, true;
  if (ends_string(c)) {
    const bool assign = in_key_;
    end_string(json);
    return assign;
  }
  add(std::exchange(held_, ""), json);
  phase_ = Phase::kString;
  return false;
}

// A part of the mark around strings of Gemma's notation.
bool LiteralReader::mark(char c, std::string& json) {
  const bool begins = quote_ == 0;
  if (c != notation_.quote[held_.size()]) {
    phase_ = begins ? Phase::kWord : Phase::kString;
    if (!begins) add(std::exchange(held_, ""), json);
    return false;
  }
  held_ += c;
  if (held_.size() < notation_.quote.size()) return true;
  if (begins) {
    held_.clear();
    begin_string('"', json);
  } else if (in_key_) {
    phase_ = Phase::kQuote;  // the assignment follows
  } else {
    end_string(json);
  }
  return true;
}

bool LiteralReader::word(char c, std::string& json) {
  if (nested_.empty()) {
    const bool outermost = frames_.empty();
    const Frame frame = outermost ? Frame{0, 0} : frames_.back();
    if (in_key_ && c == frame.assign) {
      end_word(json);
      return true;
    }
    if (!outermost && (c == ',' || c == frame.close)) {
      end_word(json);
      return false;
    }
    if (notation_.quote.empty() && (c == '"' || c == '\'') && is_prefix(held_)) {
      raw_ = held_.find_first_of("rR") != std::string::npos;
      begin_string(c, json);
      return true;
    }
    if (c == '(' || c == '[' || c == '{') nested_ += c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (c == nested_.back()) {
    nested_.pop_back();
  } else if (c == '(' || c == '[' || c == '{') {
    nested_ += c == '(' ? ')' : c == '[' ? ']' : '}';
  }
  held_ += c;
  return true;
}

void LiteralReader::end_word(std::string& json) {
  const std::string word = std::exchange(held_, "");
  const std::string value = json_of_word(word);
  if (value.starts_with('"')) guessed_ = true;
  json += in_key_ ? json_quoted(trimmed(word)) : value;
  end_value(json);
}

// held_: what follows the backslash so far.
bool LiteralReader::escape(char c, std::string& json) {
  if (held_.empty()) {
    held_ = c;
    if (c != 'x' && c != 'u' && c != 'U' && !is_octal(c)) end_escape(json);
    return true;
  }
  const char kind = held_[0];
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 2;
  const bool digit = is_octal(kind) ? is_octal(c) : hex(c) >= 0;
  if (!digit) return end_escape(json), false;
  held_ += c;
  if (held_.size() == digits + 1) end_escape(json);
  return true;
}

void LiteralReader::end_escape(std::string& json) {
  const std::string text = std::exchange(held_, "");
  phase_ = Phase::kString;
  const char kind = text[0];
  const size_t wanted = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  if (wanted > 0) {
    if (text.size() != wanted + 1) return add("\\" + text, json);
    char32_t value = 0;
    for (const char c : text.substr(1)) value = value * 16 + static_cast<char32_t>(hex(c));
    return add_unit(value, json);
  }
  if (is_octal(kind)) {
    char32_t value = 0;
    for (const char c : text) value = value * 8 + static_cast<char32_t>(c - '0');
    std::string utf8;
    append_character(utf8, value);
    return add(utf8, json);
  }
  static constexpr std::string_view kNames = "abfnrtv\\'\"/\n", kMeanings = "\a\b\f\n\r\t\v\\'\"/\n";
  const size_t known = kNames.find(kind);
  if (kind == '\n') return;  // the line goes on
  if (known == std::string_view::npos) return add("\\" + text, json);
  add(kMeanings.substr(known, 1), json);
}

// A code unit of \u; 0: none follows the first one of a pair.
void LiteralReader::add_unit(char32_t unit, std::string& json) {
  std::string utf8;
  const char32_t first = std::exchange(surrogate_, 0);
  const bool second = unit >= 0xdc00 && unit <= 0xdfff;
  if (first != 0 && second) {
    append_character(utf8, 0x10000 + ((first - 0xd800) << 10) + (unit - 0xdc00));
    return append_json_escaped(json, utf8);
  }
  if (first != 0) append_character(utf8, first);
  append_json_escaped(json, utf8);
  utf8.clear();
  if (unit >= 0xd800 && unit <= 0xdbff) {
    surrogate_ = unit;
  } else if (unit != 0 || first == 0) {
    append_character(utf8, unit);
    append_json_escaped(json, utf8);
  }
}

void LiteralReader::finish(std::string& json) {
  if (phase_ == Phase::kWord && !held_.empty()) end_word(json);
  if (phase_ == Phase::kQuote) json += '"';
  if (phase_ == Phase::kMark) append_json_escaped(json, held_);
  if (phase_ == Phase::kQuote && frames_.empty()) phase_ = Phase::kDone;
  held_.clear();
}

}  // namespace sluice
