#include "grammar/source.h"

#include <fmt/core.h>

namespace sluice::grammar {

NodeId build_source(Builder& builder, std::string_view kind, std::string_view text, const CompileContext& context) {
  const SourceKind* found = Registry<SourceKind>::find(kind);
  if (found == nullptr) {
    std::string known;
    for (const SourceKind* k : Registry<SourceKind>::all()) {
      known += (known.empty() ? "" : ", ") + std::string(k->name);
    }
    throw GrammarError(fmt::format("unknown kind of grammar '{}' (expected one of: {})", kind, known));
  }
  return found->build(builder, text, context);
}

std::shared_ptr<const Grammar> compile(std::string_view kind, std::string_view text, const CompileContext& context) {
  Builder builder(context.budget);
  return builder.finish(build_source(builder, kind, text, context));
}

}  // namespace sluice::grammar
