// Puts the parsers of thoughts and calls together.
#include "chat/answer_parser.h"

#include <fmt/core.h>

namespace sluice {
namespace {

template <class Syntaxes>
std::string names_of(const Syntaxes& syntaxes) {
  std::string names;
  for (const auto* syntax : syntaxes) names += (names.empty() ? "" : ", ") + std::string(syntax->name);
  return names;
}

}  // namespace

std::string tool_syntax_names() { return names_of(Registry<ToolSyntax>::all()); }
std::string reasoning_syntax_names() { return names_of(reasoning_syntaxes()); }

std::string conflict(const AnswerSyntax& syntax) {
  if (syntax.reasoning == nullptr || syntax.reasoning->tools.empty() || syntax.tools == nullptr) return {};
  if (tool_syntax(syntax.reasoning->tools) == syntax.tools) return {};
  return fmt::format("thoughts in the syntax {} need calls in the syntax {}, not {}", syntax.reasoning->name,
                     syntax.reasoning->tools, syntax.tools->name);
}

std::unique_ptr<OutputParser> make_answer_parser(const AnswerSyntax& syntax,
                                                 std::shared_ptr<const ToolFunctions> functions) {
  if (functions == nullptr) functions = std::make_shared<const ToolFunctions>();
  const ReasoningSyntax* reasoning = syntax.reasoning;
  const bool both = reasoning != nullptr && !reasoning->tools.empty();
  const ToolSyntax* tools = both ? tool_syntax(reasoning->tools) : syntax.tools;
  auto inner = tools != nullptr ? tools->parser(std::move(functions)) : make_text_parser();
  if (both || reasoning == nullptr) return inner;
  return make_reasoning_parser(*reasoning, syntax.thought, std::move(inner));
}

}  // namespace sluice
