// sluice parse: what the parsers of the server find in an answer.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "chat/answer_parser.h"
#include "cli/command.h"
#include "cli/json_lines.h"
#include "sluice/error.h"

namespace sluice::cli::parse_command {
namespace {

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorCode::kInvalidRequest, message); }

// A member that is a string; null if it is missing or null.
const std::string* text_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || found->is_null()) return nullptr;
  if (!found->is_string()) fail("'" + std::string(key) + "': expected a string or null");
  return &found->get_ref<const std::string&>();
}

AnswerSyntax syntax_of(const Json& line, const std::string& text) {
  AnswerSyntax syntax;
  if (const std::string* name = text_of(line, "parser")) {
    syntax.tools = tool_syntax(*name);
    if (syntax.tools == nullptr)
      fail("'parser': '" + *name + "' is not known (expected one of: " + tool_syntax_names() + ")");
  }
  const std::string* name = text_of(line, "reasoning_parser");
  if (name == nullptr) return syntax;
  syntax.reasoning = reasoning_syntax(*name);
  if (syntax.reasoning == nullptr) {
    fail("'reasoning_parser': '" + *name + "' is not known (expected one of: " + reasoning_syntax_names() + ")");
  }
  if (const std::string why = conflict(syntax); !why.empty()) fail("'parser': " + why);
  if (const std::string* prompt = text_of(line, "prompt")) {
    syntax.thought = thought_start(*syntax.reasoning, *prompt);
  } else {
    syntax.thought = default_thought_start(*syntax.reasoning);
    // A text that ends a thought without having begun it shows that its prompt did.
    const size_t end = text.find(syntax.reasoning->end[0]), begin = text.find(syntax.reasoning->begin[0]);
    if (end < begin && syntax.reasoning->begin[0].starts_with("<")) syntax.thought = ThoughtStart::kOpen;
  }
  return syntax;
}

// The text in one piece, or character by character.
std::vector<std::string> pieces_of(const std::string& text, bool split) {
  if (!split) return {text};
  std::vector<std::string> pieces;
  for (const char byte : text) {
    const bool continues = (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
    if (!continues || pieces.empty()) pieces.emplace_back();
    pieces.back() += byte;
  }
  return pieces;
}

struct Answer {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments

  void operator()(const TextDelta& d) { content += d.text; }
  void operator()(const ReasoningDelta& d) { reasoning += d.text; }
  void operator()(const ToolCallBegin& d) { calls.emplace_back(d.name, ""); }
  void operator()(const ToolCallArguments& d) { calls.at(static_cast<size_t>(d.index)).second += d.json; }

  Json json() const {
    Json list = Json::array();
    for (const auto& [name, arguments] : calls) list.push_back({{"name", name}, {"arguments", value_of(arguments)}});
    const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
    return {{"content", or_null(content)}, {"reasoning_content", or_null(reasoning)}, {"tool_calls", list}};
  }
  // Other values are passed on as text.
  static Json value_of(const std::string& arguments) {
    try {
      Json value = parse_json(arguments);
      if (value.is_object()) return value;
    } catch (const Error&) {
    }
    return arguments;
  }
};

Json answer(const Json& line) {
  if (!line.is_object()) fail("expected an object");
  for (const auto& [key, value] : line.items()) {
    static constexpr std::string_view kFields[] = {"parser", "reasoning_parser", "tools", "text", "split", "prompt"};
    if (std::find(std::begin(kFields), std::end(kFields), key) == std::end(kFields))
      fail("unknown field '" + key + "'");
  }
  const std::string* text = text_of(line, "text");
  if (text == nullptr) fail("'text' is missing");
  const Json split = line.value("split", Json(false)), tools = line.value("tools", Json());
  if (!split.is_boolean()) fail("'split': expected true or false");
  std::shared_ptr<const ToolFunctions> functions;
  if (!tools.is_null()) functions = std::make_shared<ToolFunctions>(tool_functions(tools));

  const auto parser = make_answer_parser(syntax_of(line, *text), std::move(functions));
  std::vector<Delta> deltas;
  for (std::string& piece : pieces_of(*text, split.get<bool>())) parser->push(std::move(piece), deltas);
  parser->finish(deltas);
  Answer out;
  for (const Delta& delta : deltas) std::visit(out, delta);
  return out.json();
}

Json answer_or_error(const Json& line) {
  try {
    return answer(line);
  } catch (const Error& e) {
    return {{"error", e.what()}};
  }
}

std::function<int()> declare(CLI::App& app) {
  auto jsonl = std::make_shared<bool>(false);
  app.add_flag("--jsonl", *jsonl,
               "lines {\"parser\", \"reasoning_parser\", \"tools\", \"text\", \"split\", \"prompt\"} in, lines "
               "{\"content\", \"reasoning_content\", \"tool_calls\"} or {\"error\"} out");
  return [jsonl] {
    if (!*jsonl) fail("give --jsonl and write answers to standard input");
    return filter_json_lines(answer_or_error);  // an answer that cannot be read has an answer, too
  };
}

const Command command{"parse", "find thoughts and calls of tools in answers", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::parse_command
