// See member_scanner.h.
#include "route/member_scanner.h"

#include <algorithm>
#include <cstring>

namespace sluice::route {

MemberScanner::MemberScanner(std::string_view json) : text_(json) {
  skip_space();
  open_ = take('{');
}

std::optional<std::pair<std::string_view, std::string_view>> MemberScanner::next() {
  if (!open_) return std::nullopt;
  skip_space();
  if (take(',')) skip_space();
  const size_t name = at_;
  if (!skip_string()) return std::nullopt;
  const std::string_view quoted = text_.substr(name, at_ - name);
  skip_space();
  if (!take(':')) return std::nullopt;
  skip_space();
  const size_t value = at_;
  if (!skip_value()) return std::nullopt;
  return std::pair(quoted.substr(1, quoted.size() - 2), text_.substr(value, at_ - value));
}

bool MemberScanner::at_end() {
  skip_space();
  if (!open_ || !take('}')) return false;
  skip_space();
  return at_ == text_.size();
}

bool MemberScanner::take(char c) {
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void MemberScanner::skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

bool MemberScanner::skip_string() {
  if (!take('"')) return false;
  while (at_ < text_.size()) {
    const auto* quote = static_cast<const char*>(std::memchr(text_.data() + at_, '"', text_.size() - at_));
    if (quote == nullptr) break;
    const auto end = static_cast<size_t>(quote - text_.data());
    size_t slashes = 0;
    while (text_[end - 1 - slashes] == '\\') ++slashes;  // ends at the string's first quote
    at_ = end + 1;
    if (slashes % 2 == 0) return true;
  }
  return false;
}

bool MemberScanner::skip_value() {
  if (at_ >= text_.size()) return false;
  const char first = text_[at_];
  if (first == '"') return skip_string();
  if (first != '{' && first != '[') {
    at_ = std::min(text_.find_first_of(",} \t\r\n", at_), text_.size());
    return at_ < text_.size();
  }
  for (size_t depth = 0; at_ < text_.size();) {
    const char c = text_[at_];
    if (c == '"') {
      if (!skip_string()) return false;
      continue;
    }
    ++at_;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return true;
  }
  return false;
}

}  // namespace sluice::route
