// The grammar of calls with parameters in tags.
#pragma once

#include "chat/tools/call_format.h"

namespace sluice {

grammar::NodeId build_tagged_call(grammar::Builder& builder, const TaggedCallMarks& marks, const ToolFunction& function,
                                  const grammar::CompileContext& context);

}  // namespace sluice
