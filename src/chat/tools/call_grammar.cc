// The grammar of answers in a CallFormat.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "chat/tools/call_format.h"
#include "chat/tools/text_marks.h"

namespace sluice {
namespace {

using grammar::Builder;
using grammar::CompileContext;
using grammar::NodeId;

// A special token of a mark, or ordinary text.
struct Piece {
  std::string_view bytes;
  std::optional<TokenId> token;
};

// Takes the longest special tokens, from the left.
std::vector<Piece> pieces_of(std::string_view mark, const CompileContext& context) {
  std::vector<Piece> pieces;
  size_t begin = 0, at = 0;
  const auto add = [&](size_t size, std::optional<TokenId> token) {
    if (size > 0) pieces.push_back({mark.substr(begin, size), token});
    begin += size;
  };
  while (context.special && at < mark.size()) {
    size_t size = mark.size() - at;
    std::optional<TokenId> token;
    for (; size > 0 && !token; --size) token = context.special(mark.substr(at, size));
    if (!token) {
      ++at;
      continue;
    }
    add(at - begin, {});
    add(size + 1, token);
    at = begin;
  }
  add(mark.size() - begin, {});
  return pieces;
}

NodeId node_of(Builder& b, const Piece& piece) {
  return piece.token ? b.special(*piece.token) : b.literal(piece.bytes);
}

class Calls {
 public:
  Calls(Builder& builder, const CallFormat& format, const CallGrammar& calls, const CompileContext& context)
      : b_(builder), format_(format), parallel_(calls.parallel), context_(context) {
    std::vector<NodeId> bodies;
    for (const ToolFunction& function : calls.functions) bodies.push_back(format.body->build(b_, function, context));
    body_end_ = join({b_.choice(bodies), mark(format.call_end)});
  }

  NodeId required() {
    return has_section() ? join({format_.bare.empty() ? mark(format_.section_begin) : b_.empty(), section()})
                         : calls(mark_of_call());
  }

  NodeId optional() {
    const NodeId answer = b_.declare("answer");
    const bool more = parallel_ && format_.text_after;
    const NodeId then = join({has_section() ? section()
                              : more        ? body_end_
                                            : further_calls(),
                              more ? answer : b_.empty()});
    const std::vector<std::string>& marks = has_section() ? format_.section_begin : format_.call_begin;
    std::vector<Builder::End> all = ends(marks, then);
    for (Builder::End& end : ends(format_.ignored, answer)) add(std::move(end), all);
    for (Builder::End& end : ends(format_.unmarked, b_.nothing())) add(std::move(end), all);
    b_.define(answer, b_.free_text(std::move(all), false));
    return format_.bare.empty() ? answer : bare(marks, then, answer);
  }

 private:
  // A section whose mark is optional counts as well.
  bool has_section() const { return !format_.section_begin.empty() || !format_.bare.empty(); }

  NodeId join(std::initializer_list<NodeId> parts) { return b_.sequence({parts.begin(), parts.size()}); }
  NodeId mark(const std::vector<std::string>& marks) {
    return marks.empty() ? b_.empty() : build_mark(b_, marks.front(), context_);
  }
  NodeId mark_of_call() { return mark(format_.call_begin); }

  NodeId calls(NodeId begin) {
    const NodeId separator = build_mark(b_, format_.separator, context_);
    return b_.separated(join({begin, body_end_}), separator, 1, parallel_ ? -1 : 1);
  }

  // A call behind its mark, and those that follow it.
  NodeId further_calls() {
    const NodeId call = join({build_mark(b_, format_.separator, context_), mark_of_call(), body_end_});
    return join({body_end_, b_.repeat(call, 0, parallel_ ? -1 : 0)});
  }

  // What comes behind section_begin.
  NodeId section() {
    const NodeId all = calls(mark_of_call());
    const NodeId inner = format_.list ? join({b_.literal(format_.list_begin), all, b_.literal(format_.list_end)}) : all;
    return join({inner, mark(format_.section_end)});
  }

  // Where text ends: at each mark that the parser takes.
  std::vector<Builder::End> ends(const std::vector<std::string>& marks, NodeId then) {
    std::vector<Builder::End> ends;
    for (const std::string& mark : marks) {
      const std::string trimmed = TextMarks::trimmed(mark);
      const NodeId rest = join({b_.literal(mark.substr(mark.find(trimmed) + trimmed.size())), then});
      add({.bytes = trimmed, .special = {}, .then = rest}, ends);
      const std::vector<Piece> pieces = pieces_of(trimmed, context_);
      if (!pieces.front().token) continue;
      std::vector<NodeId> parts;
      for (size_t i = 1; i < pieces.size(); ++i) parts.push_back(node_of(b_, pieces[i]));
      parts.push_back(rest);
      add({.bytes = {}, .special = pieces.front().token, .then = b_.sequence(parts)}, ends);
    }
    return ends;
  }

  // Marks may begin with the same token.
  void add(Builder::End end, std::vector<Builder::End>& ends) {
    for (Builder::End& other : ends) {
      if (other.bytes != end.bytes || other.special != end.special) continue;
      const NodeId either[] = {other.then, end.then};
      other.then = b_.choice(either);
      return;
    }
    ends.push_back(std::move(end));
  }

  // An answer that is calls at once, or a text whose first visible character begins no call. `answer`: any text.
  NodeId bare(const std::vector<std::string>& marks, NodeId then, NodeId answer) {
    grammar::Budget& budget = context_.budget;
    const auto contains = [&](const std::string& mark) {
      const grammar::Automaton parts[] = {grammar::any_text(), grammar::Automaton::literal(TextMarks::trimmed(mark)),
                                          grammar::any_text()};
      return grammar::concatenate(grammar::concatenate(parts[0], parts[1], budget), parts[2], budget);
    };
    std::string pattern = "[ \\t\\r\\n]*[";
    for (const char c : format_.bare) pattern += std::string("\\") + c;
    const grammar::Automaton begins_call = grammar::concatenate(
        grammar::parse_regex(pattern + "]", grammar::RegexSyntax::kEcma, true, budget), grammar::any_text(), budget);
    grammar::Automaton text = grammar::subtract(grammar::any_text(), begins_call, budget);
    for (const std::string& mark : marks) text = grammar::subtract(text, contains(mark), budget);

    std::vector<NodeId> answers = {b_.regular(text),
                                   join({section(), parallel_ && format_.text_after ? answer : b_.empty()})};
    for (const Builder::End& end : ends(marks, then)) {
      const NodeId begin = end.special ? b_.special(*end.special) : b_.literal(end.bytes);
      answers.push_back(join({b_.regular(text), begin, end.then}));
    }
    return b_.choice(answers);
  }

  Builder& b_;
  const CallFormat& format_;
  const bool parallel_;
  const CompileContext& context_;
  NodeId body_end_;  // a body with its end
};

}  // namespace

Json arguments_schema(const ToolFunction& function) {
  Json schema = function.parameters.is_null() ? Json::object() : function.parameters;
  const auto type = schema.find("type");
  const bool object = type == schema.end() || *type == "object" ||
                      (type->is_array() && std::ranges::find(*type, Json("object")) != type->end());
  if (!object) {
    throw grammar::GrammarError("the parameters of function '" + function.name + "' must be of type object");
  }
  schema["type"] = "object";
  return schema;
}

NodeId build_mark(Builder& builder, std::string_view mark, const CompileContext& context) {
  const std::vector<Piece> pieces = pieces_of(mark, context);
  std::vector<NodeId> nodes;
  nodes.reserve(pieces.size());
  for (const Piece& piece : pieces) nodes.push_back(node_of(builder, piece));
  const bool special = std::ranges::any_of(pieces, [](const Piece& piece) { return piece.token.has_value(); });
  const NodeId alternatives[] = {builder.literal(mark), special ? builder.sequence(nodes) : builder.nothing()};
  return builder.choice(alternatives);
}

NodeId build_calls(Builder& builder, const CallFormat& format, const CallGrammar& calls,
                   const CompileContext& context) {
  Calls parts(builder, format, calls, context);
  return calls.required ? parts.required() : parts.optional();
}

}  // namespace sluice
