// Finds syntaxes of thoughts, and composes grammars with a thought before them.
#include "chat/reasoning_syntax.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/json.h"

namespace sluice {
namespace {

using grammar::NodeId;

constexpr std::string_view kKind = "after_thought";
constexpr std::string_view kSpace = " \t\r\n";
constexpr int kMostLineBreaks = 2;  // between a thought and an answer

// Builds nodes of marks. A part of a mark may be a special token or spelled by others; both are allowed.
class Marks {
 public:
  Marks(grammar::Builder& builder, const grammar::CompileContext& context) : b_(builder), context_(context) {}

  NodeId node(std::string_view mark) {
    std::vector<NodeId> parts;
    while (!mark.empty()) {
      const std::string_view token = leading_token(mark);
      const std::string_view part = token.empty() ? text_before_token(mark) : token;
      const NodeId spelled = b_.literal(part);
      if (token.empty()) {
        parts.push_back(spelled);
      } else {
        const NodeId either[] = {spelled, b_.special(*special(token))};
        parts.push_back(b_.choice(either));
      }
      mark.remove_prefix(part.size());
    }
    return b_.sequence(parts);
  }

  // Free text up to the mark, and then `then`.
  NodeId text_until(const std::string& mark, NodeId then) {
    std::vector<grammar::Builder::End> ends = {{.bytes = mark, .special = {}, .then = then}};
    const std::string_view token = leading_token(mark);
    if (!token.empty()) {
      const NodeId rest[] = {node(std::string_view(mark).substr(token.size())), then};
      ends.push_back({.bytes = {}, .special = special(token), .then = b_.sequence(rest)});
    }
    return b_.free_text(std::move(ends), /*must_end=*/true);
  }

 private:
  std::optional<TokenId> special(std::string_view text) const {
    return context_.special ? context_.special(text) : std::nullopt;
  }
  // A special token at the begin of the text, if there is one. Their texts end with a bracket.
  std::string_view leading_token(std::string_view text) const {
    for (size_t end = text.find_first_of(">]"); end != std::string_view::npos;
         end = text.find_first_of(">]", end + 1)) {
      if (special(text.substr(0, end + 1))) return text.substr(0, end + 1);
    }
    return {};
  }
  std::string_view text_before_token(std::string_view text) const {
    size_t size = 1;
    while (size < text.size() && leading_token(text.substr(size)).empty()) ++size;
    return text.substr(0, size);
  }

  grammar::Builder& b_;
  const grammar::CompileContext& context_;
};

NodeId build(grammar::Builder& b, std::string_view text, const grammar::CompileContext& context) {
  const Json spec = parse_json(text, {.depth = 4});
  const ReasoningSyntax& syntax = *reasoning_syntax(spec.at("syntax").get<std::string>());
  const auto start = static_cast<ThoughtStart>(spec.at("start").get<int>());
  Marks marks(b, context);
  const auto join = [&](std::initializer_list<NodeId> parts) { return b.sequence({parts.begin(), parts.size()}); };
  const auto either = [&](NodeId one, NodeId other) { return b.choice(std::array{one, other}); };

  NodeId answer =
      grammar::build_source(b, spec.at("kind").get<std::string>(), spec.at("text").get<std::string>(), context);
  if (!syntax.answer_begin.empty()) {
    const NodeId line_break = b.repeat(b.literal("\n"), 0, 1);
    const NodeId marked = join({marks.node(syntax.answer_begin[0]), line_break, answer, line_break,
                                marks.node(syntax.answer_end[0].substr(syntax.answer_end[0][0] == '\n' ? 1 : 0))});
    answer = either(answer, marked);
  }
  const NodeId headed = join({marks.node(syntax.answer_head), answer});
  if (start == ThoughtStart::kClosed) return headed;
  const NodeId line_breaks = b.repeat(b.literal("\n"), 0, kMostLineBreaks);
  const NodeId after = join({marks.node(syntax.turn), line_breaks, headed});
  const NodeId thought = marks.text_until(syntax.end[0], after);
  const NodeId opened = join({b.repeat(b.literal("\n"), 0, 1), marks.node(syntax.begin[0]), thought});
  if (start == ThoughtStart::kMaybe) return either(headed, opened);
  return syntax.always ? either(thought, opened) : thought;
}

const grammar::SourceKind kind{
    .name = kKind, .help = "a thought, if there is one, before the text of another grammar", .build = build};
const Registry<grammar::SourceKind> registered{kind};

}  // namespace

const ReasoningSyntax* reasoning_syntax(std::string_view name) {
  for (const ReasoningSyntax* syntax : reasoning_syntaxes()) {
    if (syntax->name == name || std::ranges::find(syntax->aliases, name) != syntax->aliases.end()) return syntax;
  }
  return nullptr;
}

const ReasoningSyntax* find_reasoning_syntax(std::string_view template_source) {
  for (const ReasoningSyntax* syntax : reasoning_syntaxes()) {
    if (syntax->in_template != nullptr && syntax->in_template(template_source)) return syntax;
  }
  return nullptr;
}

bool has_mark(const ReasoningSyntax& syntax, std::string_view text) {
  const auto in = [text](const std::string& mark) { return mark.find(text) != std::string::npos; };
  for (const auto* marks : {&syntax.begin, &syntax.end, &syntax.cut, &syntax.answer_begin, &syntax.answer_end}) {
    if (std::ranges::any_of(*marks, in)) return true;
  }
  return in(syntax.turn) || in(syntax.answer_head);
}

ThoughtStart thought_start(const ReasoningSyntax& syntax, std::string_view prompt) {
  // The prompt's last line breaks may be a part of a mark or follow it.
  const auto ends_with = [](std::string_view text, std::string_view mark) {
    const auto trim = [](std::string_view s) { return s.substr(0, s.find_last_not_of(kSpace) + 1); };
    return trim(text).ends_with(trim(mark));
  };
  for (const std::string& mark : syntax.end) {
    if (ends_with(prompt, mark)) return ThoughtStart::kClosed;
  }
  for (const std::string& mark : syntax.begin) {
    if (ends_with(prompt, mark)) return ThoughtStart::kOpen;
  }
  return syntax.always ? ThoughtStart::kOpen : ThoughtStart::kMaybe;
}

ThoughtStart default_thought_start(const ReasoningSyntax& syntax) {
  return syntax.always || syntax.by_default ? ThoughtStart::kOpen : ThoughtStart::kMaybe;
}

std::string after_thought_grammar(std::string_view syntax, ThoughtStart start, std::string_view kind,
                                  std::string_view text) {
  return dump_json(Json{{"syntax", syntax}, {"start", static_cast<int>(start)}, {"kind", kind}, {"text", text}});
}

std::string thought_end(const ReasoningSyntax& syntax) { return syntax.end[0] + syntax.turn + syntax.answer_head; }

}  // namespace sluice
