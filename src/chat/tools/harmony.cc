#include "chat/tools/harmony.h"

#include <algorithm>
#include <utility>

#include "chat/tools/call_format.h"
#include "chat/tools/json_pieces.h"
#include "chat/tools/text_marks.h"

namespace sluice {
namespace {

constexpr size_t kLongestHeader = 256;  // bytes; what is longer is text
constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>";
constexpr std::string_view kFunctions = "functions.";

// Where a message goes.
struct Header {
  std::string_view recipient{}, channel{};
};

// Reads "assistant to=functions.f<|channel|>commentary <|constrain|>json". The recipient comes before or behind the
// channel.
Header parse_header(std::string_view text) {
  Header header;
  const size_t channel = text.find(kChannel);
  size_t at = 0;
  while (at < text.size()) {
    if (is_space(text[at])) {
      ++at;
      continue;
    }
    if (text[at] == '<') {  // a mark
      const size_t end = text.find('>', at);
      at = end == std::string_view::npos ? text.size() : end + 1;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \t\r\n<", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (word.starts_with("to=")) {
      header.recipient = word.substr(3);
    } else if (at > channel && header.channel.empty()) {
      header.channel = word;
    }
    at = end;
  }
  return header;
}

class HarmonyParser final : public OutputParser {
 public:
  explicit HarmonyParser(std::shared_ptr<const ToolFunctions> functions) : functions_(std::move(functions)) {}

  void push(std::string text, std::vector<Delta>& deltas) override {
    held_ += text;
    run(deltas);
  }

  void finish(std::vector<Delta>& deltas) override {
    last_ = true;
    run(deltas);
    // White space alone is an answer.
    if (state_ == State::kBetween && !answered_ && !held_.empty()) deltas.emplace_back(TextDelta{held_});
    end_call(deltas);
    held_.clear();
  }

 private:
  enum class State { kBetween, kHeader, kBody };
  enum class Body { kText, kReasoning, kCall };

  void run(std::vector<Delta>& deltas) {
    at_ = 0;
    while (step(deltas)) {
    }
    held_.erase(0, at_);
    searched_ -= std::min(searched_, at_);
  }

  std::string_view ahead() const { return std::string_view(held_).substr(at_); }

  // Takes from held_ what is decided. Returns false when more text is needed.
  bool step(std::vector<Delta>& deltas) {
    switch (state_) {
      case State::kBetween:
        return between();
      case State::kHeader:
        return header(deltas);
      case State::kBody:
        return body(deltas);
    }
    return false;
  }

  // Before a header, or a text without one.
  bool between() {
    const size_t visible = held_.find_first_not_of(TextMarks::kSpace, std::max(at_, searched_));
    if (visible == std::string::npos) {
      searched_ = held_.size();
      return false;
    }
    static const TextMarks begins({std::string(kStart), std::string(kChannel), std::string(kMessage), "to="});
    const TextMarks::Match begin = begins.match(std::string_view(held_).substr(visible), last_);
    if (begin == TextMarks::kPartial) return false;
    if (begin == TextMarks::kNone) {
      body_ = Body::kText;
      return to(State::kBody, at_);
    }
    return to(State::kHeader, visible);
  }

  bool to(State state, size_t at) {
    state_ = state;
    at_ = at;
    searched_ = 0;
    return true;
  }

  bool header(std::vector<Delta>& deltas) {
    const size_t window = std::min(held_.size(), at_ + kLongestHeader);
    const bool whole = last_ || window < held_.size();
    const TextMarks::Found end =
        header_ends_.find(std::string_view(held_).substr(0, window), std::max(at_, searched_), whole);
    searched_ = end.at;
    if (end.size == 0) return whole && no_header(window == held_.size(), deltas);
    if (!std::string_view(held_).substr(end.at).starts_with(kMessage)) return to(State::kBetween, end.at + end.size);
    begin_body(parse_header(ahead().substr(0, end.at - at_)), deltas);
    return to(State::kBody, end.at + end.size);
  }

  // A header that is cut off says nothing. What is too long for one is text, its mark included.
  bool no_header(bool cut_off, std::vector<Delta>& deltas) {
    const size_t mark = ahead().starts_with("<|") ? ahead().find('>') + 1 : 0;
    if (cut_off && mark > 0) {
      at_ = held_.size();
      return false;
    }
    body_ = Body::kText;
    add(held_.substr(at_, mark), deltas);
    return to(State::kBody, at_ + mark);
  }

  void begin_body(const Header& header, std::vector<Delta>& deltas) {
    const bool analysis = header.channel == "analysis";
    const bool function = header.recipient.starts_with(kFunctions);
    const std::string_view name = function ? header.recipient.substr(kFunctions.size()) : header.recipient;
    const bool others = name.empty() || name == "assistant" || name == "user" || name == "all";
    // What is meant for tools of the model's training is thought where it is in its channel.
    if (!others && (function || !analysis || is_known(name))) {
      deltas.emplace_back(ToolCallBegin{.index = ++call_, .id = {}, .name = std::string(name)});
      body_ = Body::kCall;
      any_arguments_ = false;
    } else {
      body_ = analysis ? Body::kReasoning : Body::kText;
    }
    answered_ = true;
  }

  bool is_known(std::string_view name) const {
    return functions_ != nullptr && std::ranges::any_of(*functions_, [&](const auto& f) { return f.name == name; });
  }

  bool body(std::vector<Delta>& deltas) {
    const TextMarks::Found end = body_ends_.find(held_, at_, last_);
    add(held_.substr(at_, end.at - at_), deltas);
    at_ = end.at;
    if (end.size == 0) return false;
    end_call(deltas);
    body_ = Body::kText;
    // A new header may follow without an end.
    const bool begins = ahead().starts_with(kStart) || ahead().starts_with(kChannel);
    return to(State::kBetween, begins ? at_ : at_ + end.size);
  }

  void add(std::string text, std::vector<Delta>& deltas) {
    if (text.empty()) return;
    answered_ = true;
    switch (body_) {
      case Body::kText:
        deltas.emplace_back(TextDelta{std::move(text)});
        break;
      case Body::kReasoning:
        deltas.emplace_back(ReasoningDelta{std::move(text)});
        break;
      case Body::kCall:  // white space before the arguments is left out
        if (!any_arguments_) text.erase(0, text.find_first_not_of(TextMarks::kSpace));
        if (text.empty()) break;
        any_arguments_ = true;
        deltas.emplace_back(ToolCallArguments{.index = call_, .json = std::move(text)});
        break;
    }
  }

  // A call without arguments has none.
  void end_call(std::vector<Delta>& deltas) {
    if (state_ == State::kBody && body_ == Body::kCall && !std::exchange(any_arguments_, true)) {
      deltas.emplace_back(ToolCallArguments{.index = call_, .json = "{}"});
    }
  }

  const std::shared_ptr<const ToolFunctions> functions_;
  const TextMarks header_ends_{{std::string(kMessage), "<|end|>", "<|return|>", "<|call|>"}};
  const TextMarks body_ends_{{"<|end|>", "<|return|>", "<|call|>", std::string(kStart), std::string(kChannel)}};
  State state_ = State::kBetween;
  Body body_ = Body::kText;
  std::string held_{};   // text that is not decided yet
  size_t at_ = 0;        // what is before it is decided
  size_t searched_ = 0;  // what of held_ was looked at without success
  bool answered_ = false, any_arguments_ = false, last_ = false;
  int call_ = -1;
};

bool in_template(std::string_view source) { return has_texts(source, {kStart, kChannel}); }

const ToolSyntax kHarmony{.name = "openai",
                          .aliases = {"gpt_oss", "gpt-oss", "harmony"},
                          .in_template = in_template,
                          .parser = make_harmony_parser,
                          .build = build_harmony};
const Registry<ToolSyntax> registered_harmony{kHarmony};

}  // namespace

std::unique_ptr<OutputParser> make_harmony_parser(std::shared_ptr<const ToolFunctions> functions) {
  return std::make_unique<HarmonyParser>(std::move(functions));
}

}  // namespace sluice
