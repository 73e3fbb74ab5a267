// /infill: the text between a prefix and a suffix, with models whose tokenizer has tokens for it.
#include <fmt/core.h>

#include <array>

#include "server/llamacpp/fields.h"
#include "server/members.h"
#include "server/openai/grammar_fields.h"

namespace sluice::server::llamacpp::infill {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostExtra = 1024;

struct InfillFields {
  const Json* prefix = nullptr;
  const Json* suffix = nullptr;
  const Json* extra = nullptr;  // [{filename, text}]
  std::string prompt;
};

constexpr auto kInfill = std::to_array<Parameter>({
    {.name = "input_prefix",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "what goes before the answer: a string, or an array of token ids and strings",
     .set = assign<&InfillFields::prefix>},
    {.name = "input_suffix",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "what goes after it",
     .set = assign<&InfillFields::suffix>},
    {.name = "input_extra",
     .type = Type::kArray,
     .max_items = kMostExtra,
     .max_bytes = kTextBytes,
     .fallback = "none",
     .help = "further files, as objects with filename and text",
     .set = assign<&InfillFields::extra>},
    {.name = "prompt",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .fallback = "empty",
     .help = "what the answer begins with; it goes after the prefix",
     .set = assign<&InfillFields::prompt>},
});

// The first of these spellings that is a token of its own.
std::optional<TokenId> find_token(const Engine& engine, std::initializer_list<std::string_view> spellings) {
  for (const std::string_view spelling : spellings) {
    const std::vector<TokenId> tokens = engine.tokenize(spelling, false);
    if (tokens.size() == 1 && engine.token_text(tokens[0]) == spelling) return tokens[0];
  }
  return std::nullopt;
}

struct Marks {
  std::optional<TokenId> prefix, suffix, middle;
  std::optional<TokenId> repository, file, padding;
};

// By the spellings of Qwen, StarCoder, Granite, DeepSeek, Code Llama, CodeGemma and GLM.
Marks marks_of(const Engine& engine) {
  return {.prefix = find_token(engine, {"<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>",
                                        "<|code_prefix|>", "▁<PRE>", "<PRE>"}),
          .suffix = find_token(engine, {"<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>",
                                        "<|code_suffix|>", "▁<SUF>", "<SUF>"}),
          .middle = find_token(engine, {"<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>",
                                        "<|code_middle|>", "▁<MID>", "<MID>"}),
          .repository = find_token(engine, {"<|repo_name|>", "<|fim_repo|>", "<reponame>", "<fim-repo>", "<REPO>"}),
          .file = find_token(engine, {"<|file_sep|>", "<file_sep>", "<|file_separator|>"}),
          .padding = find_token(engine, {"<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>"})};
}

void append(std::vector<TokenId>& tokens, const std::vector<TokenId>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

// The other files, and a heading for the one that is filled in.
std::vector<TokenId> extra_tokens(Call& call, const Marks& marks, const Json* extra) {
  std::vector<TokenId> tokens;
  if (extra == nullptr || extra->empty()) return tokens;
  const FieldPath path = "input_extra";
  const auto text = [&](const std::string& words) { return tokenize_text(call, words, false, path); };
  if (marks.repository) {
    tokens.push_back(*marks.repository);
    append(tokens, text("myproject\n"));
  }
  const auto heading = [&](const std::string& name) {
    if (!marks.file) return append(tokens, text("\n\n--- snippet ---\n\n"));
    tokens.push_back(*marks.file);
    append(tokens, text(name + "\n"));
  };
  for (size_t i = 0; i < extra->size(); ++i) {
    const FieldPath where = path[i];
    const Json& file = expect_object((*extra)[i], where);
    const Json* name = member(file, "filename");
    heading(name == nullptr ? "tmp" : expect_string(*name, where / "filename"));
    append(tokens, text(required_string(file, "text", where)));
    note_unknown(file, where, {"filename", "text"}, call.unknown);
  }
  if (marks.file) heading("filename");
  return tokens;
}

void run(Call& call) {
  expect_generates(call);
  const auto& fields = call.fields.of<InfillFields>();
  const Engine& engine = call.engine();
  const Marks marks = marks_of(engine);
  if (!marks.prefix || !marks.suffix || !marks.middle) {
    throw ApiError{.status = 501,
                   .message = fmt::format("/infill is not supported by the model '{}': its tokenizer has no tokens for "
                                          "a prefix, a suffix and a middle, such as <|fim_prefix|>. Use a model that "
                                          "was trained to fill in, or /completion.",
                                          call.model.name)};
  }
  Request request = llama_request(call);
  request.prompt_param = "input_prefix";
  request.prompt = engine.tokenize("", true);  // what the tokenizer puts before a text
  append(request.prompt, extra_tokens(call, marks, fields.extra));
  request.prompt.push_back(*marks.prefix);
  append(request.prompt, llama_tokens(call, *fields.prefix, false, "input_prefix"));
  append(request.prompt, tokenize_text(call, fields.prompt, false, "prompt"));
  request.prompt.push_back(*marks.suffix);
  append(request.prompt, llama_tokens(call, *fields.suffix, false, "input_suffix"));
  request.prompt.push_back(*marks.middle);
  // Another file is not part of the answer.
  for (const auto& end : {marks.repository, marks.file, marks.padding}) {
    if (end) request.sampling.stop_token_ids.push_back(*end);
  }
  fit_context(request, call.info().max_model_len, "prompt");
  std::vector<std::string> prompts{engine.detokenize(request.prompt, false)};
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  llama_generate(call, std::move(requests), std::move(prompts));
}

const EndpointInfo endpoint{.name = "llama.cpp infill",
                            .dialect = &kLlamaCpp,
                            .paths = {"/infill"},
                            .flags = Route::kGenerates,
                            .help = "the text between a prefix and a suffix, with models that were trained for it",
                            .parameters = {model_parameter(), kInfill, llama_parameters(), grammar_parameters()},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::llamacpp::infill
