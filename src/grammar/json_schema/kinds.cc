// The kinds of grammars whose texts are JSON.
#include "grammar/json_schema/close.h"
#include "grammar/json_schema/emit.h"
#include "grammar/source.h"
#include "sluice/error.h"

namespace sluice::grammar::json_schema {
namespace {

constexpr int kDeepestValue = 200;  // values within each other

Json schema_of(std::string_view text) {
  try {
    return parse_json(text, {.depth = kDeepestValue});
  } catch (const Error& e) {
    throw GrammarError(std::string("schema: ") + e.what());
  }
}

NodeId nodes(Builder& builder, const Json& schema, const JsonStyle& style, Budget& budget) {
  try {
    return json_text(builder, schema, style, budget);
  } catch (const GrammarError& e) {
    const std::string what = e.what();
    if (what.starts_with("schema")) throw;
    throw GrammarError("schema: " + what);
  }
}

NodeId flexible(Builder& builder, std::string_view text, const CompileContext& context) {
  return nodes(builder, schema_of(text), {}, context.budget);
}
NodeId strict(Builder& builder, std::string_view text, const CompileContext& context) {
  return nodes(builder, close_objects(schema_of(text)), {}, context.budget);
}
NodeId compact(Builder& builder, std::string_view text, const CompileContext& context) {
  return nodes(builder, close_objects(schema_of(text)), {.compact = true}, context.budget);
}
NodeId any_object(Builder& builder, std::string_view, const CompileContext& context) {
  return json_text(builder, Json{{"type", "object"}}, {}, context.budget);
}

const SourceKind kSchema{.name = "json_schema", .help = "a JSON schema for the text", .build = flexible};
const SourceKind kStrict{
    .name = "json_schema_strict", .help = "a JSON schema; objects have the declared properties only", .build = strict};
const SourceKind kCompact{
    .name = "json_schema_compact", .help = "the same as json_schema_strict, without whitespace", .build = compact};
const SourceKind kObject{.name = "json_object", .help = "any JSON object; there is no text", .build = any_object};
const Registry<SourceKind> registered_schema{kSchema}, registered_strict{kStrict}, registered_compact{kCompact},
    registered_object{kObject};

}  // namespace
}  // namespace sluice::grammar::json_schema
