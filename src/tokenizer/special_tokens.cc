// Reads the special tokens that transformers stores next to a vocabulary.
#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "tokenizer/models/vocab.h"

namespace sluice::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr auto kNames = std::to_array<std::string_view>(
    {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"});
constexpr auto kLists = std::to_array<std::string_view>({"additional_special_tokens", "extra_special_tokens"});
constexpr auto kFlags = std::to_array<const char*>({"single_word", "lstrip", "rstrip", "normalized", "special"});

Json read_optional(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json::object();
  Json json = read_json_file(path);
  Field(json, path).expect(json.is_object(), "an object");
  return json;
}

// Reads "<s>" or {"content": "<s>", ...} as an added token without an ID.
Json token_of(const Field& field, bool special) {
  if (field.json().is_string()) return added_token(-1, field.string(), special);
  Json token = added_token(-1, field.at("content").string(), special);
  for (const char* flag : kFlags) {
    if (const auto value = field.find(flag)) token[flag] = value->boolean();
  }
  if (special) token["special"] = true;
  return token;
}

// An array of added tokens, indexed by text.
class AddedList {
 public:
  explicit AddedList(Json& tokens) : tokens_(tokens) {
    if (tokens_.is_null()) tokens_ = Json::array();
    if (!tokens_.is_array()) return;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const Json& token = tokens_[i];
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) continue;
      if (!token.contains("id") || !token["id"].is_number_integer()) continue;
      places_.emplace(token["content"].get<std::string>(), i);
      highest_ = std::max<int64_t>(highest_, std::min<int64_t>(token["id"].get<int64_t>(), kMaxTokenId));
    }
  }

  std::optional<size_t> find(const std::string& content) const {
    const auto found = places_.find(content);
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }
  // Replaces the token with the same text and keeps its ID. If "added_tokens" is not an array, it is left alone: the
  // loader of added tokens reports it.
  void place(Json token) {
    if (!tokens_.is_array()) return;
    const auto known = find(token["content"].get<std::string>());
    if (known) {
      token["id"] = tokens_[*known]["id"];
      tokens_[*known] = std::move(token);
      return;
    }
    highest_ = std::max<int64_t>(highest_, token["id"].get<int64_t>());
    places_.emplace(token["content"].get<std::string>(), tokens_.size());
    tokens_.push_back(std::move(token));
  }
  TokenId highest() const { return static_cast<TokenId>(highest_); }

 private:
  Json& tokens_;
  std::unordered_map<std::string, size_t> places_;
  int64_t highest_ = -1;
};

}  // namespace

Json added_token(TokenId id, std::string_view content, bool special) {
  return {{"id", id},
          {"content", std::string(content)},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", special}};
}

SpecialTokens::SpecialTokens(const fs::path& folder)
    : config_path_((folder / "tokenizer_config.json").string()),
      map_path_((folder / "special_tokens_map.json").string()),
      added_path_((folder / "added_tokens.json").string()),
      config_(read_optional(config_path_)),
      map_(read_optional(map_path_)),
      added_(read_optional(added_path_)) {}

std::string_view SpecialTokens::tokenizer_class() const {
  const auto field = Field(config_, config_path_).find("tokenizer_class");
  std::string_view name = field ? field->string() : "";
  if (name.ends_with("Fast") && name != "PreTrainedTokenizerFast") name.remove_suffix(4);
  return name;
}

std::optional<bool> SpecialTokens::flag(std::string_view key) const {
  const auto field = Field(config_, config_path_).find(key);
  return field ? std::optional(field->boolean()) : std::nullopt;
}

const Json* SpecialTokens::find_named(std::string_view key) const {
  for (const Json* json : {&config_, &map_}) {
    const auto found = json->find(std::string(key));
    if (found != json->end() && !found->is_null() && !found->is_boolean()) return &*found;
  }
  return nullptr;
}

std::optional<std::string> SpecialTokens::named(std::string_view key) const {
  const Json* value = find_named(key);
  if (value == nullptr) return std::nullopt;
  return token_of(Field(*value, config_path_, std::string(key)), true).at("content").get<std::string>();
}

// Returns the special tokens in the order in which transformers assigns IDs.
std::vector<Json> SpecialTokens::special() const {
  std::vector<Json> tokens;
  const auto add = [&](const Field& field) {
    Json token = token_of(field, true);
    if (token["content"] != "") tokens.push_back(std::move(token));
  };
  for (const std::string_view name : kNames) {
    if (const Json* value = find_named(name)) add(Field(*value, config_path_, std::string(name)));
  }
  for (const std::string_view name : kLists) {
    const Json* list = find_named(name);
    if (list == nullptr) continue;
    const Field field(*list, config_path_, std::string(name));
    field.expect(list->is_array() || list->is_object(), "a list of tokens");
    for (const Json& value : *list) add(Field(value, config_path_, std::string(name)));
  }
  return tokens;
}

void SpecialTokens::add_given(Json& added_tokens) const {
  AddedList list(added_tokens);
  if (const auto decoder = Field(config_, config_path_).find("added_tokens_decoder")) {
    decoder->expect(decoder->json().is_object(), "an object");
    std::vector<std::pair<TokenId, Json>> entries;
    for (const auto& [key, value] : decoder->json().items()) {
      TokenId id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
        decoder->corrupt(fmt::format("\"{}\" is not a valid ID (expected 0 to {})", key, kMaxTokenId));
      }
      Json token = token_of(Field(value, config_path_, "added_tokens_decoder." + key), false);
      token["id"] = id;
      entries.emplace_back(id, std::move(token));
    }
    std::ranges::sort(entries, {}, [](const auto& entry) { return entry.first; });
    for (auto& [id, token] : entries) list.place(std::move(token));
  }
  for (const auto& [text, id] : added_.items()) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      Field(added_, added_path_)
          .corrupt(fmt::format("\"{}\": {} is not a valid ID (expected 0 to {})", text, id.dump(), kMaxTokenId));
    }
    if (!list.find(text)) list.place(added_token(id.get<TokenId>(), text, false));
  }
}

void SpecialTokens::add_special(Json& added_tokens, int vocab_size,
                                const std::function<std::optional<TokenId>(std::string_view)>& find) const {
  AddedList list(added_tokens);
  const bool decoder_given = config_.contains("added_tokens_decoder");
  for (Json& token : special()) {
    const auto content = token["content"].get<std::string>();
    if (const auto known = list.find(content)) {
      // added_tokens.json does not mark its special tokens.
      if (!decoder_given && added_.contains(content)) added_tokens[*known]["special"] = true;
      continue;
    }
    token["id"] = find(content).value_or(std::max(list.highest() + 1, vocab_size));
    list.place(std::move(token));
  }
}

}  // namespace sluice::tokenizer
