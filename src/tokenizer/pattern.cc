// Loads the "pattern" of Split and Replace.
#include "tokenizer/pattern.h"

#include <stdexcept>

namespace sluice::tokenizer {

Pattern::Pattern(const Field& field) {
  if (const auto literal = field.find("String")) {
    literal_ = literal->string();
    if (literal_.empty()) regex_.emplace("");  // an empty expression matches between all characters
    return;
  }
  const auto expression = field.find("Regex");
  if (!expression) field.unsupported("expected {\"String\": ...} or {\"Regex\": ...}");
  try {
    regex_.emplace(expression->string());
  } catch (const std::invalid_argument& e) {
    expression->unsupported(e.what());
  }
}

std::string Pattern::replace(std::string_view text, std::string_view content) const {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;
  for_each_match(text, {}, [&](size_t begin, size_t end) {
    out += text.substr(copied, begin - copied);
    out += content;
    copied = end;
  });
  out += text.substr(copied);
  return out;
}

}  // namespace sluice::tokenizer
