// Puts the parsers of thoughts and calls together.
#include "chat/answer_parser.h"

namespace sluice {

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
