// The parser of whole answers: thoughts, then text and calls of tools.
#pragma once

#include <memory>
#include <string_view>

#include "chat/output_parser.h"
#include "chat/reasoning_syntax.h"
#include "chat/tool_syntax.h"

namespace sluice {

struct AnswerSyntax {
  const ToolSyntax* tools = nullptr;           // null: there are no calls
  const ReasoningSyntax* reasoning = nullptr;  // null: there are no thoughts
  ThoughtStart thought = ThoughtStart::kMaybe;

  bool plain() const { return tools == nullptr && reasoning == nullptr; }
};

// The parser of one choice.
std::unique_ptr<OutputParser> make_answer_parser(const AnswerSyntax& syntax,
                                                 std::shared_ptr<const ToolFunctions> functions);

}  // namespace sluice
