#include "chat/tool_syntax.h"

namespace sluice {

const ToolSyntax* find_tool_syntax(std::string_view template_source) {
  for (const ToolSyntax* syntax : Registry<ToolSyntax>::all()) {
    if (syntax->in_template(template_source)) return syntax;
  }
  return nullptr;
}

}  // namespace sluice
