// Follows an answer from mark to mark, byte by byte.
#include "chat/reasoning/marks.h"
#include "chat/reasoning_syntax.h"

namespace sluice {

void ThoughtTracker::push(std::string_view bytes) {
  held_ += bytes;
  if (state_ == State::kBefore) begin();
  // Each turn leaves a mark behind.
  while ((state_ == State::kInside && leave()) || (state_ == State::kAfter && reenter())) {
  }
}

void ThoughtTracker::begin() {
  held_.erase(0, std::min(held_.find_first_not_of(" \t\r\n"), held_.size()));
  const size_t size = leading_mark(held_, syntax_->begin);
  if (may_lead(held_, syntax_->begin)) return;
  held_.erase(0, size);
  state_ = size > 0 ? State::kInside : State::kAfter;
}

bool ThoughtTracker::leave() {
  const auto end = first_mark(held_, syntax_->end), cut = first_mark(held_, syntax_->cut);
  if (!end && !cut) {
    const size_t kept = std::max(open_mark(held_, syntax_->end), open_mark(held_, syntax_->cut));
    held_.erase(0, held_.size() - kept);
    return false;
  }
  const FoundMark& mark = end && (!cut || end->at <= cut->at) ? *end : *cut;
  held_.erase(0, mark.at + mark.size);
  state_ = State::kAfter;
  return true;
}

bool ThoughtTracker::reenter() {
  const auto mark = syntax_->reopens ? first_mark(held_, syntax_->begin) : std::nullopt;
  if (!mark) {
    held_.erase(0, held_.size() - (syntax_->reopens ? open_mark(held_, syntax_->begin) : 0));
    return false;
  }
  held_.erase(0, mark->at + mark->size);
  state_ = State::kInside;
  return true;
}

}  // namespace sluice
