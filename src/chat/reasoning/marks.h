// Searches for the marks of a syntax in a text that comes in pieces.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

struct FoundMark {
  size_t at = 0, size = 0;
  size_t index = 0;  // in the list
};

// The first mark in the text; the longest of those that begin there.
inline std::optional<FoundMark> first_mark(std::string_view text, std::span<const std::string> marks) {
  std::optional<FoundMark> first;
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t at = text.find(marks[i]);
    if (at == std::string_view::npos) continue;
    if (!first || at < first->at || (at == first->at && marks[i].size() > first->size)) {
      first = {.at = at, .size = marks[i].size(), .index = i};
    }
  }
  return first;
}

// How many bytes at the end of the text may be the begin of a mark.
inline size_t open_mark(std::string_view text, std::span<const std::string> marks) {
  size_t most = 0;
  for (const std::string& mark : marks) {
    for (size_t n = std::min(text.size(), mark.size() - 1); n > most; --n) {
      if (text.ends_with(std::string_view(mark).substr(0, n))) most = n;
    }
  }
  return most;
}

// The size of the longest mark that the text begins with; 0: there is none.
inline size_t leading_mark(std::string_view text, std::span<const std::string> marks) {
  size_t size = 0;
  for (const std::string& mark : marks) {
    if (text.starts_with(mark)) size = std::max(size, mark.size());
  }
  return size;
}

// Whether the text is a begin of a longer mark. The empty text is one.
inline bool may_lead(std::string_view text, std::span<const std::string> marks) {
  return std::ranges::any_of(
      marks, [&](const std::string& mark) { return mark.size() > text.size() && mark.starts_with(text); });
}

}  // namespace sluice
