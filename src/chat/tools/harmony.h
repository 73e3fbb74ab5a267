// Harmony, the format of gpt-oss: messages with channels, <|channel|>final<|message|>text<|return|>.
#pragma once

#include <memory>

#include "chat/tool_syntax.h"

namespace sluice {

// Parses answers behind "<|start|>assistant". Thoughts become ReasoningDeltas. `functions` may be null.
std::unique_ptr<OutputParser> make_harmony_parser(std::shared_ptr<const ToolFunctions> functions);

grammar::NodeId build_harmony(grammar::Builder& builder, const CallGrammar& calls,
                              const grammar::CompileContext& context);

}  // namespace sluice
