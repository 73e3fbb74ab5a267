// Fuzzes the parsers of tool calls and thoughts with arbitrary answers: the deltas do not depend on how the text was
// cut into pieces, calls begin once and in order. The first two bytes choose the syntaxes, the third one the cuts.
// Bytes from 0x80 on are replaced by parts of calls and thoughts.
#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "chat/answer_parser.h"

namespace {

using namespace sluice;

// Parts of calls, each with a bar behind it.
constexpr std::string_view kParts =
    R"(<tool_call>¦</tool_call>¦<function=¦</function>¦<parameter=¦</parameter>¦get_weather¦city¦days¦exact¦
<arg_key>¦</arg_key>¦<arg_value>¦</arg_value>¦<tool_calls>¦</tool_calls>¦<tool_sep>¦<minimax:tool_call>¦
</minimax:tool_call>¦<dots_function_call>¦</dots_function_call>¦<invoke name="¦</invoke>¦
<parameter name="¦">¦<｜DSML｜¦</｜DSML｜¦function_calls>¦tool_calls>¦ calls>¦invoke name="¦
parameter name="¦" string="true">¦" string="false">¦invoke>¦parameter>¦<seed:tool_call>¦
</seed:tool_call>¦<｜tool▁calls▁begin｜>¦<｜tool▁calls▁end｜>¦<｜tool▁call▁begin｜>¦
<｜tool▁call▁end｜>¦<｜tool▁sep｜>¦<｜tool_calls_begin｜>¦<｜tool_call_begin｜>¦
function<｜tool_sep｜>¦<steptml:invoke name="¦</steptml:invoke>¦<steptml:parameter name="¦
</steptml:parameter>¦[TOOL_CALLS]¦[ARGS]¦[CALL_ID]¦<|tool_calls_section_begin|>¦
<|tool_calls_section_end|>¦<|tool_call_begin|>¦<|tool_call_end|>¦<|tool_call_argument_begin|>¦functions.¦
:0¦<|tool_call_start|>¦<|tool_call_end|>¦<|python_start|>¦<|python_end|>¦<|tool_call|>¦<|/tool_call|>¦
<function_call>¦<function_calls>¦</function_calls>¦<|action_start|>¦<|plugin|>¦<|action_end|>¦
<|START_ACTION|>¦<|END_ACTION|>¦<|tools_prefix|>¦<|tools_suffix|>¦<TOOLCALL>¦</TOOLCALL>¦functools¦
<start_function_call>¦<end_function_call>¦call:¦<escape>¦<longcat_tool_call>¦</longcat_tool_call>¦
<|channel|>¦commentary¦<|message|>¦<|call|>¦<|constrain|>¦ to=¦<|start|>¦assistant¦<|plamo:begin_¦
<|plamo:end_¦tool_requests:plamo|>¦tool_request:plamo|>¦tool_name:plamo|>¦tool_arguments:plamo|>¦
{"name": "¦", "arguments": ¦"parameters"¦{"city": "¦"}¦}}¦True¦'¦(¦)¦=¦, ¦\u00¦12¦-¦[{¦}]¦)";

std::vector<std::string> parts_of(const ReasoningSyntax* reasoning) {
  std::vector<std::string> parts = {"\n", "```json\n", "\n```"};
  if (reasoning != nullptr) {
    for (const auto* marks :
         {&reasoning->begin, &reasoning->end, &reasoning->cut, &reasoning->answer_begin, &reasoning->answer_end}) {
      parts.insert(parts.end(), marks->begin(), marks->end());
    }
  }
  constexpr std::string_view kBar = "¦";
  for (std::string_view rest = kParts; !rest.empty();) {
    if (rest.starts_with('\n')) rest.remove_prefix(1);
    const size_t end = rest.find(kBar);
    parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end + kBar.size());
  }
  return parts;
}

std::string with_parts(std::string_view bytes, const std::vector<std::string>& parts) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    text += byte < 0x80 ? std::string(1, c) : parts[(byte - 0x80u) % parts.size()];
  }
  return text;
}

struct Parsed {
  std::string text, reasoning;
  std::vector<std::string> names, arguments;  // by call
  bool operator==(const Parsed&) const = default;
};

Parsed parse(const AnswerSyntax& syntax, const std::shared_ptr<const ToolFunctions>& functions, std::string_view text,
             uint32_t seed) {
  const auto parser = make_answer_parser(syntax, functions);
  std::vector<Delta> deltas;
  const bool whole = seed == 0;
  while (!text.empty()) {
    seed = seed * 1664525 + 1013904223;
    size_t piece = whole ? text.size() : std::min<size_t>(text.size(), 1 + (seed >> 16) % 7);
    // The engine gives whole characters.
    while (piece < text.size() && (static_cast<uint8_t>(text[piece]) & 0xC0) == 0x80) ++piece;
    parser->push(std::string(text.substr(0, piece)), deltas);
    text.remove_prefix(piece);
  }
  parser->finish(deltas);
  Parsed out;
  for (const Delta& delta : deltas) {
    if (const auto* d = std::get_if<TextDelta>(&delta)) out.text += d->text;
    if (const auto* d = std::get_if<ReasoningDelta>(&delta)) out.reasoning += d->text;
    if (const auto* d = std::get_if<ToolCallBegin>(&delta)) {
      CHECK(d->index == static_cast<int>(out.names.size()), "call {}", d->index);
      out.names.push_back(d->name);
      out.arguments.emplace_back();
    }
    if (const auto* d = std::get_if<ToolCallArguments>(&delta)) {
      CHECK(d->index >= 0 && d->index < static_cast<int>(out.names.size()), "arguments of call {}", d->index);
      out.arguments[static_cast<size_t>(d->index)] += d->json;
    }
  }
  return out;
}

std::string shown(const Parsed& parsed) {
  return dump_json({parsed.text, parsed.reasoning, parsed.names, parsed.arguments});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const auto tools = Registry<ToolSyntax>::all();
  const std::vector<const ReasoningSyntax*> thoughts = reasoning_syntaxes();
  const size_t thought = data[1] % (1 + 3 * thoughts.size());
  AnswerSyntax syntax{.tools = tools[data[0] % tools.size()]};
  if (thought > 0) {
    constexpr ThoughtStart kStarts[] = {ThoughtStart::kMaybe, ThoughtStart::kOpen, ThoughtStart::kClosed};
    syntax.reasoning = thoughts[(thought - 1) / 3];
    syntax.thought = kStarts[(thought - 1) % 3];
  }
  static const auto functions = std::make_shared<const ToolFunctions>(tool_functions(parse_json(
      R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
          "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"}}}}}])")));
  const std::string text = with_parts({reinterpret_cast<const char*>(data) + 3, size - 3}, parts_of(syntax.reasoning));
  const Parsed whole = parse(syntax, functions, text, 0);
  const Parsed pieces = parse(syntax, functions, text, 1u + data[2]);
  CHECK(whole == pieces, "{} and {}: {}\nwhole: {}\nin pieces: {}", syntax.tools->name,
        syntax.reasoning != nullptr ? syntax.reasoning->name : "no thoughts", dump_json(text), shown(whole),
        shown(pieces));
  return 0;
}
