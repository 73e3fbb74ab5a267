// Marks: the search for several short texts.
#include "chat/tools/text_marks.h"

#include <algorithm>

namespace sluice {

std::string TextMarks::trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

TextMarks::TextMarks(const std::vector<std::string>& marks) {
  for (const std::string& mark : marks) {
    if (std::string text = trimmed(mark); !text.empty()) marks_.push_back(std::move(text));
  }
  std::ranges::sort(marks_, std::ranges::greater(), &std::string::size);
}

bool TextMarks::has(std::string_view mark) const { return std::ranges::find(marks_, mark) != marks_.end(); }

TextMarks::Match TextMarks::match(std::string_view text, bool last) const {
  for (const std::string& mark : marks_) {
    if (text.starts_with(mark)) return mark.size();
    if (!last && mark.starts_with(text)) return kPartial;
  }
  return kNone;
}

TextMarks::Found TextMarks::find(std::string_view text, size_t from, bool last) const {
  for (size_t at = from; at < text.size(); ++at) {
    at = std::ranges::find_if(text.substr(at),
                              [&](char c) {
                                return std::ranges::any_of(marks_,
                                                           [c](const std::string& mark) { return mark.front() == c; });
                              }) -
         text.begin();
    if (at == text.size()) break;
    const Match size = match(text.substr(at), last);
    if (size != kNone) return {at, size == kPartial ? 0 : size};
  }
  return {text.size(), 0};
}

}  // namespace sluice
