#include "server/openai/grammar_fields.h"

#include <fmt/core.h>

#include <array>

#include "server/members.h"
#include "server/openai/shared_fields.h"

namespace sluice::server {

void set_grammar(Fields& f, GrammarSpec grammar) {
  auto& fields = f.of<GenerationFields>();
  if (fields.grammar) {
    throw ApiError{.message = fmt::format("Setting '{}' and '{}' at the same time is not supported: an answer has one "
                                          "grammar.",
                                          fields.grammar->param, grammar.param),
                   .param = grammar.param,
                   .code = "invalid_parameter_combination"};
  }
  fields.grammar = std::move(grammar);
}

namespace {

using Type = Parameter::Type;

// A schema: an object or a boolean, or for some servers the text of one.
void set_schema(Fields& f, const Json& value, const FieldPath& path) {
  if (value.is_string()) return set_grammar(f, schema_grammar(value.get<std::string>(), path));
  if (!value.is_object() && !value.is_boolean()) throw invalid_type(path.str(), "an object", value);
  set_grammar(f, schema_grammar(dump_json(value), path));
}

void set_choice(Fields& f, const Json& value, const FieldPath& path) {
  expect_array(value, path, 1, 100'000);
  for (size_t i = 0; i < value.size(); ++i) expect_string(value[i], path[i]);
  set_grammar(f, {"choice", dump_json(value), path.str()});
}

// A structural tag: an object, or for some servers the text of one.
void set_structural_tag(Fields& f, const Json& value, const FieldPath& path) {
  if (!value.is_string() && !value.is_object()) throw invalid_type(path.str(), "one of a string or object", value);
  set_grammar(f, {"structural_tag", value.is_string() ? value.get<std::string>() : dump_json(value), path.str()});
}

void set_text(Fields& f, const char* kind, const Json& value, const FieldPath& path) {
  set_grammar(f, {kind, expect_string(value, path), path.str()});
}

// llama.cpp's syntax uses "::=" between a rule and its body, Lark's a colon.
void set_grammar_text(Fields& f, const Json& value, const FieldPath& path) {
  const std::string& text = expect_string(value, path);
  if (!text.empty()) set_grammar(f, {text.find("::=") != std::string::npos ? "gbnf" : "lark", text, path.str()});
}

// {"json": ...}, {"regex": ...}, ...: exactly one of them.
void set_structured_outputs(Fields& f, const Json& value) {
  const FieldPath path = "structured_outputs";
  const auto compact = value.find("disable_any_whitespace");
  for (const auto& [key, member] : value.items()) {
    const FieldPath inner = path / key;
    if (member.is_null()) continue;
    if (key == "json") {
      set_schema(f, member, inner);
      if (compact != value.end() && expect_boolean(*compact, path / "disable_any_whitespace")) {
        f.of<GenerationFields>().grammar->kind = "json_schema_compact";
      }
    } else if (key == "regex") {
      set_text(f, "regex", member, inner);
    } else if (key == "choice") {
      set_choice(f, member, inner);
    } else if (key == "grammar") {
      set_grammar_text(f, member, inner);
    } else if (key == "json_object") {
      if (expect_boolean(member, inner)) set_grammar(f, {"json_object", "", inner.str()});
    } else if (key == "structural_tag") {
      set_structural_tag(f, member, inner);
    } else if (key == "disable_any_whitespace" || key == "disable_fallback") {
      expect_boolean(member, inner);  // see above; there is never another grammar
    } else if (key == "disable_additional_properties") {
      if (expect_boolean(member, inner)) throw unsupported_parameter(inner.str(), "is not supported");
    } else if (key == "whitespace_pattern") {
      throw unsupported_parameter(inner.str(), "is not supported: use 'disable_any_whitespace'");
    } else if (key == "backend" || key == "_backend") {
      throw unsupported_parameter(inner.str(), "is not supported: there is one for all grammars");
    } else {
      throw unsupported_parameter(inner.str(), "is not known");
    }
  }
  if (!f.of<GenerationFields>().grammar) {
    throw invalid_value("structured_outputs",
                        "Invalid 'structured_outputs': expected one of json, regex, choice, grammar, json_object, "
                        "structural_tag.");
  }
}

constexpr auto kGrammar = std::to_array<Parameter>({
    {.name = "structured_outputs",
     .type = Type::kObject,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "constrains the answer: one of json, regex, choice, grammar, json_object, structural_tag",
     .set = set_structured_outputs},
    {.name = "guided_json",
     .type = Type::kAny,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a JSON schema for the answer",
     .set = [](Fields& f, const Json& v) { set_schema(f, v, "guided_json"); }},
    {.name = "guided_regex",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a regular expression for the whole answer",
     .set = [](Fields& f, const Json& v) { set_text(f, "regex", v, "guided_regex"); }},
    {.name = "guided_choice",
     .type = Type::kArray,
     .max_items = 100'000,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "the answer is one of these texts",
     .set = [](Fields& f, const Json& v) { set_choice(f, v, "guided_choice"); }},
    {.name = "guided_grammar",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a grammar in the syntax of GBNF or Lark",
     .set = [](Fields& f, const Json& v) { set_grammar_text(f, v, "guided_grammar"); }},
    {.name = "grammar",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a grammar in the syntax of GBNF or Lark",
     .set = [](Fields& f, const Json& v) { set_grammar_text(f, v, "grammar"); }},
    {.name = "regex",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a regular expression for the whole answer",
     .set = [](Fields& f, const Json& v) { set_text(f, "regex", v, "regex"); }},
    {.name = "ebnf",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a grammar in the syntax of GBNF",
     .set = [](Fields& f, const Json& v) { set_text(f, "gbnf", v, "ebnf"); }},
    {.name = "structural_tag",
     .type = Type::kAny,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "free text in which certain strings begin a part with a grammar",
     .set = [](Fields& f, const Json& v) { set_structural_tag(f, v, "structural_tag"); }},
    {.name = "json_schema",
     .type = Type::kAny,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "a JSON schema for the answer",
     .set = [](Fields& f, const Json& v) { set_schema(f, v, "json_schema"); }},
});

}  // namespace

std::span<const Parameter> grammar_parameters() { return kGrammar; }

void set_response_format(Fields& f, const Json& v) {
  const FieldPath path = "response_format";
  const auto type = v.find("type");
  if (type == v.end()) throw missing_parameter("response_format.type");
  const std::string& name = expect_string(*type, path / "type");
  if (name == "text") return;
  if (name == "json_object") {
    // Some servers take a schema here.
    const auto schema = v.find("schema");
    if (schema != v.end() && !schema->is_null()) return set_schema(f, *schema, path / "schema");
    return set_grammar(f, {"json_object", "", path.str()});
  }
  if (name == "structural_tag") return set_grammar(f, {"structural_tag", dump_json(v), path.str()});
  // TGI has the schema or the expression in `value`.
  if (name == "json") return set_schema(f, required_member(v, "value", path), path / "value");
  if (name == "regex") return set_text(f, "regex", required_member(v, "value", path), path / "value");
  if (name != "json_schema") {
    throw invalid_value("response_format.type",
                        fmt::format("Invalid value: '{}'. Supported values are: 'text', 'json_object', 'json_schema', "
                                    "'structural_tag', 'json', 'regex'.",
                                    quotable(name)));
  }
  const char* const key = v.contains("value") && !v.contains("json_schema") ? "value" : "json_schema";
  const FieldPath wrapper = path / key;
  const auto format = v.find(key);
  if (format == v.end()) throw missing_parameter(wrapper.str());
  expect_object(*format, wrapper);
  const auto strict = format->find("strict");
  if (strict != format->end() && !strict->is_null()) expect_boolean(*strict, wrapper / "strict");
  const auto schema = format->find("schema");
  if (schema == format->end()) throw missing_parameter((wrapper / "schema").str());
  set_schema(f, *schema, wrapper / "schema");
}

}  // namespace sluice::server
