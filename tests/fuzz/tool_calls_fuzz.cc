// Fuzzes the parsers of tool calls with arbitrary answers: the deltas do not depend on how the text was cut into
// pieces, calls begin once and in order. The first byte chooses the syntax, the second one the cuts. Bytes from 0x80 on
// are replaced by parts of calls.
#include <algorithm>

#include "base/check.h"
#include "chat/tool_syntax.h"

namespace {

using namespace sluice;

constexpr std::string_view kParts[] = {"<tool_call>",
                                       "</tool_call>",
                                       "<function=",
                                       "</function>",
                                       "<parameter=",
                                       "</parameter>",
                                       "get_weather",
                                       "city",
                                       "days",
                                       "exact",
                                       "<arg_key>",
                                       "</arg_key>",
                                       "<arg_value>",
                                       "</arg_value>",
                                       "<tool_calls>",
                                       "</tool_calls>",
                                       "<tool_sep>",
                                       "<minimax:tool_call>",
                                       "</minimax:tool_call>",
                                       "<dots_function_call>",
                                       "</dots_function_call>",
                                       "<invoke name=\"",
                                       "</invoke>",
                                       "<parameter name=\"",
                                       "\">",
                                       "<｜DSML｜",
                                       "</｜DSML｜",
                                       "function_calls>",
                                       "tool_calls>",
                                       " calls>",
                                       "invoke name=\"",
                                       "parameter name=\"",
                                       "\" string=\"true\">",
                                       "\" string=\"false\">",
                                       "invoke>",
                                       "parameter>",
                                       "<seed:tool_call>",
                                       "</seed:tool_call>",
                                       "<｜tool▁calls▁begin｜>",
                                       "<｜tool▁calls▁end｜>",
                                       "<｜tool▁call▁begin｜>",
                                       "<｜tool▁call▁end｜>",
                                       "<｜tool▁sep｜>",
                                       "```json\n",
                                       "\n```",
                                       "<｜tool_calls_begin｜>",
                                       "<｜tool_call_begin｜>",
                                       "function<｜tool_sep｜>",
                                       "<steptml:invoke name=\"",
                                       "</steptml:invoke>",
                                       "<steptml:parameter name=\"",
                                       "</steptml:parameter>",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "[CALL_ID]",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_end|>",
                                       "<|tool_call_argument_begin|>",
                                       "functions.",
                                       ":0",
                                       "<|tool_call_start|>",
                                       "<|tool_call_end|>",
                                       "<|python_start|>",
                                       "<|python_end|>",
                                       "<|tool_call|>",
                                       "<|/tool_call|>",
                                       "<function_call>",
                                       "<function_calls>",
                                       "</function_calls>",
                                       "<|action_start|>",
                                       "<|plugin|>",
                                       "<|action_end|>",
                                       "<|START_ACTION|>",
                                       "<|END_ACTION|>",
                                       "<|tools_prefix|>",
                                       "<|tools_suffix|>",
                                       "<TOOLCALL>",
                                       "</TOOLCALL>",
                                       "functools",
                                       "<start_function_call>",
                                       "<end_function_call>",
                                       "call:",
                                       "<escape>",
                                       "<longcat_tool_call>",
                                       "</longcat_tool_call>",
                                       "<|channel|>",
                                       "commentary",
                                       "<|message|>",
                                       "<|call|>",
                                       "<|constrain|>",
                                       " to=",
                                       "<|start|>",
                                       "assistant",
                                       "<|plamo:begin_",
                                       "<|plamo:end_",
                                       "tool_requests:plamo|>",
                                       "tool_request:plamo|>",
                                       "tool_name:plamo|>",
                                       "tool_arguments:plamo|>",
                                       "{\"name\": \"",
                                       "\", \"arguments\": ",
                                       "\"parameters\"",
                                       "{\"city\": \"",
                                       "\"}",
                                       "}}",
                                       "True",
                                       "'",
                                       "(",
                                       ")",
                                       "=",
                                       ", ",
                                       "\n",
                                       "\\u00",
                                       "12",
                                       "-",
                                       "[{",
                                       "}]"};

std::string with_parts(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += kParts[(byte - 0x80u) % std::size(kParts)];
    }
  }
  return text;
}

struct Parsed {
  std::string text, reasoning;
  std::vector<std::string> names, arguments;  // by call
  bool operator==(const Parsed&) const = default;
};

Parsed parse(const ToolSyntax& syntax, const std::shared_ptr<const ToolFunctions>& functions, std::string_view text,
             uint32_t seed) {
  const auto parser = syntax.parser(functions);
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
  if (size < 2) return 0;
  const auto syntaxes = Registry<ToolSyntax>::all();
  const ToolSyntax& syntax = *syntaxes[data[0] % syntaxes.size()];
  static const auto functions = std::make_shared<const ToolFunctions>(tool_functions(parse_json(
      R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
          "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"}}}}}])")));
  const std::string text = with_parts({reinterpret_cast<const char*>(data) + 2, size - 2});
  const Parsed whole = parse(syntax, functions, text, 0);
  const Parsed pieces = parse(syntax, functions, text, 1u + data[1]);
  CHECK(whole == pieces, "{}: {}\nwhole: {}\nin pieces: {}", syntax.name, dump_json(text), shown(whole), shown(pieces));
  return 0;
}
