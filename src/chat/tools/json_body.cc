// Bodies of calls that are JSON objects: {"name": "f", "arguments": {...}}.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "chat/tools/arguments_stream.h"
#include "chat/tools/call_format.h"
#include "chat/tools/json_pieces.h"
#include "chat/tools/json_scanner.h"
#include "grammar/json_schema/emit.h"
#include "sluice/error.h"

namespace sluice {
namespace {

// Arguments as the text of a value: an object, or a string that holds one.
std::string arguments_of(std::string_view value) {
  if (value == "null" || value == "\"\"") return "{}";
  if (!value.starts_with('"')) return std::string(value);
  try {
    std::string inner = parse_json(value).get<std::string>();
    if (parse_json(inner).is_object()) return inner;
  } catch (const Error&) {
  }
  return std::string(value);
}

class JsonBodyReader final : public BodyReader {
 public:
  JsonBodyReader(const JsonCallKeys& keys, const ToolFunctions& functions) : keys_(keys), functions_(functions) {}

  Result read(std::string_view text, bool, CallSink& sink) override {
    while (at_ < text.size() && state_ != State::kDone && state_ != State::kOther) {
      if (state_ == State::kStream) {
        if (!stream(text, sink)) break;
      } else if (state_ == State::kScan) {
        scan(text, sink);
      } else if (is_space(text[at_])) {
        ++at_;
      } else {
        structure(text[at_], sink);
      }
    }
    const BodyReader::State state = state_ == State::kDone    ? BodyReader::State::kDone
                                    : state_ == State::kOther ? BodyReader::State::kOther
                                                              : BodyReader::State::kMore;
    if (!begun_) return {state, 0};
    begin_ = 0;
    return {state, std::exchange(at_, 0)};
  }

 private:
  enum class State {
    kOpen,    // before the brace
    kKey,     // before a key or the closing brace
    kColon,   // behind a key
    kValue,   // before a value
    kNext,    // behind a value
    kScan,    // within a key or value
    kStream,  // within the arguments, which are given as they come
    kDone,
    kOther,
  };

  void structure(char c, CallSink& sink) {
    if (state_ == State::kOpen) {
      if (c != '{') return fail();
      ++at_, ++depth_;
      state_ = State::kKey;
    } else if (state_ == State::kColon) {
      if (c != ':') return fail();
      ++at_;
      state_ = State::kValue;
    } else if (state_ == State::kValue) {
      value(c, sink);
    } else if (c == '}') {
      ++at_;
      close(sink);
    } else if (state_ == State::kKey) {
      if (c != '"') return fail();
      begin_scan(true);
    } else {
      if (c != ',') return fail();
      ++at_;
      state_ = State::kKey;
    }
  }

  // Before the first character of a value.
  void value(char c, CallSink& sink) {
    if (!begun_ && c == '{' && is_arguments() && !name_.empty()) {
      if (begin(sink)) state_ = State::kStream;
    } else if (!begun_ && c == '{' && key_ == "function" && depth_ == 1 && name_.empty()) {
      ++at_, ++depth_;
      state_ = State::kKey;
    } else {
      begin_scan(false);
    }
  }

  void begin_scan(bool key) {
    begin_ = at_;
    in_key_ = key;
    scanner_ = {};
    state_ = State::kScan;
  }

  void scan(std::string_view text, CallSink& sink) {
    for (; at_ < text.size(); ++at_) {
      const JsonScanner::Result result = scanner_.push(text[at_]);
      if (result == JsonScanner::Result::kMore) continue;
      if (result == JsonScanner::Result::kBad) return fail();
      if (result == JsonScanner::Result::kDone) ++at_;
      state_ = in_key_ ? State::kColon : State::kNext;
      if (!begun_) scanned(text.substr(begin_, at_ - begin_), sink);
      return;
    }
  }

  // A key or value that is complete.
  void scanned(std::string_view text, CallSink& sink) {
    try {
      if (in_key_) {
        key_ = parse_json(text).get<std::string>();
        if (keys_.name.empty() && name_.empty()) {
          name_ = std::exchange(key_, keys_.arguments);
          if (name_.empty()) return fail();
        }
        return;
      }
      if (key_ == keys_.name && name_.empty()) {
        const Json name = parse_json(text);
        if (!name.is_string() || name.get_ref<const std::string&>().empty()) return fail();
        name_ = name.get<std::string>();
      } else if (!keys_.id.empty() && key_ == keys_.id) {
        const Json id = parse_json(text);
        id_ = id.is_string() ? id.get<std::string>() : dump_json(id);
      } else if (is_arguments() && arguments_.empty()) {
        arguments_ = arguments_of(text);
      }
    } catch (const Error&) {
      return fail();
    }
    if (name_.empty() || arguments_.empty()) return;
    if (begin(sink)) sink.arguments(std::move(arguments_));
  }

  // Returns false when more text is needed.
  bool stream(std::string_view text, CallSink& sink) {
    const size_t size = stream_.push(text.substr(at_));
    sink.arguments(std::string(text.substr(at_, size)));
    at_ += size;
    if (stream_.ended()) state_ = State::kNext;
    return stream_.ended();
  }

  void close(CallSink& sink) {
    state_ = --depth_ == 0 ? State::kDone : State::kNext;
    if (depth_ > 0 || begun_) return;
    // Models leave empty arguments out.
    const bool known = std::ranges::any_of(functions_, [&](const ToolFunction& f) { return f.name == name_; });
    if (!known) return fail();
    if (begin(sink)) sink.arguments("{}");
  }

  bool is_arguments() const { return key_ == keys_.arguments || key_ == "arguments" || key_ == "parameters"; }
  bool begin(CallSink& sink) {
    if (!sink.takes(name_)) return fail(), false;
    begun_ = true;
    sink.begin(name_, id_);
    return true;
  }
  // What follows arguments without being JSON is not a part of the call.
  void fail() { state_ = begun_ ? State::kDone : State::kOther; }

  const JsonCallKeys& keys_;
  const ToolFunctions& functions_;
  State state_ = State::kOpen;
  size_t at_ = 0;     // bytes of the text that were looked at
  size_t begin_ = 0;  // of a key or value
  bool in_key_ = false;
  JsonScanner scanner_;
  int depth_ = 0;  // braces around the members
  std::string key_, name_, id_, arguments_;
  bool begun_ = false;
  ArgumentsStream stream_;
};

class JsonBody final : public CallBody {
 public:
  explicit JsonBody(JsonCallKeys keys) : keys_(std::move(keys)) {}

  std::unique_ptr<BodyReader> reader(const ToolFunctions& functions) const override {
    return std::make_unique<JsonBodyReader>(keys_, functions);
  }

  grammar::NodeId build(grammar::Builder& b, const ToolFunction& function,
                        const grammar::CompileContext& context) const override {
    const auto text = [](const std::string& s) { return dump_json(Json(s)); };
    std::vector<grammar::NodeId> parts = {b.literal("{")};
    if (!keys_.id.empty()) {
      const auto digits = grammar::parse_regex("[0-9]{1,3}", grammar::RegexSyntax::kEcma, true, context.budget);
      parts.insert(parts.end(), {b.literal(text(keys_.id) + ": \""), b.regular(digits), b.literal("\", ")});
    }
    if (keys_.name.empty()) {
      parts.push_back(b.literal(text(function.name) + ": "));
    } else {
      parts.push_back(b.literal(text(keys_.name) + ": " + text(function.name) + ", " + text(keys_.arguments) + ": "));
    }
    parts.push_back(grammar::json_text(b, arguments_schema(function), {}, context.budget));
    parts.push_back(b.literal("}"));
    return b.sequence(parts);
  }

 private:
  const JsonCallKeys keys_;
};

}  // namespace

std::shared_ptr<const CallBody> json_body(JsonCallKeys keys) { return std::make_shared<JsonBody>(std::move(keys)); }

}  // namespace sluice
