// Reads calls whose parameters are in tags: <function=f><parameter=k>v</parameter></function>. Models also write the
// arguments as JSON, or close the first tag at once: <invoke name="f"/>.
#include "chat/tools/tagged_body.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "chat/tools/argument_types.h"
#include "chat/tools/arguments_stream.h"
#include "chat/tools/json_pieces.h"

namespace sluice {
namespace {

constexpr size_t kLongestOpening = 512;  // bytes of a call before the end of its name
// What is looked at behind a line break to see whether a value ends there without a mark, in bytes.
constexpr size_t kLongestKey = 256, kMostSpace = 64;

// How a text begins with a mark.
enum class Match { kNo, kPartly, kYes };
Match match(std::string_view text, std::string_view mark) {
  if (text.starts_with(mark)) return Match::kYes;
  return mark.starts_with(text) ? Match::kPartly : Match::kNo;
}

// The bytes at the end of a text that may be the beginning of the mark.
size_t undecided(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

// TagMarks without the white space that the grammar writes around them, which models may leave out.
struct TagMarks {
  explicit TagMarks(const TaggedCallMarks& m)
      : name_begin(trimmed(m.name_begin)),
        name_end(trimmed(m.name_end)),
        parameter_begin(trimmed(m.parameter_begin)),
        parameter_end(trimmed(m.parameter_end)),
        value_begin(trimmed(m.value_begin)),
        string_begin(trimmed(m.string_begin)),
        value_end(trimmed(m.value_end)),
        body_end(trimmed(m.body_end)),
        behind_body(trimmed(m.behind_body)),
        strip_newlines(m.strip_newlines) {}

  std::string_view name_begin, name_end, parameter_begin, parameter_end, value_begin, string_begin, value_end, body_end,
      behind_body;
  bool strip_newlines;
};

class TaggedReader final : public BodyReader {
 public:
  TaggedReader(const TagMarks& marks, const ToolFunctions& functions) : marks_(marks), functions_(functions) {}

  Result read(std::string_view text, bool last, CallSink& sink) override {
    text_ = text;
    last_ = last;
    at_ = 0;
    json_.clear();
    Step step = Step::kOn;
    while (step == Step::kOn) step = next(sink);
    if (step == Step::kMore && last && state_ != State::kName) cut_off();
    if (!json_.empty()) sink.arguments(std::move(json_));
    const auto state = step == Step::kDone                                        ? BodyReader::State::kDone
                       : step == Step::kOther || (last && state_ == State::kName) ? BodyReader::State::kOther
                                                                                  : BodyReader::State::kMore;
    return {state, state_ == State::kName ? 0 : at_};
  }

 private:
  enum class State { kName, kBetween, kKey, kValueBegin, kString, kValue, kJson, kEnd };
  enum class Step { kOn, kMore, kDone, kOther };

  std::string_view rest() const { return text_.substr(at_); }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  Step next(CallSink& sink) {
    switch (state_) {
      case State::kName:
        return name(sink);
      case State::kBetween:
        return between();
      case State::kKey:
        return key();
      case State::kValueBegin:
        return value_begin();
      case State::kString:
        return string();
      case State::kValue:
        return value();
      case State::kJson:
        return json();
      case State::kEnd:
        return end();
    }
    return Step::kDone;
  }

  // Nothing is used until the name is complete.
  Step name(CallSink& sink) {
    at_ = 0;
    skip_space();
    const Match begin = match(rest(), marks_.name_begin);
    if (begin == Match::kNo) return Step::kOther;
    if (begin == Match::kPartly) return at_ > kLongestOpening ? Step::kOther : Step::kMore;
    at_ += marks_.name_begin.size();
    const NameEnd end = name_end();
    // The same place decides, however much text has come.
    const size_t earliest = at_ + end.size - (end.found ? 0 : std::min(end.size, marks_.name_end.size()));
    if (earliest > kLongestOpening) return Step::kOther;
    if (!end.found) return Step::kMore;
    const std::string_view name = trimmed(rest().substr(0, end.size));
    if (name.empty() || name.find_first_of("<>{}\"\r\n") != std::string_view::npos) return Step::kOther;
    if (!sink.takes(name)) return Step::kOther;
    at_ += end.used;
    for (const ToolFunction& f : functions_) {
      if (f.name == name) function_ = &f;
    }
    sink.begin(std::string(name), "");
    state_ = State::kBetween;
    return end.closed ? close() : Step::kOn;
  }

  struct NameEnd {
    bool found;
    size_t size, used;    // the name, and up to behind its end
    bool closed = false;  // nothing follows in the body
  };
  // A name also ends where a line or another mark begins.
  NameEnd name_end() const {
    constexpr std::string_view kClosed = "\"/>";
    const size_t closed = marks_.name_end == "\">" ? rest().find(kClosed) : std::string_view::npos;
    if (closed != std::string_view::npos && closed < rest().find_first_of("<\n>")) {
      return {true, closed, closed + kClosed.size(), true};
    }
    const size_t end = marks_.name_end.empty() ? std::string_view::npos : rest().find(marks_.name_end);
    const size_t other = rest().find_first_of("<\n");
    if (end != std::string_view::npos && end <= other) return {true, end, end + marks_.name_end.size()};
    if (other == std::string_view::npos) return {last_ && marks_.name_end.empty(), rest().size(), rest().size()};
    const bool partly = match(rest().substr(other), marks_.name_end) == Match::kPartly;
    return {last_ || !partly, other, partly ? rest().size() : other};
  }

  // Before a parameter or the end.
  Step between() {
    skip_space();
    if (rest().empty()) return last_ && marks_.body_end.empty() ? close() : Step::kMore;
    const Match parameter = match(rest(), marks_.parameter_begin);
    if (parameter == Match::kYes) {
      at_ += marks_.parameter_begin.size();
      key_.clear();
      state_ = State::kKey;
      return Step::kOn;
    }
    const Match end = marks_.body_end.empty() ? Match::kNo : match(rest(), marks_.body_end);
    if (end == Match::kYes) {
      at_ += marks_.body_end.size();
      return close();
    }
    if (!last_ && (parameter == Match::kPartly || end == Match::kPartly)) return Step::kMore;
    if (keys_.empty() && rest()[0] == '{') {
      state_ = State::kJson;
      return Step::kOn;
    }
    return close();  // what follows is not a part of the body
  }

  // All arguments at once.
  Step json() {
    const size_t size = stream_.push(rest());
    json_ += rest().substr(0, size);
    at_ += size;
    if (!stream_.ended()) return Step::kMore;
    state_ = State::kEnd;
    return Step::kOn;
  }

  Step end() {
    if (marks_.body_end.empty()) return Step::kDone;
    skip_space();
    const Match end = match(rest(), marks_.body_end);
    if (end == Match::kPartly && !last_) return Step::kMore;
    if (end == Match::kYes) at_ += marks_.body_end.size();
    return Step::kDone;
  }

  Step close() {
    json_ += keys_.empty() ? "{}" : "}";
    return Step::kDone;
  }

  Step key() {
    const size_t end = rest().find(marks_.parameter_end);
    const size_t size = end != std::string_view::npos ? end : rest().size() - undecided(rest(), marks_.parameter_end);
    key_ += rest().substr(0, size);
    at_ += size;
    if (end == std::string_view::npos) return Step::kMore;
    at_ += marks_.parameter_end.size();
    const std::string_view name = trimmed(key_);
    types_ = function_ != nullptr ? argument_types(function_->parameters, name) : ArgumentTypes{kAnyType};
    state_ = State::kValueBegin;
    return Step::kOn;
  }

  Step value_begin() {
    if (marks_.value_begin.empty()) return begin_value(types_);
    skip_space();
    // A key without a value is left out.
    const Match parameter = match(rest(), marks_.parameter_begin), behind = match(rest(), "</");
    if (parameter == Match::kYes || behind == Match::kYes) {
      state_ = State::kBetween;
      return Step::kOn;
    }
    if (!last_ && (parameter == Match::kPartly || behind == Match::kPartly)) return Step::kMore;
    for (const bool string : {true, false}) {
      const std::string_view mark = string ? marks_.string_begin : marks_.value_begin;
      if (mark.empty()) continue;
      const Match found = match(rest(), mark);
      if (found == Match::kPartly && !last_) return Step::kMore;
      if (found != Match::kYes) continue;
      at_ += mark.size();
      if (marks_.string_begin.empty()) return begin_value(types_);
      // The mark decides, unless the schema allows no value of that kind.
      const ArgumentTypes kind = types_ & (string ? kStringType : ~kStringType);
      return begin_value(kind != 0 ? kind : types_);
    }
    return begin_value(types_);
  }

  Step begin_value(ArgumentTypes types) {
    types_ = types;
    const std::string_view name = trimmed(key_);
    json_ += (keys_.empty() ? "{" : ", ") + json_quoted(name) + ": ";
    keys_.emplace_back(name);
    value_.clear();
    at_begin_ = true;
    if (types == kStringType) json_ += '"';
    state_ = types == kStringType ? State::kString : State::kValue;
    return Step::kOn;
  }

  // A line break at the beginning is left out, and one at the end is held back.
  Step string() {
    if (at_begin_ && marks_.strip_newlines) {
      if (rest().empty() || (rest() == "\r" && !last_)) return Step::kMore;
      if (rest().starts_with("\r\n")) ++at_;
      if (rest().starts_with('\n')) ++at_;
    }
    at_begin_ = false;
    const ValueEnd end = value_end();
    const size_t shown =
        end.size - (marks_.strip_newlines ? newline_at_end(rest().substr(0, end.size), !end.found) : 0);
    append_json_escaped(json_, rest().substr(0, shown));
    if (!end.found) {
      at_ += shown;
      return Step::kMore;
    }
    at_ += end.used;
    json_ += '"';
    state_ = State::kBetween;
    return Step::kOn;
  }

  struct ValueEnd {
    bool found;
    size_t size;  // bytes of the value; not found: those that are known to belong to it
    size_t used;  // bytes up to behind the end
  };
  ValueEnd value_end() const {
    const std::string_view text = rest();
    const size_t end = text.find(marks_.value_end);
    for (size_t line = 0; !marks_.behind_body.empty(); ++line) {
      line = text.find('\n', line);
      if (line == std::string_view::npos || line >= end) break;
      const Match match = forgotten_end(text.substr(line + 1));
      if (match == Match::kYes) return {true, line + 1, line + 1};
      if (match == Match::kPartly) return {false, line, line};
    }
    if (end != std::string_view::npos) return {true, end, end + marks_.value_end.size()};
    const size_t size = text.size() - undecided(text, marks_.value_end);
    return {false, size, size};
  }

  // Whether a value without its mark ends before this text, which begins a line.
  Match forgotten_end(std::string_view text) const {
    const Match no_more = last_ ? Match::kNo : Match::kPartly;
    const Match parameter = match(text, marks_.parameter_begin), body = match(text, marks_.body_end);
    if (parameter == Match::kYes) {
      const std::string_view key = text.substr(marks_.parameter_begin.size(), kLongestKey);
      const size_t end = key.find(marks_.parameter_end), other = key.find_first_of("<\n");
      if (end != std::string_view::npos && end < other)
        return lacks(trimmed(key.substr(0, end))) ? Match::kYes : Match::kNo;
      return other == std::string_view::npos && key.size() < kLongestKey ? no_more : Match::kNo;
    }
    if (body == Match::kYes) {
      text.remove_prefix(marks_.body_end.size());
      const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
      if (space > kMostSpace) return Match::kNo;
      if (space == text.size()) return last_ ? Match::kYes : Match::kPartly;
      const Match behind = match(text.substr(space), marks_.behind_body);
      return behind == Match::kPartly ? no_more : behind;
    }
    return parameter == Match::kPartly || body == Match::kPartly ? no_more : Match::kNo;
  }

  // Whether the call has no value of this parameter yet, and may have one as far as the schema tells.
  bool lacks(std::string_view key) const {
    if (key.empty() || std::ranges::find(keys_, key) != keys_.end()) return false;
    if (function_ == nullptr || !function_->parameters.is_object()) return true;
    const auto properties = function_->parameters.find("properties");
    return properties == function_->parameters.end() || properties->contains(std::string(key));
  }

  // The bytes of a line break at the end. `partly`: also what may become one.
  static size_t newline_at_end(std::string_view text, bool partly) {
    if (text.ends_with("\r\n")) return 2;
    return text.ends_with('\n') || (partly && text.ends_with('\r')) ? 1 : 0;
  }

  // The text of another value is needed whole.
  Step value() {
    const ValueEnd end = value_end();
    value_ += rest().substr(0, end.size);
    at_ += end.used;
    if (!end.found) return Step::kMore;
    std::string_view text = value_;
    if (marks_.strip_newlines) {
      if (text.starts_with("\r\n")) text.remove_prefix(1);
      if (text.starts_with('\n')) text.remove_prefix(1);
      text.remove_suffix(newline_at_end(text, false));
    }
    json_ += argument_json(text, types_);
    state_ = State::kBetween;
    return Step::kOn;
  }

  // The answer ends here: what there is of the arguments is given as it is.
  void cut_off() {
    if (keys_.empty() && state_ != State::kJson && state_ != State::kEnd) json_ += '{';
    if (state_ == State::kKey) json_ += (keys_.empty() ? "\"" : ", \"");
    if (state_ == State::kKey || state_ == State::kString) {
      append_json_escaped(json_, state_ == State::kKey ? key_ : rest());
    }
    if (state_ == State::kValue) {
      value_ += rest();
      json_ += (types_ & kStringType) != 0 ? json_quoted(value_) : value_;
    }
    at_ = text_.size();
  }

  const TagMarks& marks_;
  const ToolFunctions& functions_;
  const ToolFunction* function_ = nullptr;
  State state_ = State::kName;
  std::string key_{}, value_{};
  ArgumentTypes types_ = kAnyType;
  std::vector<std::string> keys_{};  // parameters that have a value
  ArgumentsStream stream_{};
  bool at_begin_ = true;  // of a value

  // Of the current read.
  std::string_view text_{};
  bool last_ = false;
  size_t at_ = 0;
  std::string json_{};
};

class TaggedBody final : public CallBody {
 public:
  explicit TaggedBody(TaggedCallMarks marks)
      : given_(std::move(marks)),
        marks_(given_),
        languages_(std::string(trimmed(given_.value_end)), forgotten_ends(marks_)) {}

  std::unique_ptr<BodyReader> reader(const ToolFunctions& functions) const override {
    return std::make_unique<TaggedReader>(marks_, functions);
  }
  grammar::NodeId build(grammar::Builder& builder, const ToolFunction& function,
                        const grammar::CompileContext& context) const override {
    return build_tagged_call(builder, given_, languages_, function, context);
  }

 private:
  static std::vector<std::string> forgotten_ends(const TagMarks& marks) {
    if (marks.behind_body.empty()) return {};
    return {fmt::format("\n{}", marks.parameter_begin), fmt::format("\n{}", marks.body_end)};
  }

  const TaggedCallMarks given_;
  const TagMarks marks_;
  const TagLanguages languages_;
};

}  // namespace

std::shared_ptr<const CallBody> tagged_body(TaggedCallMarks marks) {
  CHECK(!trimmed(marks.value_end).empty() && !trimmed(marks.parameter_end).empty(), "keys and values must have ends");
  return std::make_shared<const TaggedBody>(std::move(marks));
}

}  // namespace sluice
