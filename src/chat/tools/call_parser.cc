// The parser of answers in a CallFormat: finds sections and calls and leaves bodies to their readers.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "chat/tools/call_format.h"
#include "chat/tools/text_marks.h"

namespace sluice {
namespace {

class CallParser final : public OutputParser, private CallSink {
 public:
  CallParser(const CallFormat& format, std::shared_ptr<const ToolFunctions> functions)
      : format_(format),
        functions_(functions ? std::move(functions) : std::make_shared<const ToolFunctions>()),
        section_begin_(format.section_begin),
        section_end_(format.section_end),
        call_begin_(format.call_begin),
        call_end_(format.call_end),
        separator_(TextMarks::trimmed(format.separator)),
        begin_(with(with(format.section_begin.empty() ? format.call_begin : format.section_begin, format.unmarked),
                    format.ignored)),
        ignored_(format.ignored),
        unmarked_(format.unmarked),
        state_(format.bare.empty() ? State::kText : State::kStart) {}

  void push(std::string text, std::vector<Delta>& deltas) override {
    held_ += text;
    deltas_ = &deltas;
    while (step()) {
    }
    if (start_ > held_.size() / 2) {
      held_.erase(0, start_);
      at_ -= start_;
      retry_ -= std::min(retry_, start_);
      start_ = 0;
    }
  }

  void finish(std::vector<Delta>& deltas) override {
    last_ = true;
    deltas_ = &deltas;
    while (step()) {
    }
    // What is left is white space, or a call that did not begin.
    const std::string_view rest = std::string_view(held_).substr(start_);
    if (calls_ == 0 || rest.find_first_not_of(TextMarks::kSpace) != std::string_view::npos) emit(held_.size());
    held_.clear();
    start_ = at_ = retry_ = 0;
  }

 private:
  enum class State {
    kStart,       // before the first visible character
    kText,        // between sections
    kOpen,        // behind the mark of a section
    kCall,        // before a call, or the end of its section
    kBody,        // before a body
    kRead,        // within a body
    kCallEnd,     // behind a body
    kNext,        // behind a call
    kSectionEnd,  // behind the bracket that ends a list
  };

  // Takes from held_ what is decided. Returns false when more text is needed.
  bool step() {
    switch (state_) {
      case State::kText:
        return text();
      case State::kRead:
        return read();
      default:
        break;
    }
    if (!skip_space()) return last_ && state_ < State::kCallEnd && fail_at_end();
    switch (state_) {
      case State::kStart:
        return start();
      case State::kOpen:
        return open();
      case State::kCall:
        return call();
      case State::kBody:
        reader_ = format_.body->reader(*functions_);
        return to(State::kRead);
      case State::kCallEnd:
        return mark_or(call_end_, State::kNext, State::kNext);
      case State::kNext:
        return next();
      default:
        return mark_or(section_end_, State::kText, State::kText);
    }
  }

  static std::vector<std::string> with(std::vector<std::string> marks, const std::vector<std::string>& others) {
    marks.insert(marks.end(), others.begin(), others.end());
    return marks;
  }
  bool to(State state) {
    state_ = state;
    return true;
  }
  std::string_view ahead() const { return std::string_view(held_).substr(at_); }
  bool skip_space() {
    at_ = std::min(held_.find_first_not_of(TextMarks::kSpace, at_), held_.size());
    return at_ < held_.size();
  }
  TextMarks::Match match(const TextMarks& marks) const { return marks.match(ahead(), last_); }
  // All up to here is decided: it is a part of calls.
  void taken() { start_ = retry_ = at_; }

  // Text up to `end`. White space at its end is kept back, as it does not belong to the answer before a call.
  void text_up_to(size_t end) {
    const size_t visible = std::string_view(held_).substr(at_, end - at_).find_last_not_of(TextMarks::kSpace);
    if (visible != std::string_view::npos) emit(at_ + visible + 1);
    at_ = end;
  }
  void emit(size_t end) {
    if (end > start_) deltas_->emplace_back(TextDelta{held_.substr(start_, end - start_)});
    start_ = std::max(start_, end);
  }

  bool text() {
    const TextMarks::Found found = begin_.find(held_, at_, last_);
    text_up_to(found.at);
    if (found.size == 0) return false;
    at_ = retry_ = found.at + found.size;
    const std::string_view mark = std::string_view(held_).substr(found.at, found.size);
    if (ignored_.has(mark)) {
      emit(found.at);
      taken();
      return true;
    }
    first_ = true, list_ = false;
    is_unmarked_ = unmarked_.has(mark);
    if (is_unmarked_) at_ = found.at;
    return to(section_begin_.empty() ? State::kBody : is_unmarked_ ? State::kCall : State::kOpen);
  }

  // The text since the last call or mark is not a call.
  bool fail() {
    if (retry_ > start_) emit(retry_);
    at_ = start_;
    return to(State::kText);
  }
  bool fail_at_end() {
    if (state_ == State::kStart) return false;
    return fail();
  }

  bool start() {
    if (format_.bare.find(held_[at_]) == std::string_view::npos) {
      at_ = 0;
      return to(State::kText);
    }
    first_ = true;
    return to(State::kOpen);
  }

  bool open() {
    list_ = format_.list && held_[at_] == '[';
    if (list_) ++at_;
    return to(State::kCall);
  }

  bool call() {
    if (const auto end = match(section_end_); end != TextMarks::kNone) {
      if (end == TextMarks::kPartial) return false;
      if (first_ || list_) return fail();
      at_ += end;
      taken();
      return to(State::kText);
    }
    const auto begin = match(call_begin_);
    if (begin == TextMarks::kPartial) return false;
    if (begin == TextMarks::kNone) return call_begin_.empty() ? to(State::kBody) : fail();
    at_ += begin;
    return to(State::kBody);
  }

  bool read() {
    const BodyReader::Result result = reader_->read(ahead(), last_, *this);
    at_ += result.used;
    CHECK(begun_ || result.used == 0, "a reader used text before it began a call");
    if (begun_) taken();
    if (result.state == BodyReader::State::kMore) {
      if (!last_) return false;
      if (begun_) at_ = held_.size(), taken();
    }
    reader_.reset();
    is_unmarked_ = false;
    if (!std::exchange(begun_, false)) return fail();
    ++calls_;
    first_ = false;
    return to(State::kCallEnd);
  }

  // A mark that may be missing.
  bool mark_or(const TextMarks& marks, State behind, State without) {
    const auto size = match(marks);
    if (size == TextMarks::kPartial) return false;
    if (size == TextMarks::kNone) {
      at_ = retry_;
      return to(without);
    }
    at_ += size;
    taken();
    return to(behind);
  }

  bool next() {
    if (list_ && held_[at_] == ']') {
      ++at_;
      taken();
      return to(State::kSectionEnd);
    }
    if (format_.list && !list_) return to(State::kSectionEnd);
    const auto size = match(separator_);
    if (size == TextMarks::kPartial) return false;
    if (size != TextMarks::kNone) {
      at_ += size;
      return to(State::kCall);
    }
    if (list_) return to(State::kSectionEnd);
    // Without a mark between them, calls follow each other only in a section that has an end.
    return call_begin_.empty() && separator_.empty() && section_end_.empty() ? fail() : to(State::kCall);
  }

  bool takes(std::string_view name) const override {
    return !is_unmarked_ || functions_->empty() ||
           std::ranges::find(*functions_, name, &ToolFunction::name) != functions_->end();
  }
  void begin(std::string name, std::string id) override {
    CHECK(!begun_, "a reader began a call twice");
    begun_ = true;
    deltas_->emplace_back(ToolCallBegin{.index = calls_, .id = std::move(id), .name = std::move(name)});
  }
  void arguments(std::string json) override {
    CHECK(begun_, "a reader gave arguments before it began a call");
    if (!json.empty()) deltas_->emplace_back(ToolCallArguments{.index = calls_, .json = std::move(json)});
  }

  const CallFormat& format_;
  const std::shared_ptr<const ToolFunctions> functions_;
  const TextMarks section_begin_, section_end_, call_begin_, call_end_, separator_;
  const TextMarks begin_;    // what begins a section in a text, and what is ignored there
  const TextMarks ignored_;  // not a part of a text
  const TextMarks unmarked_;
  State state_;
  std::vector<Delta>* deltas_ = nullptr;  // of the call that runs
  std::unique_ptr<BodyReader> reader_;
  std::string held_;  // text that is not decided yet, from start_
  size_t start_ = 0;  // what is before it was given or is a part of calls
  size_t at_ = 0;     // what is before it was looked at
  size_t retry_ = 0;  // where text goes on if no call comes: what is before it is text, too
  bool begun_ = false, first_ = false, list_ = false, last_ = false;
  bool is_unmarked_ = false;  // the body that begins or is read
  int calls_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> make_call_parser(const CallFormat& format,
                                               std::shared_ptr<const ToolFunctions> functions) {
  return std::make_unique<CallParser>(format, std::move(functions));
}

}  // namespace sluice
