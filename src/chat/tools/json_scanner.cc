// The pushdown automaton of JSON.
#include "chat/tools/json_scanner.h"

#include "chat/tools/json_pieces.h"

namespace sluice {
namespace {

bool is_number(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; }

}  // namespace

JsonScanner::Result JsonScanner::push(char c) {
  switch (state_) {
    case State::kString:
    case State::kKeyText:
      if (escaped_ || c == '\\') {
        escaped_ = !escaped_;
      } else if (c == '"') {
        if (state_ == State::kString) return end();
        state_ = State::kColon;
      }
      return Result::kMore;
    case State::kNumber:
      if (is_number(c)) return Result::kMore;
      if (end() == Result::kDone) return Result::kBefore;
      return push(c);
    case State::kLiteral:
      if (c != literal_.front()) return Result::kBad;
      literal_.remove_prefix(1);
      return literal_.empty() ? end() : Result::kMore;
    default:
      if (is_space(c)) return Result::kMore;
      return state_ == State::kValue ? value(c) : structure(c);
  }
}

JsonScanner::Result JsonScanner::value(char c) {
  if (c == '{' || c == '[') return open(c);
  if (c == '"') {
    state_ = State::kString;
  } else if (c == '-' || (c >= '0' && c <= '9')) {
    state_ = State::kNumber;
  } else if (c == 't' || c == 'f' || c == 'n') {
    state_ = State::kLiteral;
    literal_ = c == 't' ? "true" : c == 'f' ? "false" : "null";
    literal_.remove_prefix(1);
  } else if (c == ']' && !open_.empty() && open_.back() == '[') {
    return close(c);
  } else {
    return Result::kBad;
  }
  return Result::kMore;
}

JsonScanner::Result JsonScanner::structure(char c) {
  switch (state_) {
    case State::kFirst:
      if (c == '}') return close(c);
      [[fallthrough]];
    case State::kKey:
      if (c != '"') return Result::kBad;
      state_ = State::kKeyText;
      return Result::kMore;
    case State::kColon:
      if (c != ':') return Result::kBad;
      state_ = State::kValue;
      return Result::kMore;
    default:  // kNext
      if (c != ',') return close(c);
      state_ = open_.back() == '{' ? State::kKey : State::kValue;
      return Result::kMore;
  }
}

JsonScanner::Result JsonScanner::open(char c) {
  open_ += c;
  state_ = c == '{' ? State::kFirst : State::kValue;
  return Result::kMore;
}

JsonScanner::Result JsonScanner::close(char c) {
  if (c != (open_.back() == '{' ? '}' : ']')) return Result::kBad;
  open_.pop_back();
  return end();
}

JsonScanner::Result JsonScanner::end() {
  state_ = State::kNext;
  return open_.empty() ? Result::kDone : Result::kMore;
}

}  // namespace sluice
