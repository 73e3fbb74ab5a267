// The grammar of answers in Harmony.
#include <fmt/core.h>

#include "chat/tools/call_format.h"
#include "chat/tools/harmony.h"
#include "grammar/json_schema/emit.h"

namespace sluice {
namespace {

using namespace grammar;

// Marks that end a message for the parser.
constexpr const char* kEnds[] = {"<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"};

class HarmonyGrammar {
 public:
  HarmonyGrammar(Builder& builder, const CallGrammar& calls, const CompileContext& context)
      : b_(builder), calls_(calls), context_(context) {}

  // Thoughts may come at any place. Text ends an answer where no call is required.
  NodeId answer() {
    const NodeId message = b_.declare("message");
    const NodeId next = join({mark("<|start|>"), b_.literal("assistant"), message});
    std::vector<NodeId> choices = {join({mark("<|channel|>analysis<|message|>"), text({{"<|end|>", next}}, true)}),
                                   join({call(), after_call(next)})};
    if (!calls_.required) {
      const NodeId end[] = {b_.empty(), next};
      const NodeId preamble =
          calls_.functions.empty()
              ? b_.nothing()
              : join({mark("<|channel|>commentary<|message|>"), text({{"<|end|>", b_.choice(end)}}, true)});
      const NodeId final = join(
          {mark("<|channel|>final<|message|>"), text({{"<|return|>", b_.empty()}, {"<|end|>", b_.empty()}}, false)});
      choices.insert(choices.end(), {preamble, final});
    }
    b_.define(message, b_.choice(choices));
    return message;
  }

 private:
  NodeId join(std::initializer_list<NodeId> parts) { return b_.sequence({parts.begin(), parts.size()}); }
  NodeId mark(std::string_view text) { return build_mark(b_, text, context_); }

  // Text up to one of `ends`. The other marks are not in it.
  NodeId text(const std::vector<std::pair<std::string_view, NodeId>>& ends, bool must_end) {
    std::vector<Builder::End> all;
    for (const char* bytes : kEnds) {
      NodeId then = b_.nothing();
      bool ends_here = false;
      for (const auto& [end, node] : ends) {
        if (end == bytes) then = node, ends_here = true;
      }
      all.push_back({.bytes = bytes, .special = {}, .then = then});
      const std::optional<TokenId> token = context_.special ? context_.special(bytes) : std::nullopt;
      if (token && ends_here) all.push_back({.bytes = {}, .special = token, .then = then});
    }
    return b_.free_text(std::move(all), must_end);
  }

  NodeId call() {
    std::vector<NodeId> choices;
    const JsonStyle style{.string = [this](const Strings& s) { return string(s); }};
    for (const ToolFunction& function : calls_.functions) {
      if (function.name.empty() || function.name.find_first_of(" \t\r\n<") != std::string::npos) {
        throw GrammarError(fmt::format("the function's name '{}' cannot be written as a recipient", function.name));
      }
      const std::string to = " to=functions." + function.name, channel = "<|channel|>commentary";
      const NodeId headers[] = {mark(channel + to + " <|constrain|>json<|message|>"),
                                mark(to + channel + " json<|message|>"),
                                mark(to + channel + " <|constrain|>json<|message|>")};
      choices.push_back(join({b_.choice(headers), json_text(b_, arguments_schema(function), style, context_.budget)}));
    }
    return b_.choice(choices);
  }

  NodeId after_call(NodeId next) {
    const NodeId further[] = {b_.empty(), calls_.parallel ? next : b_.nothing()};
    const NodeId end[] = {b_.empty(), join({mark("<|call|>"), b_.choice(further)})};
    return b_.choice(end);
  }

  // Marks within strings would end the call for the parser; "\u003c" can be written instead.
  NodeId string(const Strings& strings) {
    static const Automaton marked = [] {
      Budget budget;
      return concatenate(concatenate(any_text(), Automaton::literal("<|"), budget), any_text(), budget);
    }();
    static const Automaton any = [] {
      Budget budget;
      return determinize(subtract(json_string(any_text(), budget), marked, budget), budget);
    }();
    Budget& budget = context_.budget;
    const bool bounded = strings.least > 0 || strings.most >= 0;
    if (!strings.texts && !bounded) return b_.regular(any);
    if (!strings.texts) {
      const Automaton character = json_string_body(text_of_length(1, 1, budget), budget);
      const NodeId one = b_.regular(subtract(character, Automaton::literal("<"), budget));
      return join({b_.literal("\""), b_.repeat(one, strings.least, strings.most), b_.literal("\"")});
    }
    Automaton texts = *strings.texts;
    if (bounded) texts = intersect(texts, text_of_length(strings.least, strings.most, budget), budget);
    return b_.regular(subtract(json_string(texts, budget), marked, budget));
  }

  Builder& b_;
  const CallGrammar& calls_;
  const CompileContext& context_;
};

}  // namespace

grammar::NodeId build_harmony(grammar::Builder& builder, const CallGrammar& calls,
                              const grammar::CompileContext& context) {
  return HarmonyGrammar(builder, calls, context).answer();
}

}  // namespace sluice
