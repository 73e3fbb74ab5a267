// Removes texts from deltas, also where they are split.
#include "engine/special_text.h"

#include <algorithm>
#include <utility>

#include "chat/reasoning/marks.h"

namespace sluice {

void SpecialTextFilter::add(const std::string& text) {
  if (!text.empty() && std::ranges::find(hidden_, text) == hidden_.end()) hidden_.push_back(text);
}

void SpecialTextFilter::apply(std::vector<Delta>& deltas) {
  if (hidden_.empty()) return;
  std::vector<Delta> shown;
  for (Delta& delta : deltas) {
    auto* text = std::get_if<TextDelta>(&delta);
    auto* thought = std::get_if<ReasoningDelta>(&delta);
    if (text == nullptr && thought == nullptr) {
      flush(shown);
      shown.push_back(std::move(delta));
      continue;
    }
    if (thought_ != (thought != nullptr)) flush(shown);
    thought_ = thought != nullptr;
    std::string& piece = text != nullptr ? text->text : thought->text;
    piece = filter(std::move(piece));
    if (!piece.empty()) shown.push_back(std::move(delta));
  }
  deltas = std::move(shown);
}

void SpecialTextFilter::finish(std::vector<Delta>& deltas) {
  apply(deltas);
  flush(deltas);
}

std::string SpecialTextFilter::filter(std::string text) {
  text.insert(0, std::exchange(held_, ""));
  std::string shown;
  size_t at = 0;
  while (const auto mark = first_mark(std::string_view(text).substr(at), hidden_)) {
    shown.append(text, at, mark->at);
    at += mark->at + mark->size;
  }
  const size_t kept = open_mark(std::string_view(text).substr(at), hidden_);
  shown.append(text, at, text.size() - kept - at);
  held_ = text.substr(text.size() - kept);
  return shown;
}

void SpecialTextFilter::flush(std::vector<Delta>& into) {
  if (held_.empty()) return;
  std::string text = std::exchange(held_, "");
  if (thought_) {
    into.emplace_back(ReasoningDelta{std::move(text)});
  } else {
    into.emplace_back(TextDelta{std::move(text)});
  }
}

}  // namespace sluice
