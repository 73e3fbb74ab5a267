// sluice grammar: which texts are in a grammar, by the recognizer that makes masks.
#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/command.h"
#include "cli/json_lines.h"
#include "grammar/source.h"
#include "sluice/error.h"

namespace sluice::cli::grammar_command {
namespace {

// The field of a line that holds the grammar, and the grammar's kind.
const std::map<std::string, std::string, std::less<>> kFields = {{"json_schema", "json_schema"},
                                                                 {"json_schema_compact", "json_schema_compact"},
                                                                 {"json_schema_strict", "json_schema_strict"},
                                                                 {"json_object", "json_object"},
                                                                 {"regex", "regex"},
                                                                 {"choice", "choice"},
                                                                 {"grammar", "grammar"},
                                                                 {"gbnf", "gbnf"},
                                                                 {"lark", "lark"},
                                                                 {"structural_tag", "structural_tag"}};

// JSON kinds take any JSON value as it is; others take text.
std::string text_of(const std::string& kind, const Json& value) {
  const bool json = kind.starts_with("json_") || kind == "choice" || kind == "structural_tag";
  if (json) return dump_json(value);
  if (!value.is_string()) throw grammar::GrammarError("expected a string");
  return value.get<std::string>();
}

Json answer(const Json& line) {
  if (!line.is_object()) throw grammar::GrammarError("expected an object");
  std::string kind, text;
  for (const auto& [key, value] : line.items()) {
    const auto field = kFields.find(key);
    if (field == kFields.end()) {
      if (key != "instances") throw grammar::GrammarError("unknown field '" + key + "'");
      continue;
    }
    if (!kind.empty()) throw grammar::GrammarError("more than one grammar");
    kind = field->second;
    text = text_of(kind, value);
    // As over HTTP: every rule of GBNF has "::=".
    if (kind == "grammar") kind = text.find("::=") != std::string::npos ? "gbnf" : "lark";
  }
  if (kind.empty()) throw grammar::GrammarError("no grammar: expected one of json_schema, regex, grammar, choice, ...");
  const auto instances = line.find("instances");
  if (instances == line.end() || !instances->is_array()) throw grammar::GrammarError("'instances': expected an array");

  grammar::Budget budget;
  const auto compiled = grammar::compile(kind, text, {.budget = budget});
  static const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(std::vector<std::string>(), grammar::Vocabulary::Options{});
  Json accepted = Json::array();
  for (const Json& instance : *instances) {
    if (!instance.is_string()) throw grammar::GrammarError("'instances': expected strings");
    grammar::Matcher matcher(compiled, vocabulary);
    accepted.push_back(matcher.accept(instance.get_ref<const std::string&>()) && matcher.complete());
  }
  return {{"accepted", accepted}};
}

Json answer_or_error(const Json& line) {
  try {
    return answer(line);
  } catch (const grammar::GrammarError& e) {
    return {{"error", e.what()}};
  }
}

std::function<int()> declare(CLI::App& app) {
  auto jsonl = std::make_shared<bool>(false);
  app.add_flag(
      "--jsonl", *jsonl,
      "lines {\"json_schema\"|\"regex\"|\"grammar\"|\"choice\": ..., \"instances\": [\"text\", ...]} in, lines "
      "{\"accepted\": [true, ...]} or {\"error\": ...} out");
  return [jsonl] {
    if (!*jsonl) throw Error(ErrorCode::kInvalidRequest, "give --jsonl and write grammars to standard input");
    filter_json_lines(answer_or_error);
    return 0;  // a grammar that is refused has an answer, too
  };
}

const Command command{"grammar", "tell which texts are in a grammar", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::grammar_command
