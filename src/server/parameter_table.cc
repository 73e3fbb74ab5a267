// The rows of the parameter table. OpenAI's fields first, vLLM's extensions next, then what is refused by name.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "server/errors.h"
#include "server/parameters.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;
using F = RequestFields;

constexpr double kIntMax = 2147483647;
constexpr size_t kLabelBytes = 1 << 10;   // names, salts, small options
constexpr size_t kTextBytes = 8 << 20;    // one text: about two million tokens
constexpr size_t kTextsBytes = 16 << 20;  // several texts, or their token ids

template <class T, T SamplingParams::*Member>
void set_sampling(F& f, const Json& v) {
  f.sampling.*Member = v.get<T>();
}

std::vector<TokenId> token_ids(const Json& v) { return v.get<std::vector<TokenId>>(); }

std::vector<std::string> strings(const Json& v) {
  std::vector<std::string> out;
  if (v.is_string()) {
    out.push_back(v.get<std::string>());
  } else {
    out = v.get<std::vector<std::string>>();
  }
  return out;
}

void set_stop(F& f, const Json& v) {
  std::vector<std::string> stops = strings(v);
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty()) continue;
    const std::string path = v.is_string() ? "stop" : fmt::format("stop[{}]", i);
    throw ApiError{.message = fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1.", path),
                   .param = path,
                   .code = "empty_string"};
  }
  f.sampling.stop = std::move(stops);
}

void set_allowed(F& f, const Json& v) {
  std::vector<TokenId> tokens = token_ids(v);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  f.sampling.allowed_token_ids = std::move(tokens);
}

void set_logit_bias(F& f, const Json& v) {
  for (const auto& [token, bias] : v.items()) {
    f.sampling.logit_bias.emplace_back(std::stoi(token), static_cast<float>(bias.get<double>()));
  }
}

void set_stream_options(F& f, const Json& v) {
  f.stream_options = v;
  const FieldPath options = "stream_options";
  for (const auto& [key, value] : v.items()) {
    const FieldPath path = options / key;
    if (value.is_null()) continue;
    if (key == "include_usage") {
      f.include_usage = expect_boolean(value, path);
    } else if (key == "continuous_usage_stats") {
      f.continuous_usage = expect_boolean(value, path);
    } else if (key == "include_obfuscation") {
      if (expect_boolean(value, path)) throw unsupported_parameter(path, "is not supported");
    } else {
      throw unsupported_parameter(path, "is not known");
    }
  }
}

void set_response_format(F&, const Json& v) {
  const auto type = v.find("type");
  if (type == v.end()) throw missing_parameter("response_format.type");
  const std::string& name = expect_string(*type, "response_format.type");
  if (name == "text") return;
  if (name == "json_object" || name == "json_schema" || name == "structural_tag") {
    throw unsupported_parameter("response_format",
                                fmt::format("of type '{}' is not supported: output cannot be constrained yet", name));
  }
  throw invalid_value("response_format.type",
                      fmt::format("Invalid value: '{}'. Supported values are: 'text'.", quotable(name)));
}

void set_tool_choice(F& f, const Json& v) {
  constexpr std::string_view kReason = "can only be 'none' or 'auto': output cannot be constrained yet";
  if (v.is_object()) throw unsupported_parameter("tool_choice", kReason);
  const std::string& name = expect_string(v, "tool_choice");
  if (name == "required") throw unsupported_parameter("tool_choice", kReason);
  if (name != "none" && name != "auto") {
    throw invalid_value("tool_choice",
                        fmt::format("Invalid value: '{}'. Supported values are: 'none', 'auto'.", quotable(name)));
  }
  f.tool_choice = v;
}

// A conversation's template is the operator's; variables that would replace it or the conversation are refused.
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

void set_template_kwargs(F& f, const Json& v) {
  for (const std::string_view key : {"messages", "tools", "tokenize", "add_generation_prompt"}) {
    if (v.contains(key)) {
      throw unsupported_parameter(fmt::format("chat_template_kwargs.{}", key), "cannot be set by a template variable");
    }
  }
  refuse_template_override(v, "chat_template_kwargs");
  f.template_kwargs = v;
}

void set_encoding_format(F& f, const Json& v) {
  const auto& name = v.get_ref<const std::string&>();
  f.base64 = name == "base64";
  if (f.base64 || name == "float") return;
  throw invalid_value("encoding_format",
                      fmt::format("Invalid value: '{}'. Supported values are: 'float', 'base64'.", quotable(name)));
}

void set_truncate(F& f, const Json& v) {
  f.truncate = v.get<int>();
  if (f.truncate == 0) {
    throw invalid_value("truncate_prompt_tokens", "Invalid 'truncate_prompt_tokens': nothing would be left.");
  }
}

// A field that is refused unless its value is null or one of `neutral`, a JSON array.
constexpr Parameter refused(std::string_view name, std::string_view neutral = {}, std::string_view instead = {},
                            unsigned endpoints = kGeneration) {
  return {.name = name, .type = Type::kUnsupported, .endpoints = endpoints, .neutral = neutral, .help = instead};
}

constexpr Parameter companion(std::string_view name, Type type, std::string_view help) {
  return {.name = name, .type = type, .max_bytes = kLabelBytes, .fallback = "none", .help = help};
}

constexpr auto kTable = std::to_array<Parameter>({
    // What to answer
    {.name = "model",
     .type = Type::kString,
     .endpoints = kAll,
     .max_bytes = kLabelBytes,
     .fallback = "required; the only one for /tokenize",
     .help = "name of a served model",
     .set = [](F& f, const Json& v) { f.model = v.get<std::string>(); }},
    {.name = "messages",
     .type = Type::kArray,
     .endpoints = kChat | kTokenize,
     .min_items = 1,
     .max_items = 16384,
     .max_bytes = kTextBytes,
     .fallback = "required",
     .help = "the conversation: roles system, developer (treated as system), user, assistant, "
             "tool; content is a string or an array of text parts",
     .set = [](F& f, const Json& v) { f.messages = v; }},
    {.name = "prompt",
     .type = Type::kAny,
     .endpoints = kCompletions | kTokenize,
     .max_bytes = kTextsBytes,
     .fallback = "required",
     .help = "a string, an array of strings, an array of token ids or an array of arrays of token ids "
             "(a string for /tokenize)",
     .set = [](F& f, const Json& v) { f.prompt = v; }},
    {.name = "tokens",
     .type = Type::kTokenIds,
     .endpoints = kDetokenize,
     .max_items = 1 << 20,
     .required = true,
     .fallback = "required",
     .help = "token ids to turn into text",
     .set = [](F& f, const Json& v) { f.tokens = token_ids(v); }},

    {.name = "input",
     .type = Type::kAny,
     .endpoints = kEmbeddings,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "a string, an array of strings, an array of token ids or an array of arrays of token ids; "
             "at most 2048 texts",
     .set = [](F& f, const Json& v) { f.input = v; }},
    {.name = "query",
     .type = Type::kString,
     .endpoints = kRerank,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "what documents are to be relevant to",
     .set = [](F& f, const Json& v) { f.query = v.get<std::string>(); }},
    {.name = "documents",
     .type = Type::kArray,
     .endpoints = kRerank,
     .min_items = 1,
     .max_items = 2048,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "strings, or objects with a string `text`",
     .set = [](F& f, const Json& v) { f.documents = v; }},
    {.name = "text_1",
     .type = Type::kStrings,
     .endpoints = kScores,
     .min_items = 1,
     .max_items = 2048,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "first text of each pair; one goes with all of the second",
     .set = [](F& f, const Json& v) { f.text_1 = v; }},
    {.name = "text_2",
     .type = Type::kStrings,
     .endpoints = kScores,
     .min_items = 1,
     .max_items = 2048,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "second text of each pair",
     .set = [](F& f, const Json& v) { f.text_2 = v; }},

    // Vectors and scores
    {.name = "encoding_format",
     .type = Type::kString,
     .endpoints = kEmbeddings,
     .max_bytes = kLabelBytes,
     .fallback = "float",
     .help = "float: numbers; base64: fp32, little endian",
     .set = set_encoding_format},
    {.name = "dimensions",
     .type = Type::kInteger,
     .endpoints = kEmbeddings,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give the first ones only (Matryoshka), normalized again",
     .set = [](F& f, const Json& v) { f.dimensions = v.get<int>(); }},
    {.name = "normalize",
     .type = Type::kBoolean,
     .endpoints = kEmbeddings,
     .fallback = "the model's",
     .help = "divide vectors by their length",
     .set = [](F& f, const Json& v) { f.normalize = v.get<bool>(); }},
    {.name = "prompt_name",
     .type = Type::kString,
     .endpoints = kEmbeddings,
     .max_bytes = kLabelBytes,
     .fallback = "the model's",
     .help = "which of the model's prompts to put before texts (config_sentence_transformers.json); an empty one: none",
     .set = [](F& f, const Json& v) { f.prompt_name = v.get<std::string>(); }},
    {.name = "truncate_prompt_tokens",
     .type = Type::kInteger,
     .endpoints = kPooling,
     .min = -1,
     .max = kIntMax,
     .fallback = "none: longer texts are errors",
     .help = "cut texts off at the end to so many tokens; -1: the model's limit",
     .set = set_truncate},
    {.name = "top_n",
     .type = Type::kInteger,
     .endpoints = kRerank,
     .min = 1,
     .max = kIntMax,
     .fallback = "all",
     .help = "most results",
     .set = [](F& f, const Json& v) { f.top_n = v.get<int>(); }},
    {.name = "return_documents",
     .type = Type::kBoolean,
     .endpoints = kRerank,
     .fallback = "true",
     .help = "put documents into the results",
     .set = [](F& f, const Json& v) { f.return_documents = v.get<bool>(); }},
    {.name = "use_activation",
     .type = Type::kBoolean,
     .endpoints = kRerank | kScores,
     .fallback = "true",
     .help = "false: scores are logits",
     .set = [](F& f, const Json& v) { f.use_activation = v.get<bool>(); }},

    // How much
    {.name = "max_tokens",
     .type = Type::kInteger,
     .min = 0,
     .max = kIntMax,
     .fallback = "chat: up to the context; completions: 16",
     .help = "most tokens to generate (at least 1; 0 only with echo)",
     .set =
         [](F& f, const Json& v) {
           f.sampling.max_tokens = v.get<int>();
           f.has_max_tokens = true;
         }},
    {.name = "max_completion_tokens",
     .type = Type::kInteger,
     .endpoints = kChat,
     .min = 1,
     .max = kIntMax,
     .fallback = "max_tokens",
     .help = "the same, by its newer name",
     .set =
         [](F& f, const Json& v) {
           f.sampling.max_tokens = v.get<int>();
           f.has_max_completion_tokens = true;
         }},
    {.name = "min_tokens",
     .type = Type::kInteger,
     .min = 0,
     .max = kIntMax,
     .fallback = "0",
     .help = "no end and no stop before that many tokens",
     .set = set_sampling<int, &SamplingParams::min_tokens>},
    {.name = "n",
     .type = Type::kInteger,
     .min = 1,
     .max = 128,
     .fallback = "1",
     .help = "choices per prompt",
     .set = [](F& f, const Json& v) { f.n = v.get<int>(); }},
    {.name = "best_of",
     .type = Type::kInteger,
     .endpoints = kCompletions,
     .min = 1,
     .max = 128,
     .fallback = "n",
     .help = "must equal n",
     .set = [](F& f, const Json& v) { f.best_of = v.get<int>(); }},

    // How tokens are chosen
    {.name = "temperature",
     .type = Type::kNumber,
     .min = 0,
     .max = 2,
     .fallback = "the model's, else 1",
     .help = "0: always the most likely token",
     .set = set_sampling<double, &SamplingParams::temperature>},
    {.name = "top_p",
     .type = Type::kNumber,
     .min = 0,
     .max = 1,
     .above_min = true,
     .fallback = "the model's, else 1",
     .help = "smallest set of tokens with that much probability",
     .set = set_sampling<double, &SamplingParams::top_p>},
    {.name = "top_k",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "the model's, else 0",
     .help = "that many most likely tokens (0 or -1: all)",
     .set = set_sampling<int, &SamplingParams::top_k>},
    {.name = "min_p",
     .type = Type::kNumber,
     .min = 0,
     .max = 1,
     .fallback = "the model's, else 0",
     .help = "least probability, relative to the most likely token",
     .set = set_sampling<double, &SamplingParams::min_p>},
    {.name = "presence_penalty",
     .type = Type::kNumber,
     .min = -2,
     .max = 2,
     .fallback = "0",
     .help = "for tokens already in the output",
     .set = set_sampling<double, &SamplingParams::presence_penalty>},
    {.name = "frequency_penalty",
     .type = Type::kNumber,
     .min = -2,
     .max = 2,
     .fallback = "0",
     .help = "the same, times how often",
     .set = set_sampling<double, &SamplingParams::frequency_penalty>},
    {.name = "repetition_penalty",
     .type = Type::kNumber,
     .min = 0.000001,
     .max = 1000000,
     .fallback = "the model's, else 1",
     .help = "factor for tokens of prompt and output",
     .set = set_sampling<double, &SamplingParams::repetition_penalty>},
    {.name = "logit_bias",
     .type = Type::kTokenBias,
     .min = -100,
     .max = 100,
     .max_items = 1024,
     .fallback = "{}",
     .help = "token ids to what is added to their logits",
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
     .help = "makes the draws repeatable",
     .set = [](F& f, const Json& v) { f.sampling.seed = v.get<int64_t>(); }},

    // Where it ends
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .fallback = "none",
     .help = "the text ends before the first of them",
     .set = set_stop},
    {.name = "stop_token_ids",
     .type = Type::kTokenIds,
     .max_items = 1024,
     .fallback = "none",
     .help = "tokens that end the text",
     .set = [](F& f, const Json& v) { f.sampling.stop_token_ids = token_ids(v); }},
    {.name = "include_stop_str_in_output",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "keep what ended the text",
     .set = set_sampling<bool, &SamplingParams::include_stop_str_in_output>},
    {.name = "ignore_eos",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "go on after end tokens",
     .set = set_sampling<bool, &SamplingParams::ignore_eos>},

    // What comes with it
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer by server-sent events",
     .set = [](F& f, const Json& v) { f.stream = v.get<bool>(); }},
    {.name = "stream_options",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "include_usage: a last chunk with the usage; continuous_usage_stats: usage in every chunk",
     .set = set_stream_options},
    {.name = "logprobs",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "chat: true for the log probability of each token; completions: how many alternatives (0 to 20), too"},
    {.name = "top_logprobs",
     .type = Type::kInteger,
     .endpoints = kChat,
     .min = 0,
     .max = 20,
     .fallback = "0",
     .help = "alternatives of each token; needs logprobs",
     .set = [](F& f, const Json& v) { f.top_logprobs = v.get<int>(); }},
    {.name = "prompt_logprobs",
     .type = Type::kInteger,
     .min = 0,
     .max = 20,
     .fallback = "none",
     .help = "the same for each prompt token; not with stream",
     .set = [](F& f, const Json& v) { f.sampling.prompt_logprobs = v.get<int>(); }},
    {.name = "echo",
     .type = Type::kBoolean,
     .endpoints = kCompletions,
     .fallback = "false",
     .help = "put the prompt before the text, and its log probabilities before the text's",
     .set = [](F& f, const Json& v) { f.echo = v.get<bool>(); }},
    {.name = "skip_special_tokens",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "leave special tokens out of the text",
     .set = set_sampling<bool, &SamplingParams::skip_special_tokens>},
    {.name = "return_token_strs",
     .type = Type::kBoolean,
     .endpoints = kTokenize,
     .fallback = "false",
     .help = "the vocabulary's spelling of each token, too",
     .set = [](F& f, const Json& v) { f.return_token_strs = v.get<bool>(); }},

    // The prompt's making
    {.name = "add_special_tokens",
     .type = Type::kBoolean,
     .endpoints = kText,
     .fallback = "true for a prompt, false for messages",
     .help = "tokens the tokenizer puts around a text",
     .set = [](F& f, const Json& v) { f.add_special_tokens = v.get<bool>(); }},
    {.name = "add_generation_prompt",
     .type = Type::kBoolean,
     .endpoints = kChat | kTokenize,
     .fallback = "true",
     .help = "let the template begin the assistant's turn",
     .set = [](F& f, const Json& v) { f.add_generation_prompt = v.get<bool>(); }},
    {.name = "chat_template_kwargs",
     .type = Type::kObject,
     .endpoints = kChat | kTokenize,
     .max_items = 64,
     .max_bytes = 64 << 10,
     .fallback = "{}",
     .help = "further variables for the chat template",
     .set = set_template_kwargs},
    {.name = "tools",
     .type = Type::kArray,
     .endpoints = kChat | kTokenize,
     .max_items = 128,
     .max_bytes = 1 << 20,
     .fallback = "none",
     .help = "functions the template tells the model about",
     .set = [](F& f, const Json& v) { f.tools = v; }},
    {.name = "tool_choice",
     .type = Type::kAny,
     .endpoints = kChat,
     .max_bytes = kLabelBytes,
     .fallback = "auto",
     .help = "none: the template is not told of the tools; auto",
     .set = set_tool_choice},
    {.name = "response_format",
     .type = Type::kObject,
     .endpoints = kGeneration,
     .max_bytes = 1 << 20,
     .fallback = "{\"type\": \"text\"}",
     .help = "only text",
     .set = set_response_format},

    // The request itself
    {.name = "priority",
     .type = Type::kInteger,
     .min = -kIntMax,
     .max = kIntMax,
     .fallback = "0",
     .help = "lower is served first, with --scheduling-policy priority",
     .set = [](F& f, const Json& v) { f.priority = v.get<int>(); }},
    {.name = "cache_salt",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "prefixes are shared only between requests of equal salt and API key",
     .set = [](F& f, const Json& v) { f.cache_salt = v.get<std::string>(); }},
    {.name = "user",
     .type = Type::kString,
     .endpoints = kGeneration | kPooling,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "a label; changes nothing"},
    {.name = "safety_identifier",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "a label; changes nothing"},
    {.name = "prompt_cache_key",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "a label; prefixes are found without it"},
    {.name = "metadata",
     .type = Type::kObject,
     .max_bytes = 64 << 10,
     .fallback = "none",
     .help = "labels; change nothing"},

    // Known, and refused rather than ignored
    refused("suffix", R"([""])", {}, kCompletions),
    refused("audio", {}, {}, kChat),
    refused("modalities", R"([["text"]])", {}, kChat),
    refused("functions", "[[]]", "Use 'tools'", kChat),
    refused("function_call", R"(["none"])", "Use 'tool_choice'", kChat),
    refused("parallel_tool_calls", "[true]", {}, kChat),
    refused("prediction", {}, {}, kChat),
    refused("store", "[false]", {}, kChat),
    refused("web_search_options", {}, {}, kChat),
    refused("reasoning_effort", {}, {}, kChat),
    refused("verbosity", R"(["medium"])", {}, kChat),
    refused("service_tier", R"(["auto", "default"])"),
    // Output cannot be constrained yet.
    refused("guided_json"),
    refused("guided_regex"),
    refused("guided_choice"),
    refused("guided_grammar"),
    refused("guided_decoding_backend"),
    refused("guided_whitespace_pattern"),
    refused("structural_tag"),
    refused("structured_outputs"),
    refused("grammar", R"([""])"),
    refused("grammar_lazy", "[false]"),
    refused("json_schema"),
    refused("regex"),
    refused("ebnf"),
    refused("stop_regex", R"([[], ""])", "Use 'stop'"),
    // Samplers
    refused("typical_p", "[1]"),
    refused("typical", "[1]"),
    refused("tfs_z", "[1]"),
    refused("top_n_sigma", "[-1, 0]"),
    refused("nsigma", "[-1, 0]"),
    refused("top_a", "[0]"),
    refused("epsilon_cutoff", "[0]"),
    refused("eta_cutoff", "[0]"),
    refused("smoothing_factor", "[0]"),
    refused("dry_multiplier", "[0]"),
    refused("xtc_probability", "[0]"),
    refused("mirostat", "[0]"),
    refused("mirostat_mode", "[0]"),
    refused("dynatemp_range", "[0]"),
    refused("dynamic_temperature", "[false]"),
    refused("no_repeat_ngram_size", "[0]"),
    refused("min_keep", "[0, 1]"),
    refused("samplers"),
    refused("sampling_seed", {}, "Use 'seed'"),
    refused("repeat_penalty", "[1]", "Use 'repetition_penalty'"),
    refused("bad_words", "[[]]", "Use 'logit_bias'"),
    refused("logits_processors", "[[]]", "Use 'logit_bias'"),
    refused("custom_logit_processor", {}, "Use 'logit_bias'"),
    refused("use_beam_search", "[false]"),
    refused("num_beams", "[1]"),
    refused("length_penalty", "[1]"),
    refused("early_stopping", "[false]"),
    refused("thinking_token_budget"),
    refused("thinking_budget_tokens"),
    refused("reasoning_budget", "[-1]"),
    refused("max_new_tokens", {}, "Use 'max_tokens'"),
    refused("min_new_tokens", {}, "Use 'min_tokens'"),
    refused("n_predict", {}, "Use 'max_tokens'"),
    refused("n_probs", "[0]", "Use 'logprobs'"),
    // Adapters, Ollama's fields, and what changes the answer's form
    refused("lora_request"),
    refused("lora_path"),
    refused("lora", "[[]]"),
    refused("options", "[{}]", "Use fields of the request itself"),
    refused("format", R"([""])"),
    refused("think"),
    refused("truncate_prompt_tokens"),
    refused("prompt_embeds", {}, {}, kCompletions),
    refused("spaces_between_special_tokens", "[true]"),
    refused("return_tokens_as_token_ids", "[false]"),
    refused("return_token_ids", "[false]"),
    refused("chat_template", {}, "Set it with --chat-template", kChat | kTokenize),
    refused("continue_final_message", "[false]", {}, kChat | kTokenize),
    refused("documents", {}, {}, kChat),
    refused("mm_processor_kwargs", {}, {}, kChat | kTokenize),
    refused("kv_transfer_params"),
    refused("vllm_xargs"),

    // Settings of samplers that are refused unless they are off
    companion("dry_base", Type::kNumber, "a setting of 'dry_multiplier', which must be 0; changes nothing"),
    companion("dry_allowed_length", Type::kNumber, "a setting of 'dry_multiplier', which must be 0; changes nothing"),
    companion("dry_penalty_last_n", Type::kNumber, "a setting of 'dry_multiplier', which must be 0; changes nothing"),
    companion("dry_sequence_breakers", Type::kAny, "a setting of 'dry_multiplier', which must be 0; changes nothing"),
    companion("xtc_threshold", Type::kNumber, "a setting of 'xtc_probability', which must be 0; changes nothing"),
    companion("mirostat_tau", Type::kNumber, "a setting of 'mirostat', which must be 0; changes nothing"),
    companion("mirostat_eta", Type::kNumber, "a setting of 'mirostat', which must be 0; changes nothing"),
    companion("dynatemp_exponent", Type::kNumber, "a setting of 'dynatemp_range', which must be 0; changes nothing"),
    companion("repeat_last_n", Type::kNumber, "a setting of 'repeat_penalty', which must be 1; changes nothing"),
});

}  // namespace

std::span<const Parameter> parameters() { return kTable; }

}  // namespace sluice::server
