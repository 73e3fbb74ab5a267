// Finds the files of the tokenizer and the chat template.
#include "engine/text.h"

#include <fmt/core.h>

#include <filesystem>

#include "base/json.h"
#include "engine/load_draft.h"
#include "engine/sampling_defaults.h"
#include "sluice/error.h"

namespace sluice {
namespace {

[[noreturn]] void unknown_parser(const char* option, const std::string& name, const std::string& known) {
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("--{}: '{}' is not known (expected auto, none, or one of: {})", option, name, known), option,
              "invalid_value");
}

const ToolSyntax* tools_of(const std::string& name, const std::optional<ChatTemplate>& chat_template) {
  if (name == "none") return nullptr;
  if (name == "auto") return chat_template ? find_tool_syntax(chat_template->source()) : nullptr;
  if (const ToolSyntax* found = tool_syntax(name)) return found;
  unknown_parser("tool-call-parser", name, tool_syntax_names());
}

const ReasoningSyntax* reasoning_of(const std::string& name, const std::optional<ChatTemplate>& chat_template) {
  if (name == "none") return nullptr;
  if (name == "auto") return chat_template ? find_reasoning_syntax(chat_template->source()) : nullptr;
  if (const ReasoningSyntax* found = reasoning_syntax(name)) return found;
  unknown_parser("reasoning-parser", name, reasoning_syntax_names());
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options, const Checkpoint& checkpoint) {
  return Tokenizer::open(options.tokenizer.empty() ? checkpoint.folder : options.tokenizer);
}

std::optional<ChatTemplate> load_chat_template(const EngineOptions& options, const Checkpoint& checkpoint) {
  const std::string config = checkpoint.tokenizer_config();
  if (!config.empty()) return ChatTemplate::from_config(config, checkpoint.folder, options.chat_template);
  return ChatTemplate::from_folder(checkpoint.folder, options.chat_template);
}

AnswerSyntax find_answer_syntax(const EngineOptions& options, const std::optional<ChatTemplate>& chat_template) {
  if (!options.enable_auto_tool_choice) {
    throw Error(ErrorCode::kInvalidRequest,
                "--no-enable-auto-tool-choice: this is always on; --tool-call-parser none leaves calls in the text",
                "enable-auto-tool-choice", "invalid_value");
  }
  const AnswerSyntax syntax{.tools = tools_of(options.tool_call_parser, chat_template),
                            .reasoning = reasoning_of(options.reasoning_parser, chat_template)};
  if (const std::string why = conflict(syntax); !why.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "--tool-call-parser: " + why, "tool-call-parser", "invalid_value");
  }
  return syntax;
}

// The tokenizer's own settings; an empty object if there are none.
static Json tokenizer_settings(const EngineOptions& options, const Checkpoint& checkpoint) {
  Json settings;
  const std::string stored = options.tokenizer.empty() ? checkpoint.tokenizer_config() : std::string();
  const std::string folder = options.tokenizer.empty() ? checkpoint.folder : options.tokenizer;
  const std::filesystem::path file = std::filesystem::path(folder) / "tokenizer_config.json";
  std::error_code ignored;
  if (!stored.empty()) {
    settings = parse_json(stored);
  } else if (std::filesystem::is_regular_file(file, ignored)) {
    settings = read_json_file(file.string());
  }
  return settings.is_object() ? settings : Json::object();
}

TextEnds load_text_ends(const EngineOptions& options, const Checkpoint& checkpoint) {
  TextEnds ends{.tokenizer = load_tokenizer(options, checkpoint),
                .chat_template = load_chat_template(options, checkpoint),
                .sampling = sampling_defaults(options, checkpoint.generation),
                .template_kwargs = options.default_chat_template_kwargs};
  ends.syntax = find_answer_syntax(options, ends.chat_template);
  Json config = tokenizer_settings(options, checkpoint);
  if (ends.chat_template) config["chat_template"] = ends.chat_template->source();
  ends.config = dump_json(config);
  return ends;
}

static std::unique_ptr<Tokenizer> load_draft_tokenizer(const Checkpoint& draft) {
  try {
    return load_tokenizer({}, draft);
  } catch (const Error& e) {
    throw draft_model_error(e);
  }
}

void check_same_tokens(const Tokenizer& tokenizer, const Checkpoint& draft) {
  const std::unique_ptr<Tokenizer> other = load_draft_tokenizer(draft);
  const int tokens = std::max(tokenizer.vocab_size(), other->vocab_size());
  for (TokenId id = 0; id < tokens; ++id) {
    const std::string_view own = tokenizer.token_text(id), drafted = other->token_text(id);
    if (own == drafted) continue;
    throw draft_model_error({ErrorCode::kUnsupportedModel,
                             fmt::format("its tokenizer differs from the model's: token {} of {} is '{}' (expected "
                                         "'{}')",
                                         id, draft.folder, drafted, own)});
  }
}

}  // namespace sluice
