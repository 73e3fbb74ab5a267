// Finds a checkpoint's chat templates, collects the variables of a rendering and protects them from overrides.
#include "chat/chat_template.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/folder.h"
#include "chat/builtin_templates.h"
#include "chat/jinja/lexer.h"
#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: cannot read the file", path.string()));
  return text;
}

// Throws Error(kNotFound) if --chat-template names neither a file nor a template.
void expect_file(const std::string& given) {
  std::error_code ignored;
  if (fs::exists(given, ignored)) return;
  throw Error(
      ErrorCode::kNotFound,
      fmt::format("--chat-template: there is no file '{}' (expected a Jinja file, a template in one line, or one "
                  "of: {})",
                  given, builtin_template_names()));
}

using Source = TemplateSource;
using Sources = std::map<std::string, Source>;

void read_config_templates(const Json& config, const std::string& file, Sources& sources) {
  const auto templates = config.find("chat_template");
  if (templates == config.end() || templates->is_null()) return;
  if (templates->is_string()) {
    sources["default"] = {templates->get<std::string>(), file};
    return;
  }
  const auto is_entry = [](const Json& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
           entry["template"].is_string();
  };
  if (!templates->is_array() || !std::all_of(templates->begin(), templates->end(), is_entry)) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: chat_template must be a string or a list of name and template", file));
  }
  for (const Json& entry : *templates) {
    sources[entry["name"].get<std::string>()] = {entry["template"].get<std::string>(), file};
  }
}

// Reads bos_token and similar keys. A token is a string, or an object with its text in "content".
void read_special_tokens(const Json& config, Json& tokens) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) tokens[key] = value;
    if (value.is_object() && value.contains("content") && value["content"].is_string()) tokens[key] = value["content"];
  }
}

jinja::Template parse(const Source& source) {
  try {
    return jinja::Template(source.text);
  } catch (const Error& e) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", source.file, e.what()));
  }
}

[[noreturn]] void refuse_kwarg(const std::string& key) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("chat_template_kwargs must not contain '{}'", key),
              "chat_template_kwargs", "");
}

void refuse_nested_template(const Json& value) {
  if (!value.is_structured()) return;
  for (const auto& item : value.items()) {
    if (value.is_object() && item.key() == "chat_template") refuse_kwarg(item.key());
    refuse_nested_template(item.value());
  }
}

// Refuses variables that belong to the request's own fields or to the checkpoint.
void check_kwargs(const Json& kwargs) {
  if (kwargs.is_null()) return;
  if (!kwargs.is_object()) {
    throw Error(ErrorCode::kInvalidRequest, "chat_template_kwargs must be an object", "chat_template_kwargs",
                "invalid_type");
  }
  constexpr std::string_view kReserved[] = {"messages",
                                            "tools",
                                            "documents",
                                            "add_generation_prompt",
                                            "chat_template",
                                            "tokenize",
                                            "conversation",
                                            "continue_final_message",
                                            "return_dict",
                                            "return_tensors",
                                            "padding",
                                            "truncation",
                                            "max_length",
                                            "tokenizer_kwargs",
                                            "return_assistant_tokens_mask",
                                            "raise_exception",
                                            "strftime_now",
                                            "additional_special_tokens"};
  for (const auto& [key, value] : kwargs.items()) {
    const bool reserved = std::find(std::begin(kReserved), std::end(kReserved), key) != std::end(kReserved);
    if (reserved || key.ends_with("_token")) refuse_kwarg(key);
    refuse_nested_template(value);
  }
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::from_folder(const std::string& folder, const std::string& given) {
  Sources sources;
  Json tokens = Json::object();
  const fs::path root(folder);
  if (const fs::path file = root / "special_tokens_map.json"; fs::exists(file)) {
    const Json map = read_json_file(file.string());
    if (map.is_object()) read_special_tokens(map, tokens);
  }
  if (const fs::path file = root / "tokenizer_config.json"; fs::exists(file)) {
    const Json config = read_json_file(file.string());
    if (config.is_object()) {
      read_special_tokens(config, tokens);
      read_config_templates(config, file.string(), sources);
    }
  }
  if (const fs::path file = root / "chat_template.jinja"; fs::exists(file)) {
    sources["default"] = {read_text(file), file.string()};
  }
  if (const fs::path extra = root / "additional_chat_templates"; fs::is_directory(extra)) {
    std::error_code unreadable;
    for (const std::string& name : names_in(extra, unreadable)) {
      const fs::path file = extra / name;
      if (file.extension() == ".jinja") sources[file.stem().string()] = {read_text(file), file.string()};
    }
    if (unreadable) {
      throw Error(ErrorCode::kNotFound, fmt::format("{}: {}", extra.string(), unreadable.message()));
    }
  }

  return choose(std::move(sources), std::move(tokens), given);
}

std::optional<ChatTemplate> ChatTemplate::from_config(const std::string& text, const std::string& name,
                                                      const std::string& given) {
  Sources sources;
  Json tokens = Json::object();
  const Json config = parse_json(text);
  read_special_tokens(config, tokens);
  read_config_templates(config, name, sources);
  return choose(std::move(sources), std::move(tokens), given);
}

std::optional<ChatTemplate> ChatTemplate::choose(Sources sources, Json tokens, const std::string& given) {
  // A template in one line has marks that no file's name has.
  const bool in_line = given.find("{{") != std::string::npos || given.find("{%") != std::string::npos;
  const std::optional<std::string> builtin = builtin_template(given);
  if (in_line || builtin) {
    sources = {{"default", {builtin.value_or(given), "--chat-template"}}};
  } else if (!given.empty()) {
    expect_file(given);
    sources = {{"default", {read_text(given), given}}};
  }
  const auto main = sources.find("default");
  const auto with_tools = sources.find("tool_use");
  if (main == sources.end() && with_tools == sources.end()) return std::nullopt;
  const TemplateSource& source = (main != sources.end() ? main : with_tools)->second;
  ChatTemplate out(parse(source), std::move(tokens), (with_tools != sources.end() ? with_tools->second : source).text);
  if (with_tools != sources.end()) out.with_tools_ = parse(with_tools->second);
  out.builtin_ = builtin.has_value();
  return out;
}

ChatTemplate ChatTemplate::from_source(std::string_view source, Json special_tokens) {
  return {jinja::Template(source), std::move(special_tokens), std::string(source)};
}

// Renders the conversation with a mark after its last message, and ends at the mark, as transformers does. A template
// that trims messages takes the mark's space away; then the end of the message is trimmed, too.
std::string ChatTemplate::render_unfinished(const ChatInput& input, std::chrono::system_clock::time_point now) const {
  constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG", kSpacedMark = "CONTINUE_FINAL_MESSAGE_TAG ";
  const auto refuse = [](const char* why) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("Invalid 'continue_final_message': {}.", why),
                "continue_final_message", "invalid_value");
  };
  if (input.add_generation_prompt) refuse("it cannot be true together with 'add_generation_prompt'");
  ChatInput marked = input;
  marked.continue_final_message = false;
  Json& last = marked.messages.back();
  const auto content = last.find("content");
  if (content == last.end() || !content->is_string()) refuse("the last message must have a text");
  const std::string before = content->get<std::string>();
  *content = before + std::string(kSpacedMark);
  std::string text = render(marked, now);
  const size_t end = text.rfind(kMark);
  if (end == std::string::npos) refuse("the chat template does not show the last message");
  const bool keeps_spaces = std::string_view(text).substr(end, kSpacedMark.size()) == kSpacedMark;
  text.resize(end);
  if (!keeps_spaces) text.resize(text.find_last_not_of(" \t\n\r\f\v") + 1);
  return text;
}

std::string ChatTemplate::render(const ChatInput& input, std::chrono::system_clock::time_point now) const {
  if (input.continue_final_message) return render_unfinished(input, now);
  check_kwargs(input.kwargs);
  Json variables = special_tokens_.is_object() ? special_tokens_ : Json::object();
  if (input.kwargs.is_object()) {
    for (const auto& [key, value] : input.kwargs.items()) variables[key] = value;
  }
  const bool tools = input.tools.is_array() && !input.tools.empty();
  variables["messages"] = input.messages;
  variables["tools"] = tools ? input.tools : Json();
  variables["documents"] = input.documents;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  return render_all(variables, now);
}

std::string ChatTemplate::render_variables(const Json& variables, std::chrono::system_clock::time_point now) const {
  if (!variables.is_object()) throw Error(ErrorCode::kInvalidRequest, "template variables must be an object");
  Json all = special_tokens_.is_object() ? special_tokens_ : Json::object();
  for (const auto& [key, value] : variables.items()) all[key] = value;
  return render_all(all, now);
}

std::string ChatTemplate::render_all(const Json& variables, std::chrono::system_clock::time_point now) const {
  jinja::RenderOptions options;
  options.now = now;
  const auto tools = variables.find("tools");
  const bool has_tools = tools != variables.end() && tools->is_array() && !tools->empty();
  return (has_tools && with_tools_ ? *with_tools_ : main_).render(variables, options);
}

bool ChatTemplate::names_variable(std::string_view name) const {
  const std::vector<jinja::Token> tokens = jinja::tokenize(source_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool member = i > 0 && tokens[i - 1].kind == jinja::TokenKind::kOperator && tokens[i - 1].text == ".";
    if (tokens[i].kind == jinja::TokenKind::kName && tokens[i].text == name && !member) return true;
  }
  return false;
}

bool ChatTemplate::has_string(std::string_view text) const {
  return std::ranges::any_of(jinja::tokenize(source_), [&](const jinja::Token& token) {
    return token.kind == jinja::TokenKind::kString && token.text == text;
  });
}

}  // namespace sluice
