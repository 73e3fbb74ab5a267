// The parser of answers that begin with a thought.
#include <algorithm>
#include <utility>

#include "chat/reasoning/marks.h"
#include "chat/reasoning_syntax.h"

namespace sluice {
namespace {

class ReasoningParser final : public OutputParser {
 public:
  ReasoningParser(const ReasoningSyntax& syntax, ThoughtStart start, std::unique_ptr<OutputParser> inner)
      : syntax_(syntax), inner_(std::move(inner)), opened_(start == ThoughtStart::kOpen), ends_(syntax.end) {
    ends_.insert(ends_.end(), syntax.cut.begin(), syntax.cut.end());
    leads_ = syntax.begin;
    if (!opened_) leads_.insert(leads_.end(), syntax.end.begin(), syntax.end.end());
    if (!opened_) leads_.insert(leads_.end(), syntax.answer_begin.begin(), syntax.answer_begin.end());
  }

  void push(std::string text, std::vector<Delta>& deltas) override {
    held_ += text;
    while (step(deltas)) {
    }
  }

  void finish(std::vector<Delta>& deltas) override {
    last_ = true;
    while (step(deltas)) {
    }
    if (state_ == State::kThought) add_thought(held_, deltas);
    if (state_ == State::kAnswer) answer(held_, deltas);
    inner_->finish(deltas);
  }

 private:
  enum class State {
    kStart,    // before a begin, or whatever comes first
    kThought,  // up to its end
    kBridge,   // between the end and the answer
    kAnswer,
    kTail,  // after the end of an answer
  };

  // Reads on in held_. Returns whether to go on with another state.
  bool step(std::vector<Delta>& deltas) {
    switch (state_) {
      case State::kStart:
        return start(deltas);
      case State::kThought:
        return thought(deltas);
      case State::kBridge:
        return bridge();
      case State::kAnswer:
        return text(deltas);
      case State::kTail:
        drop_line_breaks();
        if (held_.empty()) return false;
        state_ = State::kAnswer;
        return true;
    }
    return false;
  }

  bool start(std::vector<Delta>& deltas) {
    const size_t space = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
    spaces_.append(held_, 0, space);
    held_.erase(0, space);
    const size_t begin = leading_mark(held_, syntax_.begin);
    if (!last_ && may_lead(held_, leads_)) return false;
    if (begin > 0 || opened_) {
      if (begin > 0) spaces_.clear();
      held_.erase(0, begin);
      held_.insert(0, std::exchange(spaces_, ""));
      enter(deltas);
      return true;
    }
    if (leading_mark(held_, leads_) > 0) {
      held_.erase(0, leading_mark(held_, syntax_.end));  // the end of a thought that has no begin
      spaces_.clear();
      state_ = State::kBridge;
      return true;
    }
    held_.insert(0, std::exchange(spaces_, ""));
    state_ = State::kAnswer;
    return true;
  }

  void enter(std::vector<Delta>& deltas) {
    state_ = State::kThought;
    if (syntax_.keep) deltas.emplace_back(TextDelta{syntax_.begin.front()});
  }

  bool thought(std::vector<Delta>& deltas) {
    const auto end = first_mark(held_, ends_);
    if (!end) {
      const size_t kept = open_mark(held_, ends_);
      add_thought(std::string_view(held_).substr(0, held_.size() - kept), deltas);
      held_.erase(0, held_.size() - kept);
      return false;
    }
    add_thought(std::string_view(held_).substr(0, end->at), deltas);
    line_breaks_ = 0;
    const bool cut = end->index >= syntax_.end.size();
    if (syntax_.keep && !cut) deltas.emplace_back(TextDelta{ends_[end->index]});
    held_.erase(0, end->at + (cut ? 0 : end->size));
    state_ = cut || syntax_.keep ? State::kAnswer : State::kBridge;
    return true;
  }

  // Line breaks at the begin are dropped; those at the end are held back, as the end may follow.
  void add_thought(std::string_view text, std::vector<Delta>& deltas) {
    if (syntax_.keep) {
      if (!text.empty()) deltas.emplace_back(TextDelta{std::string(text)});
      return;
    }
    if (!thinks_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return;
    thinks_ = true;
    const size_t size = text.find_last_not_of('\n') + 1;  // 0: there are only line breaks
    const size_t before = size > 0 ? std::exchange(line_breaks_, 0) : 0;
    line_breaks_ += text.size() - size;
    if (size > 0) deltas.emplace_back(ReasoningDelta{std::string(before, '\n') + std::string(text.substr(0, size))});
  }

  void drop_line_breaks() { held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size())); }

  bool bridge() {
    drop_line_breaks();
    const auto& marks = syntax_.answer_begin;
    if (!closes_) {
      const size_t mark = leading_mark(held_, marks);
      if (!last_ && may_lead(held_, marks)) return false;
      held_.erase(0, mark);
      closes_ = mark > 0;
      if (closes_) return true;
    }
    if (held_.empty()) return false;
    state_ = State::kAnswer;
    return true;
  }

  bool text(std::vector<Delta>& deltas) {
    if (!closes_ || syntax_.answer_end.empty()) {
      answer(held_, deltas);
      held_.clear();
      return false;
    }
    const auto end = first_mark(held_, syntax_.answer_end);
    const size_t size = end ? end->at : held_.size() - open_mark(held_, syntax_.answer_end);
    answer(held_.substr(0, size), deltas);
    held_.erase(0, size + (end ? end->size : 0));
    if (!end) return false;
    closes_ = false;
    state_ = State::kTail;
    return true;
  }

  void answer(std::string text, std::vector<Delta>& deltas) {
    if (!text.empty()) inner_->push(std::move(text), deltas);
  }

  const ReasoningSyntax& syntax_;
  const std::unique_ptr<OutputParser> inner_;
  const bool opened_;               // the prompt has opened the thought
  std::vector<std::string> ends_;   // and cuts
  std::vector<std::string> leads_;  // what an answer may begin with
  State state_ = State::kStart;
  std::string held_;        // text that is not decided yet
  std::string spaces_;      // white space before anything else
  size_t line_breaks_ = 0;  // at the end of the thought so far
  bool thinks_ = false;     // the thought has text
  bool last_ = false;       // no text follows
  bool closes_ = false;     // an answer_begin came: an answer_end may follow
};

}  // namespace

std::unique_ptr<OutputParser> make_reasoning_parser(const ReasoningSyntax& syntax, ThoughtStart start,
                                                    std::unique_ptr<OutputParser> inner) {
  return std::make_unique<ReasoningParser>(syntax, start, std::move(inner));
}

}  // namespace sluice
