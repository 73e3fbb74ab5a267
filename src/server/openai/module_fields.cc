// See module_fields.h.
#include "server/openai/module_fields.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "server/engine_request.h"
#include "server/rows.h"
#include "sluice/context.h"

namespace sluice::server {
namespace {

constexpr std::string_view kModulesField = "prompt_modules";

struct GivenModule {
  const Json* prompt = nullptr;  // a string or an array of token ids
  int position = -1;
  bool special = true;
};

GivenModule read_module(const Json& value, const FieldPath& path) {
  GivenModule module;
  for (const auto& [key, member] : expect_object(value, path).items()) {
    const FieldPath inner = path / key;
    if (key == "prompt") {
      if (!member.is_string() && !member.is_array()) {
        throw invalid_type(inner, "a string or an array of token ids", member);
      }
      module.prompt = &member;
    } else if (key == "position") {
      if (!member.is_null()) module.position = static_cast<int>(expect_integer(member, inner, 0, INT32_MAX));
    } else if (key == "add_special_tokens") {
      module.special = expect_boolean(member, inner);
    } else {
      throw unsupported_parameter(inner, "is not known. A module has 'prompt', 'position' and 'add_special_tokens'");
    }
  }
  if (module.prompt == nullptr) throw missing_parameter(path / "prompt");
  return module;
}

constexpr auto kModules = std::to_array<Parameter>({
    {.name = kModulesField,
     .type = Parameter::Type::kArray,
     .max_items = kMostPromptModules,
     .max_bytes = kTextsBytes,
     .fallback = "none",
     .help = "texts before the prompt that are computed apart and cached in any combination, as objects with 'prompt', "
             "'position' and 'add_special_tokens', see prompt-modules.md",
     .set = assign<&ModuleFields::given>},
});

}  // namespace

std::span<const Parameter> module_parameters() { return kModules; }

// The texts together are held to what the context can have, before any of them is tokenized.
void read_modules(Call& call) {
  auto& fields = call.fields.of<ModuleFields>();
  if (fields.given == nullptr || !fields.modules.empty()) return;
  std::vector<GivenModule> given;
  size_t bytes = 0;
  const FieldPath field = kModulesField;
  for (const Json& value : *fields.given) {
    given.push_back(read_module(value, field[given.size()]));
    if (given.back().prompt->is_string()) bytes += given.back().prompt->get_ref<const std::string&>().size();
  }
  check_text_length(bytes, call.info().max_model_len, std::string(kModulesField));
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string path = fmt::format("{}[{}].prompt", kModulesField, i);
    const Json& prompt = *given[i].prompt;
    const std::vector<TokenId> tokens =
        prompt.is_string() ? tokenize_text(call, prompt.get_ref<const std::string&>(), given[i].special, path)
                           : expect_token_ids(prompt, path, call.info().vocab_size);
    if (tokens.empty()) throw invalid_value(path, fmt::format("Invalid '{}': it has no tokens.", path));
    fields.modules.push_back({.tokens = static_cast<int>(tokens.size()), .position = given[i].position});
    fields.tokens.insert(fields.tokens.end(), tokens.begin(), tokens.end());
  }
}

void apply_modules(Call& call, Request& request) {
  const auto& fields = call.fields.of<ModuleFields>();
  if (fields.modules.empty()) return;
  if (request.truncate_prompt) {
    throw unsupported_parameter("truncate_prompt_tokens", "is not supported with 'prompt_modules'");
  }
  request.modules = fields.modules;
  request.prompt = fields.tokens;
  request.context_shift = call.fields.of<GenerationFields>().context_shift;  // without the model's default
}

}  // namespace sluice::server
