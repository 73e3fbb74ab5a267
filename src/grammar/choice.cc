// One text of a list: a JSON array of strings.
#include <fmt/core.h>

#include <set>

#include "base/json.h"
#include "grammar/source.h"

namespace sluice::grammar::choices {
namespace {

NodeId build(Builder& builder, std::string_view text, const CompileContext& context) {
  Json list;
  try {
    list = parse_json(text);
  } catch (const std::exception&) {
    throw GrammarError("expected a JSON array of strings");
  }
  if (!list.is_array() || list.empty()) throw GrammarError("expected a JSON array of at least one string");
  std::vector<Automaton> texts;
  std::set<std::string> seen;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) throw GrammarError(fmt::format("[{}]: expected a string", i));
    const std::string& choice = list[i].get_ref<const std::string&>();
    context.budget.step(static_cast<int64_t>(choice.size()));
    if (seen.insert(choice).second) texts.push_back(Automaton::literal(choice));
  }
  return builder.regular(unite(texts, context.budget));
}

const SourceKind kind{.name = "choice", .help = "a JSON array of strings, one of which is the text", .build = build};
const Registry<SourceKind> registered{kind};

}  // namespace
}  // namespace sluice::grammar::choices
