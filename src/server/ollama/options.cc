// The rows of `options`, which are checked like the fields of a request.
#include "server/ollama/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "server/members.h"
#include "server/ollama/dialect.h"
#include "server/rows.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

// -1 and -2 stand for as many tokens as the context holds.
void set_num_predict(Fields& f, const Json& v) {
  const int tokens = v.get<int>();
  if (tokens == 0) {
    throw invalid_value("num_predict", "Invalid 'num_predict': expected -2, -1 or at least 1, but got 0.");
  }
  f.of<SamplingParams>().max_tokens = tokens > 0 ? std::optional(tokens) : std::nullopt;
  f.of<GenerationFields>().has_max_tokens = tokens > 0;
  f.of<GenerationFields>().max_tokens_name = "options.num_predict";
}

constexpr auto kOwnOptions = std::to_array<Parameter>({
    {.name = "num_predict", .type = Type::kInteger, .min = -2, .max = kIntMax, .set = set_num_predict},
    {.name = "num_ctx", .type = Type::kInteger, .min = 1, .max = kIntMax, .set = assign<&OllamaFields::num_ctx>},
    {.name = "seed", .type = Type::kInteger, .min = -0x1p63, .max = 0x1p63, .set = assign<&SamplingParams::seed>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    refused("penalize_newline", "[true]"),
});

constexpr auto kOptions = joined(kOwnOptions, sampling_rows_of<SamplingParameter::kOllama>());

constexpr std::span<const Parameter> kOptionGroups[] = {kOptions};

// "json", an empty string or a schema.
void set_format(Fields& f, const Json& v) {
  auto& grammar = f.of<GenerationFields>().grammar;
  if (is_string(v, "")) return;
  if (is_string(v, "json")) {
    grammar = {"json_object", "", "format"};
  } else if (v.is_object()) {
    grammar = schema_grammar(dump_json(v), "format");
  } else {
    throw invalid_value("format", "Invalid 'format': expected \"json\" or a JSON schema.");
  }
}

// true, false, or how much to think.
void set_think(Fields& f, const Json& v) {
  if (!v.is_boolean()) {
    const std::string& level = expect_string(v, "think");
    if (level != "low" && level != "medium" && level != "high") {
      throw invalid_value("think", fmt::format("Invalid value: '{}'. Supported values are: true, false, 'low', "
                                               "'medium', 'high'.",
                                               quotable(level)));
    }
  }
  auto& conversation = f.of<ConversationFields>();
  conversation.thinks = v != false;
  conversation.thinking_param = conversation.effort_param = "think";
  if (v.is_string()) conversation.effort = v.get<std::string>();
}

constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 10);

// Milliseconds of a duration like "5m", "1h30m" or "1.5s"; nullopt if it is malformed.
std::optional<double> parse_duration(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1},
                                                            {"s", 1e3},   {"m", 6e4},   {"h", 3.6e6}};
  double total = 0;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text == "0") return 0;
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc() || number < 0) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    const auto unit = std::ranges::find_if(kUnits, [&](const auto& u) { return text.starts_with(u.first); });
    if (unit == std::end(kUnits)) return std::nullopt;
    text.remove_prefix(unit->first.size());
    total += number * unit->second;
  }
  return negative ? -total : total;
}

// A number of seconds, or a duration like "5m". Below 0: for ever.
void set_keep_alive(Fields& f, const Json& v) {
  std::optional<double> ms;
  if (v.is_number()) {
    ms = v.get<double>() * 1e3;
  } else {
    ms = parse_duration(expect_string(v, "keep_alive"));
  }
  if (!ms) {
    throw invalid_value("keep_alive", "Invalid 'keep_alive': expected a number of seconds or a duration like \"5m\".");
  }
  auto& fields = f.of<OllamaFields>();
  fields.has_keep_alive = true;
  fields.keep_alive = std::nullopt;
  if (*ms >= 0) {
    const double most = static_cast<double>(kLongest.count());
    fields.keep_alive = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(*ms, most))));
  }
}

constexpr Parameter kKeepAlive[] = {{.name = "keep_alive",
                                     .type = Type::kAny,
                                     .max_bytes = kLabelBytes,
                                     .fallback = "as the server says",
                                     .help = "how long the model stays loaded without a request: seconds or a duration "
                                             "like 5m; below 0: for ever. Changes nothing if it always stays",
                                     .set = set_keep_alive}};

constexpr auto kOllamaGeneration = std::to_array<Parameter>({
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "answer by lines of JSON",
     .set = assign<&OllamaFields::stream>},
    {.name = "options",
     .type = Type::kObject,
     .max_items = 64,
     .max_bytes = 256 << 10,
     .fallback = "{}",
     .help = "num_predict, num_ctx, seed, stop, and the samplers in docs/sampling.md",
     .set = assign<&OllamaFields::options>},
    {.name = "format",
     .type = Type::kAny,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "json, or a JSON schema for the answer",
     .set = set_format},
    {.name = "think",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "as the template says",
     .help = "true, false, low, medium or high: turns thoughts on or off, and says how much",
     .set = set_think},
    refused("truncate", "[false]"),
    refused("shift", "[false]"),
});

}  // namespace

std::span<const Parameter> ollama_keep_alive_parameter() { return kKeepAlive; }
std::span<const Parameter> ollama_generation_parameters() { return kOllamaGeneration; }

void read_ollama_options(Call& call) {
  const auto& fields = call.fields.of<OllamaFields>();
  call.fields.of<GenerationFields>().stream = fields.stream;
  apply_keep_alive(call);
  apply_logprobs(call.fields);
  if (!fields.options.is_object()) return;
  UnknownFields unknown;  // settings of the machine: how many threads, how many layers on a GPU, ...
  read_parameters(kOptionGroups, fields.options, call.info().vocab_size, call.fields, unknown);
  const FieldPath options = "options";
  for (const std::string& name : unknown.names()) call.unknown.add(options / name);
  if (fields.num_ctx && *fields.num_ctx > call.info().max_model_len) {
    throw invalid_value("options.num_ctx", fmt::format("Invalid 'num_ctx': the model's context is {} tokens, as the "
                                                       "server was started.",
                                                       call.info().max_model_len));
  }
}

void apply_keep_alive(Call& call) {
  const auto& fields = call.fields.of<OllamaFields>();
  if (call.model.hosted && fields.has_keep_alive) call.models.host()->keep(*call.model.hosted, fields.keep_alive);
}

bool needs_engine_unless_unloading(const Json& body, std::string_view prompt) {
  const auto given = [&](std::string_view name) {
    const auto value = body.find(name);
    return value != body.end() && !value->is_null() && !value->empty() && !is_string(*value, "") ? &*value : nullptr;
  };
  const Json* keep = given("keep_alive");
  if (keep == nullptr || given(prompt) != nullptr) return true;
  if (keep->is_number()) return *keep != 0;
  return !keep->is_string() || parse_duration(keep->get_ref<const std::string&>()) != 0.0;
}

void answer_load(Call& call, const char* key, Json empty) {
  const bool unloads = call.fields.of<OllamaFields>().unloads();
  if (unloads && !call.model.hosted) {
    throw unsupported_parameter("keep_alive", "cannot be 0 in a request without a prompt: the model stays loaded");
  }
  if (unloads) call.models.host()->unload(*call.model.hosted);
  call.send({.body = dump_json({{"model", call.model.name},
                                {"created_at", rfc3339_now()},
                                {key, std::move(empty)},
                                {"done", true},
                                {"done_reason", unloads ? "unload" : "load"}}),
             .headers = call.warnings()});
}

}  // namespace sluice::server
