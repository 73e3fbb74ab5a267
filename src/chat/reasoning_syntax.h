// How models mark what they think before they answer. One description of a syntax gives the parser, the grammar around
// an answer's grammar, and the text that ends a thought whose budget is used up.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/output_parser.h"
#include "grammar/source.h"

namespace sluice {

//   answer := [begin thought end] [answer_begin] text [answer_end]
//
// The first of a list is what grammars and budgets write; the parser takes each.
struct ReasoningSyntax {
  std::string_view name;                    // vLLM's name of the parser: "deepseek_r1"
  std::vector<std::string_view> aliases{};  // other names of the same
  std::vector<std::string> begin{}, end{};
  std::vector<std::string> cut{};                          // ends a thought, too, but is part of what follows
  std::vector<std::string> answer_begin{}, answer_end{};   // may be missing; not shown
  std::string answer_head{};                               // must come before an answer; empty: nothing must
  std::string turn{};                                      // must come between the end and answer_head
  bool reopens = false;                                    // further thoughts may follow
  bool always = false;                                     // unless the prompt has closed one, there is a thought
  bool by_default = false;                                 // the same where the prompt is not known
  bool keep = false;                                       // the thought and its marks are text
  std::string_view tools{};                                // the tool syntax whose parser also finds the thoughts
  bool (*in_template)(std::string_view source) = nullptr;  // whether a chat template shows it; null: never
};

// Those that the program knows, in the order in which templates are compared with them.
std::vector<const ReasoningSyntax*> reasoning_syntaxes();
// The syntax of that name or alias; null if there is none.
const ReasoningSyntax* reasoning_syntax(std::string_view name);
// The syntax of a template; null if it shows none.
const ReasoningSyntax* find_reasoning_syntax(std::string_view template_source);

// Whether the text is a part of a mark of the syntax.
bool has_mark(const ReasoningSyntax& syntax, std::string_view text);

// What a rendered prompt says about how the answer begins.
ThoughtStart thought_start(const ReasoningSyntax& syntax, std::string_view prompt);
// The same without a prompt.
ThoughtStart default_thought_start(const ReasoningSyntax& syntax);

// A parser that makes thoughts ReasoningDeltas and hands the rest to `inner`. Line breaks around a thought belong to
// neither. `syntax` must outlive it.
std::unique_ptr<OutputParser> make_reasoning_parser(const ReasoningSyntax& syntax, ThoughtStart start,
                                                    std::unique_ptr<OutputParser> inner);

// Which bytes of an answer are thought. A value.
class ThoughtTracker {
 public:
  ThoughtTracker(const ReasoningSyntax& syntax, ThoughtStart start)
      : syntax_(&syntax), state_(start == ThoughtStart::kOpen ? State::kInside : State::kBefore) {}
  void push(std::string_view bytes);
  bool inside() const { return state_ == State::kInside; }

 private:
  enum class State { kBefore, kInside, kAfter };
  void begin();
  bool leave();
  bool reenter();

  const ReasoningSyntax* syntax_;
  State state_;
  std::string held_;  // bytes that may belong to a mark
};

// The text of the grammar kind "after_thought" (grammar/source.h): a thought, if there is one, and then an answer in
// the language of another grammar.
std::string after_thought_grammar(std::string_view syntax, ThoughtStart start, std::string_view kind,
                                  std::string_view text);
// The text that ends a thought and begins the answer.
std::string thought_end(const ReasoningSyntax& syntax);

}  // namespace sluice
