// Bodies of calls that are a name, a mark and the arguments: name<|sep|>{...}.
#include <algorithm>
#include <utility>

#include "chat/tools/arguments_stream.h"
#include "chat/tools/call_format.h"
#include "chat/tools/text_marks.h"
#include "grammar/json_schema/emit.h"

namespace sluice {
namespace {

constexpr std::string_view kNamespace = "functions.";
constexpr size_t kLongestName = 256;

// What names and ids consist of; other bytes end them.
bool is_name_character(char c) {
  return static_cast<unsigned char>(c) > 0x20 && std::string_view("\"'<>[]{}()|\x7f").find(c) == std::string_view::npos;
}

class NamedBodyReader final : public BodyReader {
 public:
  struct Marks {
    TextMarks prefix, between, id;
    bool namespaced;
  };
  explicit NamedBodyReader(const Marks& marks) : marks_(marks) {}

  Result read(std::string_view text, bool last, CallSink& sink) override {
    while (step(text, last, sink)) {
    }
    if (state_ == State::kOther) return {BodyReader::State::kOther, 0};
    const bool done = stream_.ended();
    return {done ? BodyReader::State::kDone : BodyReader::State::kMore,
            state_ == State::kStream ? std::exchange(at_, 0) : 0};
  }

 private:
  enum class State { kPrefix, kName, kId, kIdText, kBetween, kOpen, kStream, kOther };

  bool to(State state) {
    state_ = state;
    return true;
  }
  bool fail() {
    state_ = State::kOther;
    return false;
  }

  // Returns false when more text is needed, or none.
  bool step(std::string_view text, bool last, CallSink& sink) {
    if (state_ == State::kStream) return stream(text, sink);
    if (state_ == State::kOther || at_ == text.size()) return false;
    if (state_ == State::kName) return word(text, name_, State::kId);
    if (state_ == State::kIdText) return word(text, id_, State::kBetween);
    at_ = std::min(text.find_first_not_of(TextMarks::kSpace, at_), text.size());
    if (at_ == text.size()) return false;
    switch (state_) {
      case State::kPrefix:
        if (marks_.prefix.empty()) return to(State::kName);
        return mark(text, last, marks_.prefix, State::kName, State::kOther);
      case State::kId:
        return mark(text, last, marks_.id, State::kIdText, State::kBetween);
      case State::kBetween:
        return mark(text, last, marks_.between, State::kOpen, State::kOpen);
      default:
        return text[at_] == '{' && begin(sink) ? to(State::kStream) : fail();
    }
  }

  bool mark(std::string_view text, bool last, const TextMarks& marks, State behind, State without) {
    const auto size = marks.match(text.substr(at_), last);
    if (size == TextMarks::kPartial) return false;
    if (size == TextMarks::kNone) return to(without);
    at_ += size;
    return to(behind);
  }

  // A name or id, which ends before a byte that is no part of it.
  bool word(std::string_view text, std::string& word, State then) {
    const size_t begin = at_;
    while (at_ < text.size() && is_name_character(text[at_])) ++at_;
    word += text.substr(begin, at_ - begin);
    if (word.size() > kLongestName) return fail();
    if (at_ == text.size()) return false;
    return word.empty() ? fail() : to(then);
  }

  bool begin(CallSink& sink) {
    std::string_view name = name_;
    if (marks_.namespaced) {
      if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
      const size_t colon = name.rfind(':');
      const bool index = colon != std::string_view::npos && colon > 0 && colon + 1 < name.size() &&
                         name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
      if (index) {
        id_ = name_;
        name = name.substr(0, colon);
      }
    }
    if (!sink.takes(name)) return false;
    sink.begin(std::string(name), id_);
    return true;
  }

  bool stream(std::string_view text, CallSink& sink) {
    if (stream_.ended()) return false;
    const size_t size = stream_.push(text.substr(at_));
    sink.arguments(std::string(text.substr(at_, size)));
    at_ += size;
    return false;
  }

  const Marks& marks_;
  State state_ = State::kPrefix;
  size_t at_ = 0;  // bytes of the text that were looked at
  std::string name_, id_;
  ArgumentsStream stream_;
};

class NamedBody final : public CallBody {
 public:
  explicit NamedBody(NamedCallMarks marks)
      : texts_(std::move(marks)),
        marks_{TextMarks(texts_.prefix), TextMarks(texts_.between), TextMarks(texts_.id), texts_.namespaced} {}

  std::unique_ptr<BodyReader> reader(const ToolFunctions&) const override {
    return std::make_unique<NamedBodyReader>(marks_);
  }

  grammar::NodeId build(grammar::Builder& b, const ToolFunction& function,
                        const grammar::CompileContext& context) const override {
    const auto regular = [&](std::string_view pattern) {
      return b.regular(grammar::parse_regex(pattern, grammar::RegexSyntax::kEcma, true, context.budget));
    };
    if (!std::ranges::all_of(function.name, is_name_character) || function.name.size() > kLongestName) {
      throw grammar::GrammarError("the function name '" + function.name +
                                  "' cannot be written in this syntax of calls");
    }
    std::vector<grammar::NodeId> parts = {build_mark(b, texts_.prefix, context)};
    if (texts_.namespaced) {
      parts.push_back(b.literal(std::string(kNamespace) + function.name + ":"));
      parts.push_back(regular("0|[1-9][0-9]{0,3}"));
    } else {
      parts.push_back(b.literal(function.name));
    }
    if (!texts_.id.empty()) {
      const grammar::NodeId id[] = {build_mark(b, texts_.id, context), regular("[0-9A-Za-z]{9}")};
      const grammar::NodeId either[] = {b.empty(), b.sequence(id)};
      parts.push_back(b.choice(either));
    }
    parts.push_back(build_mark(b, texts_.between, context));
    parts.push_back(grammar::json_text(b, arguments_schema(function), {}, context.budget));
    return b.sequence(parts);
  }

 private:
  const NamedCallMarks texts_;
  const NamedBodyReader::Marks marks_;
};

}  // namespace

std::shared_ptr<const CallBody> named_body(NamedCallMarks marks) {
  return std::make_shared<NamedBody>(std::move(marks));
}

}  // namespace sluice
