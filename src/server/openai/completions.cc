// /v1/completions: one or several prompts, as text, tokens or vectors; echo.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/base64.h"
#include "server/openai/format.h"
#include "server/openai/grammar_fields.h"
#include "server/openai/module_fields.h"
#include "server/openai/reasoning_fields.h"
#include "server/openai/requests.h"
#include "server/openai/shared_fields.h"
#include "server/openai/transfer_fields.h"
#include "sluice/prompt_vectors.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

constexpr int kMaxTokens = 16;  // OpenAI's default
constexpr size_t kMaxPrompts = 2048;
constexpr size_t kVectorBytes = 1 << 30;  // of base64; bodies are smaller as a rule (--max-body-bytes)
constexpr size_t kMaxCopies = 4 << 20;    // bytes that the requests of all prompts have copies of
constexpr size_t kMaxSequences = 2048;    // prompts times n: one request must not fill the engine for hours

struct CompletionFields {
  const Json* prompt = nullptr;         // a string, or an array in one of the accepted forms
  const Json* prompt_embeds = nullptr;  // a string or an array of strings
  int best_of = 0;                      // 0: not given
  bool echo = false;
};

// A prompt that echo repeats in the answer.
struct Echo {
  std::string text;
  std::vector<TokenId> tokens;
};

struct CompletionOptions {
  std::vector<Echo> echo;        // one per prompt, or none
  bool prompt_logprobs = false;  // the client asked for them; echo alone does not count
  bool discard_output = false;   // echo with max_tokens 0: only the prompt is scored
};

// OpenAI writes tokens that are not text by themselves as "bytes:\xe2\x82".
std::string printable(std::string bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

class CompletionFormat final : public OpenAiFormat {
 public:
  CompletionFormat(std::shared_ptr<const Engine> engine, FormatOptions options, CompletionOptions more)
      : OpenAiFormat(std::move(engine), std::move(options)), more_(std::move(more)), held_(more_.echo.size()) {}

 private:
  std::string add(int prompt, int index, Choice& choice, Event& event) override {
    const auto p = static_cast<size_t>(prompt);
    if (more_.discard_output) choice.usage.completion_tokens = event.usage.completion_tokens = 0;
    if (!options_.stream || !options_.logprobs || more_.echo.empty()) return add_now(p, index, choice, event);
    // Every choice starts with the prompt's log probabilities, which come with the first event of choice 0.
    if (index % options_.n != 0 && !held_[p].released) {
      held_[p].events.emplace_back(index, &choice, std::move(event));
      return {};
    }
    std::string out = add_now(p, index, choice, event);
    held_[p].released = true;
    for (auto& [i, c, e] : std::exchange(held_[p].events, {})) out += add_now(p, i, *c, e);
    return out;
  }

  std::string add_now(size_t prompt, int index, Choice& choice, Event& event) {
    std::string text;
    Json logprobs;
    if (options_.logprobs) logprobs = empty_logprobs();
    std::string ids;
    if (options_.token_ids && options_.stream) {
      if (!choice.begun) ids = ",\"prompt_token_ids\":" + ids_text(prompts_[prompt]);
      if (!event.tokens.empty() && !more_.discard_output) ids += ",\"token_ids\":" + ids_text(event.tokens);
    }
    if (options_.stream && !choice.begun) begin(prompt, choice, text, logprobs);
    if (!more_.discard_output) {
      text += event_text(event);
      if (options_.logprobs) {
        for (const TokenLogprobs& token : text_logprobs(event, options_.keep_stop)) append(logprobs, choice, token);
      }
    }
    if (!options_.stream) {
      choice.text += text;
      if (options_.logprobs) concatenate(choice.logprobs, logprobs);
      return {};
    }
    const bool has_logprobs = options_.logprobs && !logprobs["tokens"].empty();
    if (text.empty() && !has_logprobs && !event.finish && ids.empty()) return {};
    return chunk(fmt::format(R"({{"index":{},"text":{},"logprobs":{},{}{}}})", index, dump_json(text),
                             has_logprobs ? dump_json(logprobs) : "null", finish_members(choice), ids),
                 event.usage);
  }

  // Prints what comes before the first generated token.
  void begin(size_t prompt, Choice& choice, std::string& text, Json& logprobs) {
    choice.begun = true;
    if (more_.echo.empty()) return;
    const Echo& echo = more_.echo[prompt];
    text = echo.text;
    if (!options_.logprobs) return;
    const std::vector<TokenLogprobs>& scored = prompt_logprobs_[prompt];
    for (size_t i = 0; i < echo.tokens.size(); ++i) {
      if (i > 0 && i < scored.size()) {
        append(logprobs, choice, scored[i]);
        continue;
      }
      logprobs["tokens"].push_back(name_of(echo.tokens[i]));
      logprobs["token_logprobs"].push_back(nullptr);
      logprobs["top_logprobs"].push_back(nullptr);
      advance(logprobs, choice, echo.tokens[i]);
    }
  }

  std::string name_of(TokenId id) const { return printable(token_name(id)); }

  static Json empty_logprobs() {
    return {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  }

  void append(Json& logprobs, Choice& choice, const TokenLogprobs& token) {
    logprobs["tokens"].push_back(name_of(token.token.id));
    logprobs["token_logprobs"].push_back(json_logprob(token.token.logprob));
    Json top = Json::object();
    for (const TokenLogprob& other : token.top) {
      if (static_cast<int>(top.size()) < options_.top_logprobs) {
        top[name_of(other.id)] = json_logprob(other.logprob);
      }
    }
    top[name_of(token.token.id)] = json_logprob(token.token.logprob);
    logprobs["top_logprobs"].push_back(std::move(top));
    advance(logprobs, choice, token.token.id);
  }

  void advance(Json& logprobs, Choice& choice, TokenId id) {
    logprobs["text_offset"].push_back(choice.characters);
    choice.characters += count_characters(engine_->token_bytes(id));
  }

  static void concatenate(Json& all, Json& more) {
    if (all.is_null()) all = empty_logprobs();
    for (auto& [key, list] : more.items()) {
      for (Json& value : list) all[key].push_back(std::move(value));
    }
  }

  Json whole_choice(int index, Choice& choice) override {
    const auto prompt = static_cast<size_t>(index / options_.n);
    Json logprobs;
    if (!more_.echo.empty()) {
      // The prompt goes before the output, whose offsets were counted from 0.
      Json prompt_part = empty_logprobs();
      std::string text;
      Choice start;
      begin(prompt, start, text, prompt_part);
      choice.text.insert(0, text);
      if (options_.logprobs) {
        for (Json& offset : choice.logprobs["text_offset"]) offset = offset.get<size_t>() + start.characters;
        logprobs = std::move(prompt_part);
      }
    }
    if (options_.logprobs) concatenate(logprobs, choice.logprobs);
    Json out = {{"index", index}, {"text", std::move(choice.text)}, {"logprobs", std::move(logprobs)}};
    out.update(parse_json(fmt::format("{{{}}}", finish_members(choice))));
    if (more_.discard_output) choice.tokens.clear();
    // vLLM's clients read the members, whether they were asked for or not.
    out["prompt_token_ids"] = options_.token_ids ? Json(prompts_[prompt]) : Json();
    out["token_ids"] = options_.token_ids ? Json(std::move(choice.tokens)) : Json();
    out["prompt_logprobs"] = more_.prompt_logprobs ? prompt_logprobs_json(*engine_, prompt_logprobs_[prompt]) : Json();
    return out;
  }

  // Events of a prompt's further choices that wait for the prompt's log probabilities.
  struct Held {
    std::vector<std::tuple<int, Choice*, Event>> events;
    bool released = false;
  };

  const CompletionOptions more_;
  std::vector<Held> held_;  // by prompt
};

// The prompts of a request, as a list.
struct PromptItem {
  const Json* value;  // a string or an array of token ids
  std::string path;
  bool vectors = false;  // the string is a tensor in base64
};

// The four forms of `prompt`.
std::vector<PromptItem> text_items(const Json& prompt) {
  constexpr std::string_view kExpected = "one of a string, array of token ids or array of such prompts";
  if (prompt.is_string()) return {{&prompt, "prompt"}};
  if (!prompt.is_array()) throw invalid_type("prompt", kExpected, prompt);
  expect_array(prompt, "prompt", 1);
  if (prompt[0].is_number()) return {{&prompt, "prompt"}};
  expect_array(prompt, "prompt", 1, kMaxPrompts);
  std::vector<PromptItem> items;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const std::string path = fmt::format("prompt[{}]", i);
    if (!prompt[i].is_string() && !prompt[i].is_array()) {
      throw invalid_type(path, "a string or an array of token ids", prompt[i]);
    }
    if (prompt[i].is_array()) expect_array(prompt[i], path, 1);
    items.push_back({&prompt[i], path});
  }
  return items;
}

// The two forms of `prompt_embeds`.
std::vector<PromptItem> vector_items(const Json& given) {
  if (given.is_string()) return {{.value = &given, .path = "prompt_embeds", .vectors = true}};
  if (!given.is_array()) throw invalid_type("prompt_embeds", "a string of base64 or an array of them", given);
  expect_array(given, "prompt_embeds", 0, kMaxPrompts);
  std::vector<PromptItem> items;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string path = fmt::format("prompt_embeds[{}]", i);
    if (!given[i].is_string()) throw invalid_type(path, "a string of base64", given[i]);
    items.push_back({.value = &given[i], .path = path, .vectors = true});
  }
  return items;
}

// Vectors come first, as in vLLM. An empty `prompt` beside them asks for nothing: OpenAI's client always sends one.
std::vector<PromptItem> prompt_items(const CompletionFields& fields) {
  std::vector<PromptItem> items;
  if (fields.prompt_embeds != nullptr) items = vector_items(*fields.prompt_embeds);
  const bool asks = fields.prompt != nullptr && !(fields.prompt->is_string() && *fields.prompt == "");
  if (!items.empty() && !asks) return items;
  if (fields.prompt == nullptr) throw missing_parameter("prompt");
  for (PromptItem& item : text_items(*fields.prompt)) items.push_back(std::move(item));
  if (items.size() > kMaxPrompts) {
    throw invalid_value("prompt_embeds", fmt::format("Invalid 'prompt_embeds': {} prompts together with 'prompt'. "
                                                     "Expected at most {}.",
                                                     items.size(), kMaxPrompts));
  }
  return items;
}

constexpr auto kCompletionParameters = std::to_array<Parameter>({
    {.name = "metadata",
     .type = Type::kObject,
     .max_bytes = 64 << 10,
     .fallback = "none",
     .help = "labels; change nothing"},
    {.name = "prompt",
     .type = Type::kAny,
     .max_bytes = kTextsBytes,
     .fallback = "required",
     .help = "a string, an array of token ids, or an array of such prompts, at most 2048",
     .set = assign<&CompletionFields::prompt>},
    {.name = "prompt_embeds",
     .type = Type::kAny,
     .max_bytes = kVectorBytes,
     .fallback = "none",
     .help = "prompts of vectors, as torch.save files in base64: one, or an array (--enable-prompt-embeds)",
     .set = assign<&CompletionFields::prompt_embeds>},
    {.name = "best_of",
     .type = Type::kInteger,
     .min = 0,
     .max = 128,
     .fallback = "n",
     .help =
         "so many choices are made (0: n), and the n with the best mean log probability are returned; not with stream",
     .set = assign<&CompletionFields::best_of>},
    {.name = "logprobs",
     .type = Type::kInteger,
     .min = 0,
     .max = 20,
     .fallback = "none",
     .help = "alternatives to report for each token; 0: only the token's own log probability",
     .set = assign<&SamplingParams::logprobs>},
    {.name = "echo",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "put the prompt before the text, and its log probabilities before those of the text",
     .set = assign<&CompletionFields::echo>},
    refused("suffix", R"([""])"),
});

// Bytes that the request of each prompt has a copy of.
size_t copied_bytes(Call& call) {
  const auto& sampling = call.fields.of<SamplingParams>();
  const auto& grammar = call.fields.of<GenerationFields>().grammar;
  return (grammar ? grammar->text.size() : 0) + sampling.logit_bias.size() * sizeof(sampling.logit_bias[0]) +
         (sampling.stop_token_ids.size() + call.fields.of<ModuleFields>().tokens.size()) * sizeof(TokenId);
}

// Checks rules between fields. `prompts` is the number of prompts.
void check_completion(Call& call, size_t prompts) {
  const auto& fields = call.fields.of<CompletionFields>();
  const auto n = static_cast<size_t>(call.fields.of<GenerationFields>().n);
  const size_t made = std::max(n, static_cast<size_t>(fields.best_of));
  if (fields.best_of != 0 && fields.best_of < static_cast<int>(n)) {
    throw invalid_value("best_of", fmt::format("Invalid 'best_of': it must be at least 'n', which is {}.", n));
  }
  if (made > n && call.fields.of<GenerationFields>().stream) {
    throw invalid_value("best_of", "Invalid 'best_of': answers cannot be streamed before the best ones are known.");
  }
  read_modules(call);
  if (fields.echo && !call.fields.of<ModuleFields>().modules.empty()) {
    throw unsupported_parameter("echo", "is not supported with 'prompt_modules'");
  }
  const size_t copied = copied_bytes(call);
  if (prompts > 1 && prompts * copied > kMaxCopies) {
    throw ApiError{
        .message = fmt::format("Invalid 'prompt': {} prompts with a grammar, modules and lists of tokens of {} bytes. "
                               "Expected at most {} bytes for all prompts together.",
                               prompts, copied, kMaxCopies),
        .param = "prompt",
        .code = "too_many_sequences"};
  }
  if (prompts * made <= kMaxSequences) return;
  throw ApiError{.message = fmt::format("Invalid 'n': {} prompts with {} choices each are {} sequences. Expected at "
                                        "most {} sequences in a request.",
                                        prompts, made, prompts * made, kMaxSequences),
                 .param = made > n ? "best_of" : "n",
                 .code = "too_many_sequences"};
}

void set_default_length(Call& call) {
  const auto& generation = call.fields.of<GenerationFields>();
  if (!generation.has_max_tokens && !generation.n_predict) call.fields.of<SamplingParams>().max_tokens = kMaxTokens;
}

// Puts the vectors of a tensor in base64 into a request.
void set_vectors(Call& call, const PromptItem& item, Request& request) {
  const ModelInfo& info = call.info();
  if (info.prompt_vector_width == 0) {
    throw ApiError{.message = fmt::format("Invalid '{}': start the server with --enable-prompt-embeds to give vectors "
                                          "in place of token ids.",
                                          item.path),
                   .param = item.path,
                   .code = "unsupported_parameter"};
  }
  if (call.fields.of<CompletionFields>().echo) {
    throw unsupported_parameter("echo", "is not supported with 'prompt_embeds': vectors have no text");
  }
  if (!request.modules.empty()) {
    throw unsupported_parameter("prompt_modules", "is not supported with 'prompt_embeds'");
  }
  const std::optional<std::string> file = decode_padded_base64(item.value->get_ref<const std::string&>());
  if (!file) throw invalid_value(item.path, fmt::format("Invalid '{}': expected base64.", item.path));
  request.prompt_vectors = call.engine().read_prompt_vectors(*file, item.path);
  request.prompt.assign(static_cast<size_t>(request.prompt_vectors->rows()), 0);
  // The model's default is for prompts of tokens.
  request.context_shift = call.fields.of<GenerationFields>().context_shift;
  set_context_shift(request, info.context_shift);
}

Request request_of(Call& call, const PromptItem& item) {
  Request request = base_request(call);
  request.best_of = call.fields.of<CompletionFields>().best_of;
  request.prompt_param = item.path;
  apply_modules(call, request);
  const auto append = [&](const std::vector<TokenId>& own) {
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
  };
  if (item.vectors) {
    set_vectors(call, item, request);
  } else if (item.value->is_string()) {
    const bool special = call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(true);
    const size_t accepted = request.truncate_prompt ? kBytesTruncated : kBytesAlways;
    append(tokenize_text(call, item.value->get_ref<const std::string&>(), special, item.path, accepted));
  } else {
    append(expect_token_ids(*item.value, item.path, call.info().vocab_size));
  }
  request.max_tokens_is_default = gives_way(call, request);
  fit_context(request, call.info().max_model_len, "prompt");
  return request;
}

void run_completion(Call& call) {
  expect_generates(call);
  const auto& fields = call.fields.of<CompletionFields>();
  const auto& generation = call.fields.of<GenerationFields>();
  auto& sampling = call.fields.of<SamplingParams>();
  check_generation(call, fields.echo);
  const std::vector<PromptItem> items = prompt_items(fields);
  check_completion(call, items.size());
  set_default_length(call);
  CompletionOptions more;
  more.discard_output = fields.echo && sampling.max_tokens == 0;
  more.prompt_logprobs = sampling.prompt_logprobs.has_value();
  const bool logprobs = sampling.logprobs.has_value();
  const int top = sampling.logprobs.value_or(0);
  if (more.discard_output) sampling.max_tokens = 1;
  if (fields.echo && logprobs) sampling.prompt_logprobs = std::max(top, sampling.prompt_logprobs.value_or(0));

  GenerationJob job;
  for (const PromptItem& item : items) {
    Request request = request_of(call, item);
    if (fields.echo) {
      more.echo.push_back({item.value->is_string() && !request.truncate_prompt
                               ? item.value->get<std::string>()
                               : call.engine().detokenize(request.prompt, false),
                           logprobs ? request.prompt : std::vector<TokenId>()});
    }
    apply_transfer(call, request, job.requests.size());
    job.requests.push_back(std::move(request));
  }
  check_prompt_logprobs(job.requests, "prompt_logprobs");
  job.stream = generation.stream;
  job.headers = call.warnings();
  job.format = std::make_unique<CompletionFormat>(call.model.engine,
                                                  FormatOptions{.id = "cmpl-" + call.request_id,
                                                                .object = "text_completion",
                                                                .chunk_object = "text_completion",
                                                                .model = call.model.name,
                                                                .fingerprint = fingerprint(call.info()),
                                                                .prompts = static_cast<int>(items.size()),
                                                                .n = generation.n,
                                                                .stream = generation.stream,
                                                                .include_usage = generation.include_usage,
                                                                .continuous_usage = generation.continuous_usage,
                                                                .logprobs = logprobs,
                                                                .top_logprobs = top,
                                                                .token_ids = generation.return_token_ids,
                                                                .tokens_as_ids = generation.return_tokens_as_token_ids,
                                                                .keep_stop = sampling.include_stop_str_in_output,
                                                                .kv_transfer = transfer_answer(call)},
                                                  std::move(more));
  call.generate(std::move(job));
}

const EndpointInfo kCompletions{
    .name = "completions",
    .dialect = &kOpenAi,
    .paths = {"/v1/completions"},
    .flags = Route::kGenerates,
    .help = "text completions",
    .parameters = completion_parameters(),
    .shared = {{"/invocations",
                [](const Json& body, Task) { return body.contains("prompt") || body.contains("prompt_embeds"); }}},
    .run = run_completion};
const Registry<EndpointInfo> registered_completions{kCompletions};

}  // namespace

std::vector<std::span<const Parameter>> completion_parameters() {
  return {model_parameter(),     generation_parameters(),        grammar_parameters(),
          kCompletionParameters, refused_reasoning_parameters(), special_token_parameter(),
          label_parameter(),     transfer_parameters(),          module_parameters(),
          foreign_parameters()};
}

// A request without its prompt, for callers that are no server.
static Request direct_request(Call& call) {
  expect_generates(call);
  const auto& fields = call.fields.of<CompletionFields>();
  if (fields.echo) throw unsupported_parameter("echo", "is not supported here: put the prompt before the text");
  check_generation(call, /*echo=*/false);
  check_completion(call, /*prompts=*/1);
  Request request = base_request(call);
  request.best_of = fields.best_of;
  apply_transfer(call, request);
  return request;
}

Request openai_completion_fields(Call& call) {
  if (call.fields.of<CompletionFields>().prompt_embeds != nullptr) {
    throw unsupported_parameter("prompt_embeds", "is not supported here: the prompt is given apart from these fields");
  }
  if (call.fields.of<ModuleFields>().given != nullptr) {
    throw unsupported_parameter("prompt_modules", "is not supported here: the prompt is given apart from these fields");
  }
  return direct_request(call);
}

Request openai_completion_request(Call& call) {
  direct_request(call);  // checks the fields
  const std::vector<PromptItem> items = prompt_items(call.fields.of<CompletionFields>());
  if (items.size() != 1) {
    throw invalid_value("prompt", fmt::format("Invalid 'prompt': expected one prompt, but got {}.", items.size()));
  }
  set_default_length(call);
  return request_of(call, items[0]);
}

}  // namespace sluice::server
