// Reads end tokens and chat templates of GGUF files.
#include "formats/gguf/text.h"

#include <algorithm>
#include <array>

#include "base/json.h"

namespace sluice {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

// Returns the token ID of a key; nullopt when absent. Throws when the ID is outside the vocabulary.
std::optional<int32_t> token_id(const GgufMetadata& metadata, std::string_view key) {
  const auto id = metadata.integer(key);
  if (!id || *id == -1 || *id == UINT32_MAX) return std::nullopt;  // how converters write "none"
  if (*id < 0 || static_cast<size_t>(*id) >= metadata.texts(kTokens).size()) {
    metadata.fail(key, "is not a valid token ID");
  }
  return static_cast<int32_t>(*id);
}

constexpr auto kEndKeys = std::to_array<std::string_view>(
    {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"});

// Tokens that end a turn in common conversation formats. Many files name only one of their end tokens.
constexpr auto kEndTexts =
    std::to_array<std::string_view>({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
                                     "<|eom_id|>", "<EOT>", "<|end_of_text|>", "<turn|>"});

}  // namespace

std::vector<int32_t> gguf_end_tokens(const GgufMetadata& metadata) {
  std::vector<int32_t> ends;
  const auto add = [&](int32_t id) {
    if (std::ranges::count(ends, id) == 0) ends.push_back(id);
  };
  for (std::string_view key : kEndKeys) {
    if (const auto id = token_id(metadata, key)) add(*id);
  }
  constexpr int64_t kControl = 3, kUserDefined = 4;
  const std::vector<std::string_view>& tokens = metadata.texts(kTokens);
  const std::vector<int64_t> types = metadata.integers("tokenizer.ggml.token_type");
  for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i) {
    const bool special = types[i] == kControl || types[i] == kUserDefined;
    if (special && std::ranges::count(kEndTexts, tokens[i]) > 0) add(static_cast<int32_t>(i));
  }
  return ends;
}

std::string gguf_tokenizer_config(const GgufMetadata& metadata) {
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  const auto main = metadata.text(kTemplate);
  if (!main) return {};
  Json config = Json::object();
  // More templates are listed by name and stored under "tokenizer.chat_template.NAME".
  const std::vector<std::string_view>& names = metadata.texts("tokenizer.chat_templates");
  Json list = Json::array({Json{{"name", "default"}, {"template", std::string(*main)}}});
  for (std::string_view name : names) {
    const std::string key = std::string(kTemplate) + "." + std::string(name);
    if (const auto text = metadata.text(key)) {
      list.push_back({{"name", std::string(name)}, {"template", std::string(*text)}});
    }
  }
  config["chat_template"] = std::move(list);
  const std::vector<std::string_view>& tokens = metadata.texts(kTokens);
  for (const char* name : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"}) {
    std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    if (std::string_view(name) == "unk") key = "tokenizer.ggml.unknown_token_id";
    if (std::string_view(name) == "sep") key = "tokenizer.ggml.seperator_token_id";  // llama.cpp's spelling
    if (std::string_view(name) == "pad") key = "tokenizer.ggml.padding_token_id";
    if (const auto id = token_id(metadata, key)) config[std::string(name) + "_token"] = std::string(tokens[*id]);
  }
  return dump_json(config);
}

}  // namespace sluice
