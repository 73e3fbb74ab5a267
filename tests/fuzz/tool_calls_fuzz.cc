// Fuzzes the parsers of tool calls with arbitrary answers: the deltas do not depend on how the text was cut into
// pieces, calls begin once and in order. The first byte chooses the syntax, the second one the cuts.
#include <algorithm>

#include "base/check.h"
#include "chat/tool_syntax.h"

namespace {

using namespace sluice;

struct Parsed {
  std::string text, reasoning;
  std::vector<std::string> names, arguments;  // by call
  bool operator==(const Parsed&) const = default;
};

Parsed parse(const ToolSyntax& syntax, const std::shared_ptr<const ToolFunctions>& functions, std::string_view text,
             uint32_t seed) {
  const auto parser = syntax.parser(functions);
  std::vector<Delta> deltas;
  while (!text.empty()) {
    seed = seed * 1664525 + 1013904223;
    const size_t piece = seed == 0 ? text.size() : std::min<size_t>(text.size(), 1 + (seed >> 16) % 7);
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto syntaxes = Registry<ToolSyntax>::all();
  const ToolSyntax& syntax = *syntaxes[data[0] % syntaxes.size()];
  static const auto functions = std::make_shared<const ToolFunctions>(tool_functions(parse_json(
      R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
          "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"}}}}}])")));
  std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  // The engine gives whole characters. Here all of them have one byte.
  std::ranges::replace_if(
      text, [](char c) { return (c & 0x80) != 0; }, '?');
  const Parsed whole = parse(syntax, functions, text, 0);
  const Parsed pieces = parse(syntax, functions, text, 1u + data[1]);
  CHECK(whole == pieces, "{}: the pieces matter", syntax.name);
  return 0;
}
