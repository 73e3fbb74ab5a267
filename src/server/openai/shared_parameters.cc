// Rows of the fields that several endpoints have. OpenAI's fields come first in each group, then those of vLLM.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/openai/grammar_fields.h"
#include "server/openai/shared_fields.h"
#include "server/tool_rows.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

std::vector<TokenId> token_ids(const Json& v) { return v.get<std::vector<TokenId>>(); }

void set_allowed(Fields& f, const Json& v) {
  std::vector<TokenId> tokens = token_ids(v);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  f.of<SamplingParams>().allowed_token_ids = std::move(tokens);
}

void set_logit_bias(Fields& f, const Json& v) {
  for (const auto& [token, bias] : v.items()) {
    f.of<SamplingParams>().logit_bias.emplace_back(std::stoi(token), static_cast<float>(bias.get<double>()));
  }
}

void set_truncation(Fields& f, const Json& v) {
  const int most = v.get<int>();
  if (most == 0) {
    throw invalid_value("truncate_prompt_tokens",
                        "Invalid 'truncate_prompt_tokens': expected -1 or at least 1, but got 0.");
  }
  f.of<GenerationFields>().truncate_prompt = most;
}

void set_truncation_side(Fields& f, const Json& v) {
  constexpr std::string_view kSides[] = {"left", "right"};
  const auto& side = v.get_ref<const std::string&>();
  expect_one_of(side, "truncation_side", kSides);
  f.of<GenerationFields>().keeps_start = side == "right";
}

// A client that sends an empty salt wants to be alone, and would not be.
void set_cache_salt(Fields& f, const Json& v) {
  const auto& salt = v.get_ref<const std::string&>();
  if (salt.empty()) throw invalid_value("cache_salt", "Invalid 'cache_salt': expected a text that is not empty.");
  f.of<GenerationFields>().cache_salt = salt;
}

void set_session(Fields& f, const Json& v) {
  const auto& session = v.get_ref<const std::string&>();
  if (session.empty()) throw invalid_value("session_id", "Invalid 'session_id': expected a text that is not empty.");
  f.of<GenerationFields>().session = session;
}

void set_max_tokens(Fields& f, const Json& v) {
  f.of<SamplingParams>().max_tokens = v.get<int>();
  f.of<GenerationFields>().has_max_tokens = true;
}

// vLLM's -1 asks for all of the vocabulary, which its own default limit of 20 refuses, too.
void set_prompt_logprobs(Fields& f, const Json& v) {
  if (v == -1) {
    throw invalid_value("prompt_logprobs",
                        "Invalid 'prompt_logprobs': -1 asks for the whole vocabulary, but at most 20 alternatives to a "
                        "token are reported.");
  }
  f.of<SamplingParams>().prompt_logprobs = v.get<int>();
}

void set_stream_options(Fields& f, const Json& v) {
  auto& fields = f.of<GenerationFields>();
  fields.stream_options = v;
  const FieldPath options = "stream_options";
  for (const auto& [key, value] : v.items()) {
    const FieldPath path = options / key;
    if (value.is_null()) continue;
    if (key == "include_usage") {
      fields.include_usage = expect_boolean(value, path);
    } else if (key == "continuous_usage_stats") {
      fields.continuous_usage = expect_boolean(value, path);
    } else if (key == "include_obfuscation") {
      if (expect_boolean(value, path)) throw unsupported_parameter(path, "is not supported");
    } else {
      throw unsupported_parameter(path, "is not known");
    }
  }
  // As in vLLM, whoever turns usage off gets none in any chunk.
  if (const auto asked = v.find("include_usage"); asked != v.end() && *asked == false) fields.continuous_usage = false;
}

// The operator chooses the template. Variables that would replace it are refused.
void refuse_template_override(const Json& value, const FieldPath& path) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const FieldPath inner = path / key;
      if (key == "chat_template") throw unsupported_parameter(inner, "cannot be set by a request");
      refuse_template_override(member, inner);
    }
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) refuse_template_override(value[i], path[i]);
  }
}

void set_template_kwargs(Fields& f, const Json& v) {
  const FieldPath path = "chat_template_kwargs";
  for (const std::string_view key : {"messages", "tools", "tokenize", "add_generation_prompt"}) {
    if (v.contains(key)) throw unsupported_parameter(path / key, "cannot be set by a template variable");
  }
  refuse_template_override(v, path);
  f.of<ConversationFields>().template_kwargs = v;
}

constexpr Parameter kUser[] = {{.name = "user",
                                .type = Type::kString,
                                .max_bytes = kLabelBytes,
                                .fallback = "none",
                                .help = "a label; changes nothing"}};

constexpr Parameter kSpecialTokens[] = {{.name = "add_special_tokens",
                                         .type = Type::kBoolean,
                                         .fallback = "true for a prompt, false for messages",
                                         .help = "add the tokens that the tokenizer puts around a text",
                                         .set = assign<&SpecialTokenFields::add_special_tokens>}};

void set_early_stopping(Fields& f, const Json& v) {
  auto& early = f.of<GenerationFields>().early_stopping;
  if (is_string(v, "never")) {
    early = EarlyStopping::kNever;
  } else if (v.is_boolean()) {
    early = v.get<bool>() ? EarlyStopping::kYes : EarlyStopping::kNo;
  } else {
    throw invalid_value("early_stopping", "Invalid 'early_stopping': expected true, false or \"never\".");
  }
}

constexpr auto kLength = std::to_array<Parameter>({
    {.name = "max_tokens",
     .type = Type::kInteger,
     .min = 0,
     .max = kIntMax,
     .fallback = "chat: up to the context; completions: 16",
     .help = "the most tokens to generate; at least 1, or 0 with echo",
     .set = set_max_tokens},
    {.name = "n_predict",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "max_tokens",
     .help =
         "llama.cpp's max_tokens, at least 1; unless the context is shifted, the answer ends where it does; -1: there",
     .set = assign<&GenerationFields::n_predict>},
    {.name = "n",
     .type = Type::kInteger,
     .min = 1,
     .max = 128,
     .fallback = "1",
     .help = "choices per prompt; prompts times choices are at most 2048",
     .set = assign<&GenerationFields::n>},
    {.name = "use_beam_search",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "search for the likeliest texts instead of sampling (docs/beam-search.md)",
     .set = assign<&GenerationFields::searches>},
    {.name = "num_beams",
     .type = Type::kInteger,
     .min = 1,
     .max = kMostBeams,
     .fallback = "n with use_beam_search, else 1",
     .help = "beams of the search; above 1 it need not be asked for",
     .set = assign<&GenerationFields::num_beams>},
    {.name = "length_penalty",
     .type = Type::kNumber,
     .min = -10,
     .max = 10,
     .fallback = "1",
     .help = "exponent of the length that divides the log probability of a text that the search finds",
     .set = assign<&GenerationFields::length_penalty>},
    {.name = "early_stopping",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "false",
     .help = "true, false or never: when the search ends, as in transformers",
     .set = set_early_stopping},
    {.name = "num_beam_groups",
     .type = Type::kInteger,
     .min = 1,
     .max = kMostBeams,
     .fallback = "1",
     .help = "groups that the beams are divided into, so that their texts differ; num_beams is a multiple of it",
     .set = assign<&GenerationFields::num_beam_groups>},
    {.name = "diversity_penalty",
     .type = Type::kNumber,
     .min = 0,
     .max = 1000,
     .fallback = "0",
     .help =
         "what a token costs a group for each beam of an earlier group that takes it in the same step; above 0 with "
         "num_beam_groups",
     .set = assign<&GenerationFields::diversity_penalty>},
});

constexpr auto kChoice = std::to_array<Parameter>({
    {.name = "logit_bias",
     .type = Type::kTokenBias,
     .min = -100,
     .max = 100,
     .max_items = 1024,
     .fallback = "{}",
     .help = "maps token ids to numbers that are added to their logits",
     .set = set_logit_bias},
    {.name = "allowed_token_ids",
     .type = Type::kTokenIds,
     .min_items = 1,
     .max_items = Parameter::kVocabulary,
     .fallback = "all",
     .help = "the only tokens that may be generated",
     .set = set_allowed},
    {.name = "seed",
     .type = Type::kInteger,
     .min = -0x1p63,
     .max = 0x1p63,
     .fallback = "none",
     .help = "makes sampling repeatable",
     .set = assign<&SamplingParams::seed>},

    // End
    {.name = "min_tokens",
     .type = Type::kInteger,
     .min = 0,
     .max = kIntMax,
     .fallback = "0",
     .help = "the answer neither ends nor stops before it has this many tokens",
     .set = assign<&SamplingParams::min_tokens>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .fallback = "none",
     .help = "the text ends before the first of these strings; the limit on bytes is for all of them together",
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    {.name = "stop_token_ids",
     .type = Type::kTokenIds,
     .max_items = 1024,
     .fallback = "none",
     .help = "tokens that end the text",
     .set = assign<&SamplingParams::stop_token_ids>},
    {.name = "include_stop_str_in_output",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "keep the stop string or token that ended the text",
     .set = assign<&SamplingParams::include_stop_str_in_output>},
    {.name = "ignore_eos",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "generate beyond end-of-sequence tokens",
     .set = assign<&SamplingParams::ignore_eos>},
});

constexpr auto kForm = std::to_array<Parameter>({
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer by server-sent events",
     .set = assign<&GenerationFields::stream>},
    {.name = "stream_options",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "include_usage: a last chunk with the usage; continuous_usage_stats: usage in every chunk",
     .set = set_stream_options},
    {.name = "prompt_logprobs",
     .type = Type::kInteger,
     .min = -1,
     .max = 20,
     .fallback = "none",
     .help = "alternatives to report for each prompt token, at least 0; not with stream",
     .set = set_prompt_logprobs},
    {.name = "return_token_ids",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "report the ids of the prompt's tokens and of the answer's",
     .set = assign<&GenerationFields::return_token_ids>},
    {.name = "return_tokens_as_token_ids",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "name tokens in log probabilities by their ids: token_id:5",
     .set = assign<&GenerationFields::return_tokens_as_token_ids>},
    {.name = "skip_special_tokens",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "leave special tokens out of the text",
     .set = assign<&SamplingParams::skip_special_tokens>},
    {.name = "response_format",
     .type = Type::kObject,
     .max_bytes = 1 << 20,
     .fallback = "{\"type\": \"text\"}",
     .help = "text, json_object, json_schema, structural_tag",
     .set =
         [](Fields& f, const Json& v) {
           set_response_format(f, v);
           f.of<GenerationFields>().response_format = &v;
         }},

    // The request itself
    {.name = "truncate_prompt_tokens",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "none",
     .help = "keep so many tokens of a longer prompt; -1: as many as fit beside max_tokens",
     .set = set_truncation},
    {.name = "truncation_side",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "left",
     .help = "which end of a longer prompt is cut off: left or right",
     .set = set_truncation_side},
    {.name = "priority",
     .type = Type::kInteger,
     .min = -kIntMax,
     .max = kIntMax,
     .fallback = "0",
     .help = "lower is served first, with --scheduling-policy priority",
     .set = assign<&GenerationFields::priority>},
    {.name = "cache_salt",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "cached prefixes are shared only between requests with the same salt and API key; not empty",
     .set = set_cache_salt},
    {.name = "session_id",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "the conversation that this is a turn of: its cached tokens wait for the next one (sessions.md)",
     .set = set_session},
    {.name = "session_ttl",
     .type = Type::kInteger,
     .min = 1,
     .max = kMostSessionSeconds,
     .fallback = "--session-ttl",
     .help = "how many seconds they wait; it needs session_id",
     .set = assign<&GenerationFields::session_ttl>},
    {.name = "context_shift",
     .type = Type::kBoolean,
     .fallback = "--context-shift",
     .help = "an answer that fills the context goes on without its oldest tokens, up to max_tokens; true needs "
             "--context-shift (context-shift.md)",
     .set = assign<&GenerationFields::context_shift>},
    {.name = "n_keep",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "--context-keep",
     .help = "tokens at the start of the prompt that stay then; -1: the whole prompt",
     .set = assign<&GenerationFields::context_keep>},
    {.name = "safety_identifier",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "a label; changes nothing"},
    {.name = "prompt_cache_key",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "a label; cached prefixes are found without it"},
});

constexpr auto kGeneration = joined(joined(kLength, sampling_rows()), joined(kChoice, kForm));

constexpr auto kConversation = std::to_array<Parameter>({
    {.name = "messages",
     .type = Type::kArray,
     .min_items = 1,
     .max_items = 16384,
     .max_bytes = kTextBytes,
     .fallback = "required",
     .help =
         "the conversation: roles system, developer (treated as system), user, assistant, tool, function, and those "
         "that the chat template knows besides; content is a string or an array of text parts",
     .set = assign<&ConversationFields::messages>},
    tools_row(),
    {.name = "chat_template_kwargs",
     .type = Type::kObject,
     .max_items = 64,
     .max_bytes = 64 << 10,
     .fallback = "{}",
     .help = "further variables for the chat template",
     .set = set_template_kwargs},
    {.name = "add_generation_prompt",
     .type = Type::kBoolean,
     .fallback = "true, unless continue_final_message is",
     .help = "let the template begin the assistant's turn",
     .set = assign<&ConversationFields::add_generation_prompt>},
    {.name = "continue_final_message",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "go on with the last message instead of beginning a turn; not with add_generation_prompt",
     .set = assign<&ConversationFields::continue_final_message>},
    refused("chat_template", {}, "Set it with --chat-template"),
    refused("mm_processor_kwargs"),
});

constexpr auto kOthers = std::to_array<Parameter>({
    refused("service_tier", R"(["auto", "default"])"),
    refused("guided_decoding_backend", {}, "There is one for all grammars"),
    refused("guided_whitespace_pattern"),
    refused("grammar_lazy", "[false]"),
    refused("stop_regex", R"([[], ""])", "Use 'stop'"),
    // Samplers
    refused("typical", "[1]"),
    refused("nsigma", "[-1, 0]", "Use 'top_n_sigma'"),
    refused("mirostat_mode", "[0]"),
    refused("dynamic_temperature", "[false]"),
    refused("min_keep", "[0, 1]"),
    refused("sampling_seed", {}, "Use 'seed'"),
    refused("repeat_penalty", "[1]", "Use 'repetition_penalty'"),
    refused("logits_processors", "[[]]", "Use 'logit_bias'"),
    refused("custom_logit_processor", {}, "Use 'logit_bias'"),
    refused("max_new_tokens", {}, "Use 'max_tokens'"),
    refused("min_new_tokens", {}, "Use 'min_tokens'"),
    refused("n_probs", "[0]", "Use 'logprobs'"),
    refused("logprob_token_ids", "[[]]", "Use 'logprobs'"),
    refused("return_progress", "[false]"),
    refused("timings_per_token", "[false]", "Use /completion, or 'stream_options'"),
    // Adapters, Ollama's fields, and what changes the answer's form
    refused("lora_request"),
    refused("lora_path"),
    refused("lora", "[[]]"),
    refused("options", "[{}]", "Use fields of the request itself"),
    refused("format", R"([""])"),
    refused("think"),
    refused("spaces_between_special_tokens", "[true]"),
    refused("vllm_xargs"),
});

constexpr auto kMissing = [] {
  std::array<Parameter, kMissingSamplers.size()> rows{};
  std::ranges::transform(kMissingSamplers, rows.begin(), missing_row);
  return rows;
}();

constexpr auto kForeign = joined(kOthers, kMissing);

}  // namespace

std::span<const Parameter> label_parameter() { return kUser; }
std::span<const Parameter> special_token_parameter() { return kSpecialTokens; }
std::span<const Parameter> generation_parameters() { return kGeneration; }
std::span<const Parameter> choice_parameters() { return kChoice; }
std::span<const Parameter> conversation_parameters() { return kConversation; }
std::span<const Parameter> foreign_parameters() { return kForeign; }

}  // namespace sluice::server
