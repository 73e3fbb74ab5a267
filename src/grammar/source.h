// Grammars as users write them: a text of some kind, such as a JSON schema or a regular expression.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/registry.h"
#include "grammar/builder.h"

namespace sluice::grammar {

struct CompileContext {
  Budget& budget;
  // The id of a special token by its text; may be null: there are none.
  std::function<std::optional<TokenId>(std::string_view)> special{};
};

// A form of grammars. Each one registers itself in the file of its front end.
struct SourceKind {
  std::string_view name;  // "json_schema"
  std::string_view help;  // what the text is
  // Throws GrammarError.
  NodeId (*build)(Builder& builder, std::string_view text, const CompileContext& context);
};

// The nodes of a grammar within another one. Throws GrammarError, as below.
NodeId build_source(Builder& builder, std::string_view kind, std::string_view text, const CompileContext& context);

// Throws GrammarError that says what is wrong with the text, or that the kind is not known.
std::shared_ptr<const Grammar> compile(std::string_view kind, std::string_view text, const CompileContext& context);

}  // namespace sluice::grammar
