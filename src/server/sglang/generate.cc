// /generate with SGLang's fields. TGI has a route of the same name; the fields of the body tell them apart.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "server/engine_request.h"
#include "server/members.h"
#include "server/openai/grammar_fields.h"
#include "server/rows.h"
#include "server/sglang/format.h"

namespace sluice::server::sglang::generate {
namespace {

using Type = Parameter::Type;

constexpr int kNewTokens = 128;          // SGLang's default
constexpr size_t kMostPrompts = 2048;    // as of text completions
constexpr size_t kMostSequences = 2048;  // prompts times n
constexpr size_t kMostCopies = 4 << 20;  // bytes that the requests of all prompts have copies of
constexpr size_t kSettingsBytes = 16 << 20;

struct SglangFields {
  const Json* text = nullptr;       // a string or strings
  const Json* input_ids = nullptr;  // token ids or lists of them
  Json settings;                    // sampling_params: an object, a list of them, or null
  Json ids;                         // rid: a string, strings, or null
  Json logprobs, start, top;        // a value, or one per prompt; or null
  bool token_texts = false;
  bool stream = false;
};

// Of one prompt's sampling_params.
struct SglangSampling {
  bool scores_only = false;
};

void set_new_tokens(Fields& f, const Json& v) {
  const int tokens = v.get<int>();
  f.of<SglangSampling>().scores_only = tokens == 0;
  f.of<SamplingParams>().max_tokens = std::max(tokens, 1);
  f.of<GenerationFields>().has_max_tokens = true;
  f.of<GenerationFields>().max_tokens_name = "max_new_tokens";
}

void set_bias(Fields& f, const Json& v) {
  for (const auto& [token, bias] : v.items()) {
    f.of<SamplingParams>().logit_bias.emplace_back(std::stoi(token), static_cast<float>(bias.get<double>()));
  }
}

void set_schema_text(Fields& f, const Json& v) {
  const FieldPath path = "json_schema";
  set_grammar(f, schema_grammar(v.is_string() ? v.get<std::string>() : dump_json(expect_object(v, path)), path));
}

constexpr auto kOwnNested = std::to_array<Parameter>({
    {.name = "max_new_tokens", .type = Type::kInteger, .min = 0, .max = kIntMax, .set = set_new_tokens},
    {.name = "min_new_tokens",
     .type = Type::kInteger,
     .min = 0,
     .max = kIntMax,
     .set = assign<&SamplingParams::min_tokens>},
    {.name = "n", .type = Type::kInteger, .min = 1, .max = 128, .set = assign<&GenerationFields::n>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    {.name = "stop_token_ids",
     .type = Type::kTokenIds,
     .max_items = 1024,
     .set = assign<&SamplingParams::stop_token_ids>},
    {.name = "no_stop_trim", .type = Type::kBoolean, .set = assign<&SamplingParams::include_stop_str_in_output>},
    {.name = "ignore_eos", .type = Type::kBoolean, .set = assign<&SamplingParams::ignore_eos>},
    {.name = "skip_special_tokens", .type = Type::kBoolean, .set = assign<&SamplingParams::skip_special_tokens>},
    {.name = "sampling_seed",
     .type = Type::kInteger,
     .min = -0x1p63,
     .max = 0x1p63,
     .set = assign<&SamplingParams::seed>},
    {.name = "logit_bias", .type = Type::kTokenBias, .min = -100, .max = 100, .max_items = 1024, .set = set_bias},
    {.name = "json_schema", .type = Type::kAny, .max_bytes = kGrammarBytes, .set = set_schema_text},
    {.name = "regex",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .set =
         [](Fields& f, const Json& v) {
           set_grammar(f, {"regex", v.get<std::string>(), "regex"});
         }},
    {.name = "ebnf",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .set =
         [](Fields& f, const Json& v) {
           set_grammar(f, {"gbnf", v.get<std::string>(), "ebnf"});
         }},
    {.name = "structural_tag",
     .type = Type::kString,
     .max_bytes = kGrammarBytes,
     .set =
         [](Fields& f, const Json& v) {
           set_grammar(f, {"structural_tag", v.get<std::string>(), "structural_tag"});
         }},
    refused("stop_regex", "[[]]"),
    refused("spaces_between_special_tokens", "[true]"),
    refused("custom_params"),
});

constexpr auto kNested = joined(kOwnNested, sampling_rows_of<SamplingParameter::kSglang>());
constexpr std::span<const Parameter> kNestedGroups[] = {kNested};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "text",
     .type = Type::kStrings,
     .min_items = 1,
     .max_items = kMostPrompts,
     .max_bytes = kTextsBytes,
     .fallback = "required unless there are input_ids",
     .help = "a prompt or a list of them; a list is answered by a list",
     .set = assign<&SglangFields::text>},
    {.name = "input_ids",
     .type = Type::kArray,
     .min_items = 1,
     .max_bytes = kTextsBytes,
     .fallback = "none",
     .help = "the token ids of a prompt, or a list of such lists",
     .set = assign<&SglangFields::input_ids>},
    {.name = "sampling_params",
     .type = Type::kAny,
     .max_bytes = kSettingsBytes,
     .fallback = "{}",
     .help = "an object, or one per prompt: max_new_tokens (128), min_new_tokens, n, stop, stop_token_ids, "
             "no_stop_trim, ignore_eos, skip_special_tokens, sampling_seed, logit_bias, json_schema, regex, ebnf, "
             "structural_tag, and the samplers in docs/sampling.md",
     .set = assign<&SglangFields::settings>},
    {.name = "rid",
     .type = Type::kStrings,
     .max_items = kMostPrompts,
     .max_bytes = kTextBytes,
     .fallback = "the request's id",
     .help = "an id, or one per prompt, that the answer repeats",
     .set = assign<&SglangFields::ids>},
    {.name = "return_logprob",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .fallback = "false",
     .help = "true or false, or one per prompt: report the log probability of each token",
     .set = assign<&SglangFields::logprobs>},
    {.name = "logprob_start_len",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .fallback = "-1",
     .help = "an integer, or one per prompt: report log probabilities of the prompt from this token on; -1: none",
     .set = assign<&SglangFields::start>},
    {.name = "top_logprobs_num",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .fallback = "0",
     .help = "an integer from 0 to 20, or one per prompt: alternatives to report for each token",
     .set = assign<&SglangFields::top>},
    {.name = "return_text_in_logprobs",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "put the texts of tokens beside their log probabilities",
     .set = assign<&SglangFields::token_texts>},
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer by server-sent events, each with the whole text so far",
     .set = assign<&SglangFields::stream>},
    {.name = "priority",
     .type = Type::kInteger,
     .min = -kIntMax,
     .max = kIntMax,
     .fallback = "0",
     .help = "lower is served first, with --scheduling-policy priority",
     .set = assign<&GenerationFields::priority>},
    refused("input_embeds"),
    refused("image_data"),
    refused("video_data"),
    refused("audio_data"),
    refused("token_ids_logprob"),
    refused("return_hidden_states", "[false]"),
    refused("return_routed_experts", "[false]"),
    refused("session_params"),
    refused("custom_logit_processor"),
    refused("lora_path", {}, "Name the adapter in 'model'"),
    refused("background", "[false]"),
});

// The value of prompt i, of a field that has one value, or a list of one per prompt.
const Json* value_of(const Json& values, size_t i, size_t prompts, const FieldPath& path) {
  if (!values.is_array()) return values.is_null() ? nullptr : &values;
  if (values.size() != prompts) {
    throw invalid_value(
        path, fmt::format("Invalid '{}': it has {} values for {} prompts.", path.str(), values.size(), prompts));
  }
  return values[i].is_null() ? nullptr : &values[i];
}

// The prompts, each a string or an array of token ids.
struct Prompts {
  std::vector<const Json*> items{};
  std::string_view field = "text";
  bool is_list = false;
};

Prompts prompts_of(const SglangFields& fields) {
  if ((fields.text != nullptr) == (fields.input_ids != nullptr)) {
    if (fields.text == nullptr) throw missing_parameter("text");
    throw ApiError{.message = "Setting 'text' and 'input_ids' at the same time is not supported.",
                   .param = "input_ids",
                   .code = "invalid_parameter_combination"};
  }
  const Json& given = fields.text != nullptr ? *fields.text : *fields.input_ids;
  Prompts out{.field = fields.text != nullptr ? "text" : "input_ids"};
  out.is_list = given.is_array() && (fields.text != nullptr || given[0].is_array());
  if (!out.is_list) {
    out.items.push_back(&given);
    return out;
  }
  expect_array(given, out.field, 1, kMostPrompts);
  for (const Json& item : given) out.items.push_back(&item);
  return out;
}

// Reads the sampling_params of one prompt into the call's fields.
void read_settings(Call& call, const Json* settings, const std::string& path) {
  call.fields.of<SamplingParams>() = call.info().default_sampling;
  GenerationFields generation;
  generation.priority = call.fields.of<GenerationFields>().priority;
  generation.max_tokens_name = "max_new_tokens";
  call.fields.of<GenerationFields>() = std::move(generation);
  call.fields.of<SglangSampling>() = {};
  if (settings != nullptr) {
    UnknownFields unknown;
    read_parameters(kNestedGroups, expect_object(*settings, path), call.info().vocab_size, call.fields, unknown);
    const FieldPath where = path;
    for (const std::string& name : unknown.names()) call.unknown.add(where / name);
  }
  if (!call.fields.of<GenerationFields>().has_max_tokens) call.fields.of<SamplingParams>().max_tokens = kNewTokens;
}

int integer_of(const Json* value, int fallback, const FieldPath& path, int min, int max) {
  return value == nullptr ? fallback : static_cast<int>(expect_integer(*value, path, min, max));
}

std::string id_of(const Call& call, const SglangFields& fields, size_t i, const Prompts& prompts) {
  if (fields.ids.is_null()) {
    return prompts.is_list ? fmt::format("{}-{}", call.request_id, i) : call.request_id;
  }
  if (fields.ids.is_string() && prompts.is_list) return fmt::format("{}_{}", fields.ids.get<std::string>(), i);
  return value_of(fields.ids, i, prompts.items.size(), "rid")->get<std::string>();
}

// Adds the request of prompt i, and what its answer is to have.
void add_prompt(Call& call, const Prompts& prompts, size_t i, GenerationJob& job, SglangAnswerOptions& answer) {
  const auto& fields = call.fields.of<SglangFields>();
  const size_t count = prompts.items.size();
  const FieldPath field = prompts.field;
  const std::string where = prompts.is_list ? field[i].str() : field.str();
  const bool settings_listed = fields.settings.is_array();
  read_settings(call, value_of(fields.settings, i, count, "sampling_params"),
                settings_listed ? fmt::format("sampling_params[{}]", i) : "sampling_params");
  const Json* wanted = value_of(fields.logprobs, i, count, "return_logprob");
  SglangPrompt asked{.id = id_of(call, fields, i, prompts),
                     .n = call.fields.of<GenerationFields>().n,
                     .logprobs = wanted != nullptr && expect_boolean(*wanted, "return_logprob"),
                     .scores_only = call.fields.of<SglangSampling>().scores_only};
  const int top = integer_of(value_of(fields.top, i, count, "top_logprobs_num"), 0, "top_logprobs_num", 0, 20);
  const int start = integer_of(value_of(fields.start, i, count, "logprob_start_len"), -1, "logprob_start_len", -1,
                               static_cast<int>(kIntMax));
  Request request = base_request(call);
  request.prompt_param = where;
  request.prompt = prompts.items[i]->is_string()
                       ? tokenize_text(call, prompts.items[i]->get_ref<const std::string&>(), true, where)
                       : expect_token_ids(*prompts.items[i], where, call.info().vocab_size);
  request.max_tokens_is_default = !call.fields.of<GenerationFields>().has_max_tokens;
  fit_context(request, call.info().max_model_len, "prompt");
  if (asked.logprobs) {
    asked.top = top;
    request.sampling.logprobs = top;
    if (start >= static_cast<int>(request.prompt.size())) {
      throw invalid_value("logprob_start_len", fmt::format("Invalid 'logprob_start_len': {} is not in the prompt of {} "
                                                           "tokens.",
                                                           start, request.prompt.size()));
    }
    if (start >= 0) {
      asked.start = start;
      asked.tokens = request.prompt;
      request.sampling.prompt_logprobs = top;
    }
  }
  answer.prompts.push_back(std::move(asked));
  job.requests.push_back(std::move(request));
}

// One request must not fill the engine for hours, nor memory with copies.
void check_size(const std::vector<Request>& requests) {
  size_t sequences = 0, copied = 0;
  for (const Request& request : requests) {
    sequences += static_cast<size_t>(request.n);
    copied += (request.grammar ? request.grammar->text.size() : 0) +
              request.sampling.logit_bias.size() * sizeof(request.sampling.logit_bias[0]);
  }
  if (sequences > kMostSequences || (requests.size() > 1 && copied > kMostCopies)) {
    throw ApiError{.message = fmt::format("Invalid 'sampling_params': {} sequences with {} bytes of grammars and token "
                                          "lists. Expected at most {} sequences and {} bytes in a request.",
                                          sequences, copied, kMostSequences, kMostCopies),
                   .param = "sampling_params",
                   .code = "too_many_sequences"};
  }
}

void run(Call& call) {
  expect_generates(call);
  const auto& fields = call.fields.of<SglangFields>();
  const Prompts prompts = prompts_of(fields);
  GenerationJob job;
  SglangAnswerOptions answer{.is_list = prompts.is_list, .stream = fields.stream, .token_texts = fields.token_texts};
  for (size_t i = 0; i < prompts.items.size(); ++i) {
    add_prompt(call, prompts, i, job, answer);
    check_size(job.requests);
  }
  check_prompt_logprobs(job.requests, "logprob_start_len");
  answer.is_list = answer.is_list || answer.prompts.front().n > 1;
  const bool scored = std::ranges::any_of(answer.prompts, [](const SglangPrompt& p) { return p.start.has_value(); });
  if (fields.stream && scored) {
    throw invalid_value("logprob_start_len",
                        "Invalid 'logprob_start_len': log probabilities of a prompt cannot be "
                        "streamed.");
  }
  job.stream = fields.stream;
  job.headers = call.warnings();
  job.format = std::make_unique<SglangFormat>(call.model.engine, std::move(answer));
  call.generate(std::move(job));
}

// vLLM's and TGI's clients name the prompt otherwise.
bool is_sglang(const Json& body) {
  return body.contains("text") || body.contains("input_ids") || body.contains("sampling_params");
}

const EndpointInfo endpoint{.name = "sglang generate",
                            .dialect = &kSglang,
                            .flags = Route::kGenerates,
                            .help = "SGLang's text generation",
                            .parameters = {model_parameter(), kParameters},
                            .shared = {{"/generate", [](const Json& body, Task) { return is_sglang(body); }}},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::sglang::generate
