// Hermes and Qwen: <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, several after each other.
#include <algorithm>
#include <optional>
#include <utility>

#include "chat/tool_syntax.h"
#include "grammar/json_schema/emit.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";
constexpr size_t kMostHead = 4096;  // bytes of a call up to its arguments; longer ones are parsed when they end

// Reads the beginning of a call, {"name": "f", "arguments":, as far as it is there.
class Head {
 public:
  enum class Result { kIncomplete, kComplete, kOther };
  explicit Head(std::string_view text) : text_(text) {}

  Result read() {
    for (const std::string_view part : {"{", "\"name\"", ":"}) {
      if (const Result r = expect(part); r != Result::kComplete) return r;
    }
    if (const Result r = string(); r != Result::kComplete) return r;
    for (const std::string_view part : {",", "\"arguments\"", ":", "{"}) {
      if (const Result r = expect(part); r != Result::kComplete) return r;
    }
    --at_;  // the brace belongs to the arguments
    return Result::kComplete;
  }
  std::string name;
  size_t size() const { return at_; }

 private:
  void space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  Result expect(std::string_view part) {
    space();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(part)) return at_ += part.size(), Result::kComplete;
    return part.starts_with(rest) ? Result::kIncomplete : Result::kOther;
  }
  Result string() {
    space();
    if (at_ == text_.size()) return Result::kIncomplete;
    const size_t begin = at_;
    if (text_[at_] != '"') return Result::kOther;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        ++at_;
        try {
          name = parse_json(text_.substr(begin, at_ - begin)).get<std::string>();
        } catch (const Error&) {
          return Result::kOther;
        }
        return Result::kComplete;
      }
    }
    return Result::kIncomplete;
  }

  std::string_view text_;
  size_t at_ = 0;
};

class HermesParser final : public OutputParser {
 public:
  void push(std::string text, std::vector<Delta>& deltas) override {
    held_ += text;
    while (step(deltas)) {
    }
  }

  void finish(std::vector<Delta>& deltas) override {
    if (state_ == State::kHead || state_ == State::kWhole) {
      whole_call(held_, deltas);
    } else if (state_ == State::kText) {
      add_text(spaces_ + held_, deltas);
    } else if (state_ == State::kArguments) {
      add_arguments(held_, deltas);
    }
    held_.clear();
  }

 private:
  enum class State {
    kText,
    kHead,       // before the arguments of a call
    kArguments,  // within them
    kTail,       // behind them
    kWhole,      // a call in another form: parsed when it ends
  };

  // Takes from held_ what is decided. Returns false when more text is needed.
  bool step(std::vector<Delta>& deltas) {
    switch (state_) {
      case State::kText:
        return text(deltas);
      case State::kHead:
        return head(deltas);
      case State::kArguments:
        return arguments(deltas);
      case State::kTail:
        return tail(deltas, false);
      case State::kWhole:
        return tail(deltas, true);
    }
    return false;
  }

  // The end of held_ that may be the beginning of `mark`.
  size_t undecided(std::string_view mark) const {
    for (size_t n = std::min(mark.size() - 1, held_.size()); n > 0; --n) {
      if (std::string_view(held_).ends_with(mark.substr(0, n))) return n;
    }
    return 0;
  }

  // White space before a call is not a part of the answer.
  bool text(std::vector<Delta>& deltas) {
    const size_t begin = held_.find(kBegin);
    const size_t end = begin != std::string::npos ? begin : held_.size() - undecided(kBegin);
    const std::string_view plain = std::string_view(held_).substr(0, end);
    const size_t last = plain.find_last_not_of(" \t\r\n");
    if (last == std::string_view::npos) {
      spaces_ += plain;
    } else {
      add_text(spaces_.append(plain.substr(0, last + 1)), deltas);
      spaces_ = plain.substr(last + 1);
    }
    held_.erase(0, end);
    if (begin == std::string::npos) return false;
    held_.erase(0, kBegin.size());
    state_ = State::kHead;
    return true;
  }

  bool head(std::vector<Delta>& deltas) {
    Head head(held_);
    const Head::Result result = head.read();
    const bool ends = held_.find(kEnd) != std::string::npos;
    if (result == Head::Result::kComplete) {
      spaces_.clear();
      deltas.emplace_back(ToolCallBegin{.index = calls_, .id = {}, .name = std::move(head.name)});
      held_.erase(0, head.size());
      depth_ = 0, in_string_ = escaped_ = false;
      state_ = State::kArguments;
      return true;
    }
    if (result == Head::Result::kIncomplete && !ends && held_.size() < kMostHead) return false;
    searched_ = 0;
    state_ = State::kWhole;
    return true;
  }

  bool arguments(std::vector<Delta>& deltas) {
    for (size_t i = 0; i < held_.size(); ++i) {
      const char c = held_[i];
      if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
        continue;
      }
      if (c == '"') in_string_ = true;
      if (c == '{' || c == '[') ++depth_;
      if (c != '}' && c != ']') continue;
      if (--depth_ > 0) continue;
      add_arguments(held_.substr(0, i + 1), deltas);
      held_.erase(0, i + 1);
      ++calls_;
      searched_ = 0;
      state_ = State::kTail;
      return true;
    }
    add_arguments(held_, deltas);
    held_.clear();
    return false;
  }

  bool tail(std::vector<Delta>& deltas, bool parse) {
    const size_t end = held_.find(kEnd, searched_);
    if (end == std::string::npos) {
      searched_ = held_.size() - std::min(held_.size(), kEnd.size() - 1);
      return false;
    }
    if (parse) whole_call(held_.substr(0, end), deltas);
    held_.erase(0, end + kEnd.size());
    state_ = State::kText;
    return true;
  }

  // A call whose members come in another order. What is no call is text.
  void whole_call(const std::string& body, std::vector<Delta>& deltas) {
    try {
      const Json call = parse_json(body);
      const auto name = call.is_object() ? call.find("name") : call.end();
      const auto arguments = call.is_object() ? call.find("arguments") : call.end();
      if (call.is_object() && name != call.end() && name->is_string() && arguments != call.end() &&
          arguments->is_object()) {
        spaces_.clear();
        deltas.emplace_back(ToolCallBegin{.index = calls_, .id = {}, .name = name->get<std::string>()});
        add_arguments(dump_json(*arguments), deltas);
        ++calls_;
        return;
      }
    } catch (const Error&) {
    }
    add_text(std::exchange(spaces_, "") + std::string(kBegin) + body, deltas);
  }

  static void add_text(std::string text, std::vector<Delta>& deltas) {
    if (!text.empty()) deltas.emplace_back(TextDelta{std::move(text)});
  }
  void add_arguments(std::string json, std::vector<Delta>& deltas) const {
    if (!json.empty()) deltas.emplace_back(ToolCallArguments{.index = calls_, .json = std::move(json)});
  }

  State state_ = State::kText;
  std::string held_;    // text that is not decided yet
  std::string spaces_;  // white space at the end of the text so far
  int calls_ = 0;
  int depth_ = 0;  // of the arguments
  bool in_string_ = false, escaped_ = false;
  size_t searched_ = 0;  // bytes of held_ in which no end begins
};

bool in_template(std::string_view source) {
  const auto has = [source](std::string_view text) { return source.find(text) != std::string_view::npos; };
  // Others use the same tags around calls that are not JSON.
  return has("<tool_call>") && has("arguments") && !has("<function=") && !has("<arg_key>");
}

std::unique_ptr<OutputParser> make_parser(std::shared_ptr<const ToolFunctions>) {
  return std::make_unique<HermesParser>();
}

grammar::NodeId build(grammar::Builder& b, const CallGrammar& calls, const grammar::CompileContext& context) {
  // Some vocabularies have a special token for a tag.
  const auto tag = [&](std::string_view bytes) {
    const std::optional<TokenId> token = context.special ? context.special(bytes) : std::nullopt;
    const grammar::NodeId either[] = {b.literal(bytes), token ? b.special(*token) : b.nothing()};
    return b.choice(either);
  };
  std::vector<grammar::NodeId> functions;
  for (const ToolFunction& function : calls.functions) {
    const Json schema = function.parameters.is_null() ? Json{{"type", "object"}} : function.parameters;
    const std::string head = "\n{\"name\": " + dump_json(Json(function.name)) + ", \"arguments\": ";
    const grammar::NodeId parts[] = {b.literal(head), grammar::json_text(b, schema, {}, context.budget),
                                     b.literal("}\n"), tag(kEnd)};
    functions.push_back(b.sequence(parts));
  }
  const grammar::NodeId one = b.choice(functions), begin = tag(kBegin);
  const bool parallel = calls.parallel;
  if (calls.required) {
    const grammar::NodeId whole[] = {begin, one};
    return b.separated(b.sequence(whole), b.literal("\n"), 1, parallel ? -1 : 1);
  }
  // Text up to a call, which more text and calls may follow.
  const grammar::NodeId answer = b.declare("answer");
  const grammar::NodeId further[] = {one, answer};
  const grammar::NodeId then = parallel ? b.sequence(further) : one;
  std::vector<grammar::Builder::End> ends = {{.bytes = std::string(kBegin), .special = {}, .then = then}};
  if (const auto token = context.special ? context.special(kBegin) : std::nullopt) {
    ends.push_back({.bytes = {}, .special = token, .then = then});
  }
  b.define(answer, b.free_text(std::move(ends), false));
  return answer;
}

const ToolSyntax syntax{.name = "hermes", .in_template = in_template, .parser = make_parser, .build = build};
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice
