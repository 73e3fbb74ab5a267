// Rows of the fields, and what all completions of llama.cpp have in common.
#include "server/llamacpp/fields.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <limits>

#include "server/gate.h"
#include "server/llamacpp/adapters.h"
#include "server/llamacpp/format.h"
#include "server/llamacpp/settings.h"
#include "server/text_object.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostBiases = 1024;

// -1 and -2 stand for as many tokens as the context holds, and no other number is beyond it.
void set_n_predict(Fields& f, const Json& v) {
  const int tokens = v.get<int>();
  if (tokens == 0) throw invalid_value("n_predict", "Invalid 'n_predict': expected -2, -1 or at least 1, but got 0.");
  f.of<SamplingParams>().max_tokens = tokens > 0 ? std::optional(tokens) : std::nullopt;
  f.of<GenerationFields>().max_tokens_name = "n_predict";
}

void set_llama_seed(Fields& f, const Json& v) {
  const auto seed = v.get<int64_t>();
  f.of<SamplingParams>().seed = seed < 0 ? std::nullopt : std::optional(seed);
}

void set_response_fields(Fields& f, const Json& v) {
  auto& names = f.of<LlamaFields>().response_fields;
  if (v.is_string()) {
    names = {v.get<std::string>()};
  } else {
    names = v.get<std::vector<std::string>>();
  }
}

constexpr auto kLlamaSettings = std::to_array<Parameter>({
    {.name = "n_predict",
     .type = Type::kInteger,
     .min = -2,
     .max = kIntMax,
     .fallback = "-1",
     .help =
         "the most tokens to generate; unless the context is shifted, the answer ends where it does; -1 and -2: there",
     .set = set_n_predict},
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer by server-sent events",
     .set = assign<&GenerationFields::stream>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .fallback = "none",
     .help = "the text ends before the first of these strings",
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    {.name = "seed",
     .type = Type::kInteger,
     .min = -1,
     .max = 0x1p63,
     .fallback = "-1",
     .help = "makes sampling repeatable; -1: none",
     .set = set_llama_seed},
    {.name = "ignore_eos",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "generate beyond end-of-sequence tokens",
     .set = assign<&SamplingParams::ignore_eos>},
    {.name = "return_tokens",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "report the ids of the tokens",
     .set = assign<&LlamaFields::return_tokens>},
    {.name = "logit_bias",
     .type = Type::kAny,
     .max_bytes = 64 << 10,
     .fallback = "none",
     .help = "an object or an array of pairs: token ids, or texts for all their tokens, and what is added to their "
             "logits, or false: never",
     .set = assign<&LlamaFields::logit_bias>},
    {.name = "n_probs",
     .type = Type::kInteger,
     .min = 0,
     .max = 20,
     .fallback = "0",
     .help = "report the log-probability of each token, and of as many of the likeliest ones",
     .set = assign<&LlamaFields::n_probs>},
    {.name = "timings_per_token",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "report times and rates with each piece of a stream, not only at the end",
     .set = assign<&LlamaFields::timings_per_token>},
    {.name = "response_fields",
     .type = Type::kStrings,
     .max_items = 64,
     .max_bytes = 4096,
     .fallback = "all",
     .help = "the fields of the answer; 'a/b' is the field b of the object a",
     .set = set_response_fields},
    {.name = "cache_prompt",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "reuse what the prefix cache has of the prompt",
     .set = assign<&LlamaFields::cache_prompt>},
    {.name = "lora",
     .type = Type::kAny,
     .max_bytes = 64 << 10,
     .fallback = "what the model's name or POST /lora-adapters says",
     .help =
         "an array of adapters as {\"id\", \"scale\"}, with ids of /lora-adapters; one of them may have another scale "
         "than 0",
     .set = assign<&LlamaFields::lora>},
    refused("id_slot", "[-1]"),
    refused("min_keep", "[0]"),
    refused("n_discard", "[0]"),
    refused("n_indent", "[0]"),
    {.name = "n_keep",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "--context-keep",
     .help = "tokens at the start of the prompt that stay when the context is full, with --context-shift; -1: all",
     .set = assign<&GenerationFields::context_keep>},
    refused("post_sampling_probs", "[false]"),
    refused("t_max_predict_ms", "[0]"),
});

constexpr auto kLlamaParameters = joined(kLlamaSettings, sampling_rows_of<SamplingParameter::kLlamaCpp>());

// What is added to a logit; false stands for never.
float bias_of(const Json& value, const FieldPath& path) {
  if (value.is_boolean() && !value.get<bool>()) return -std::numeric_limits<float>::infinity();
  if (!value.is_number()) throw invalid_type(path, "one of a number or false", value);
  const double bias = value.get<double>();
  if (bias < -100 || bias > 100) {
    throw invalid_value(path, fmt::format("Invalid '{}': expected a number from -100 to 100, or false.", path.str()));
  }
  return static_cast<float>(bias);
}

// The tokens that a key stands for: an id, or the tokens of a text.
std::vector<TokenId> biased_tokens(const Call& call, const Json& key, const FieldPath& path) {
  if (key.is_number()) return {expect_token_id(key, path, call.info().vocab_size)};
  const std::string& text = expect_string(key, path);
  return tokenize_text(call, text, /*add_special_tokens=*/false, path);
}

std::vector<std::pair<TokenId, float>> biases(const Call& call, const Json& value) {
  const FieldPath path = "logit_bias";
  std::vector<std::pair<TokenId, float>> out;
  const auto add = [&](const std::vector<TokenId>& tokens, float bias) {
    for (const TokenId token : tokens) out.emplace_back(token, bias);
    if (out.size() <= kMostBiases) return;
    throw invalid_value(path, fmt::format("Invalid 'logit_bias': more than {} tokens.", kMostBiases));
  };
  if (value.is_object()) {
    for (const auto& [key, bias] : value.items()) {
      const FieldPath inner = path / key;
      TokenId id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      const bool is_id = error == std::errc() && end == key.data() + key.size();
      add(biased_tokens(call, is_id ? Json(id) : Json(key), inner), bias_of(bias, inner));
    }
    return out;
  }
  if (!value.is_array()) throw invalid_type(path, "one of an object or an array of pairs", value);
  for (size_t i = 0; i < value.size(); ++i) {
    const FieldPath pair = path[i];
    const Json& one = expect_array(value[i], pair, 2, 2);
    const FieldPath key = pair[0], bias = pair[1];
    add(biased_tokens(call, one[0], key), bias_of(one[1], bias));
  }
  return out;
}

}  // namespace

std::span<const Parameter> llama_parameters() { return kLlamaParameters; }

std::vector<TokenId> llama_tokens(const Call& call, const Json& prompt, bool add_special, const FieldPath& path) {
  if (prompt.is_object()) return tokenize_text(call, text_of_object(prompt, path), add_special, path);
  if (prompt.is_string()) return tokenize_text(call, prompt.get_ref<const std::string&>(), add_special, path);
  if (!prompt.is_array()) throw invalid_type(path, "one of a string or array of token ids and strings", prompt);
  std::vector<TokenId> tokens;
  expect_array(prompt, path, 1);
  for (size_t i = 0; i < prompt.size(); ++i) {
    const FieldPath where = path[i];
    if (!prompt[i].is_string()) {
      tokens.push_back(expect_token_id(prompt[i], where, call.info().vocab_size));
      continue;
    }
    const std::string& text = prompt[i].get_ref<const std::string&>();
    const std::vector<TokenId> more = tokenize_text(call, text, add_special && i == 0, where);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

Request llama_request(Call& call) {
  const auto& fields = call.fields.of<LlamaFields>();
  if (fields.logit_bias != nullptr) {
    call.fields.of<SamplingParams>().logit_bias = biases(call, *fields.logit_bias);
  }
  if (fields.n_probs > 0) call.fields.of<SamplingParams>().logprobs = fields.n_probs;
  // Prefixes are shared among requests of one salt only.
  if (!fields.cache_prompt) call.fields.of<GenerationFields>().cache_salt = "cache_prompt: false, " + random_id();
  Request request = base_request(call);
  if (fields.lora != nullptr) set_adapter(request, llama_adapter(call, *fields.lora));
  request.max_tokens_is_default = gives_way(call, request);
  return request;
}

void llama_generate(Call& call, std::vector<Request> requests, std::vector<std::string> prompts) {
  GenerationJob job;
  job.requests = std::move(requests);
  job.stream = call.fields.of<GenerationFields>().stream;
  job.headers = call.warnings();
  const auto& fields = call.fields.of<LlamaFields>();
  job.format = std::make_unique<LlamaFormat>(
      call.model.engine, LlamaAnswerOptions{.model = call.model.name,
                                            .prompts = std::move(prompts),
                                            .settings = llama_settings(job.requests.front().sampling, call.info()),
                                            .stream = job.stream,
                                            .tokens = fields.return_tokens,
                                            .top_tokens = fields.n_probs,
                                            .times_per_token = fields.timings_per_token,
                                            .fields = fields.response_fields});
  call.generate(std::move(job));
}

}  // namespace sluice::server
