// Builds a tokenizer from GGUF metadata. Where tokenizer.json has equivalent components, it builds their JSON.
// SentencePiece vocabularies have their own builder.
#include "tokenizer/files/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "sluice/error.h"
#include "tokenizer/files/sentencepiece.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

using PieceType = SentencePieceFile::PieceType;

// Appends without searching for the key: the texts are known to be unique.
void append(Json& object, std::string text, TokenId id) {
  using Entries = std::vector<std::pair<const std::string, Json>>;
  static_cast<Entries&>(object.get_ref<Json::object_t&>()).emplace_back(std::move(text), id);
}

class GgufTokenizerReader {
 public:
  explicit GgufTokenizerReader(const GgufMetadata& metadata) : metadata_(metadata) {
    for (std::string_view text : metadata.texts(kTokens)) {
      texts_.push_back(text.empty() ? fmt::format("[EMPTY_{}]", texts_.size()) : std::string(text));
    }
    if (texts_.empty()) metadata.fail(kTokens, "is missing", ErrorCode::kUnsupportedModel);
    check_texts();
    read_types();
  }

  std::unique_ptr<const Tokenizer::Parts> read() {
    const std::string_view model = metadata_.required_text("tokenizer.ggml.model");
    if (model == "gpt2") return byte_level();
    if (model == "llama") return sentencepiece(SentencePieceFile::Kind::kBpe);
    if (model == "t5") return sentencepiece(SentencePieceFile::Kind::kUnigram);
    if (model == "bert") return word_piece();
    if (model == "gemma4") return character_level();
    metadata_.fail(
        "tokenizer.ggml.model",
        fmt::format("unknown value {} (expected one of: gpt2, llama, t5, bert, gemma4)", dump_json(std::string(model))),
        ErrorCode::kUnsupportedModel);
  }

 private:
  static constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

  void check_texts() const {
    std::set<std::string_view> seen;
    for (const std::string& text : texts_) {
      if (valid_utf8_prefix(text) != text.size()) metadata_.fail(kTokens, "a token is not UTF-8");
      if (!seen.insert(text).second) metadata_.fail(kTokens, fmt::format("{} appears twice", dump_json(text)));
    }
  }

  void read_types() {
    constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
    types_.assign(texts_.size(), PieceType::kNormal);
    if (!metadata_.has(kTypes)) return;
    const std::vector<int64_t> types = metadata_.integers(kTypes);
    if (types.size() != texts_.size()) metadata_.fail(kTypes, "expected one entry per token");
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] < 0 || types[i] > static_cast<int64_t>(PieceType::kByte)) {
        metadata_.fail(kTypes, "unknown token type");
      }
      if (types[i] > 0) types_[i] = static_cast<PieceType>(types[i]);
    }
  }

  std::optional<TokenId> id(std::string_view name) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const auto value = metadata_.integer(key);
    if (!value || *value == -1 || *value == UINT32_MAX) return std::nullopt;
    if (*value < 0 || static_cast<size_t>(*value) >= texts_.size()) metadata_.fail(key, "is not a valid token ID");
    return static_cast<TokenId>(*value);
  }

  bool flag(std::string_view name, bool fallback) const {
    return metadata_.boolean(fmt::format("tokenizer.ggml.{}", name)).value_or(fallback);
  }

  // Returns the special tokens, and with `user_defined` also those that are matched before anything else.
  Json added_tokens(bool user_defined) const {
    Json added = Json::array();
    for (size_t i = 0; i < texts_.size(); ++i) {
      const bool special = types_[i] == PieceType::kControl || types_[i] == PieceType::kUnknown;
      if (special || (user_defined && types_[i] == PieceType::kUserDefined)) {
        added.push_back(added_token(static_cast<TokenId>(i), texts_[i], special));
      }
    }
    return added;
  }

  // Adds a template that puts tokens around a text.
  void put_around(Json& top, const std::vector<TokenId>& before, const std::vector<TokenId>& after) const {
    if (before.empty() && after.empty()) return;
    Json post = {{"type", "TemplateProcessing"}, {"single", Json::array()}, {"special_tokens", Json::object()}};
    const auto add = [&](TokenId token) {
      const std::string& text = texts_[static_cast<size_t>(token)];
      post["single"].push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      post["special_tokens"][text] = {{"id", text}, {"ids", {token}}, {"tokens", {text}}};
    };
    for (TokenId token : before) add(token);
    post["single"].push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    for (TokenId token : after) add(token);
    top["post_processor"] = std::move(post);
  }

  void put_ends(Json& top, bool begin, bool end) const {
    std::vector<TokenId> before, after;
    if (flag("add_bos_token", begin)) before = ids_or_fail("bos", "add_bos_token");
    if (flag("add_eos_token", end)) after = ids_or_fail("eos", "add_eos_token");
    put_around(top, before, after);
  }

  std::vector<TokenId> ids_or_fail(std::string_view name, std::string_view flag_name) const {
    if (const auto found = id(name)) return {*found};
    const std::string key = fmt::format("tokenizer.ggml.{}", flag_name);
    if (metadata_.has(key)) metadata_.fail(key, fmt::format("requires {}_token_id, which is missing", name));
    return {};
  }

  std::unique_ptr<const Tokenizer::Parts> finish(const Json& top, Encoder encoder) const {
    return std::make_unique<const Tokenizer::Parts>(Field(top, metadata_.file), std::move(encoder));
  }

  std::unique_ptr<const Tokenizer::Parts> byte_level() const {
    constexpr std::string_view kPre = "tokenizer.ggml.pre";
    const std::string_view name = metadata_.text(kPre).value_or("default");
    const GgufPreTokenizer* pre = find_gguf_pretokenizer(name);
    if (pre == nullptr) {
      metadata_.fail(kPre, fmt::format("unknown pre-tokenizer {}", dump_json(std::string(name))),
                     ErrorCode::kUnsupportedModel);
    }
    Json steps = Json::array();
    for (std::string_view pattern : pre->patterns) {
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", std::string(pattern)}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    }
    const bool prefix = flag("add_space_prefix", false);
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", false}});
    Json top = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
                {"decoder", {{"type", "ByteLevel"}}},
                {"added_tokens", added_tokens(true)}};
    top["model"] = {{"type", "BPE"}, {"ignore_merges", pre->ignore_merges}};
    put_merges(top);
    put_ends(top, pre->begin, false);
    return finish(top, load_encoder(Field(top, metadata_.file)));
  }

  void put_merges(Json& top) const {
    Json vocab = Json::object(), merges = Json::array();
    for (size_t i = 0; i < texts_.size(); ++i) append(vocab, texts_[i], static_cast<TokenId>(i));
    for (std::string_view merge : metadata_.texts("tokenizer.ggml.merges")) merges.push_back(std::string(merge));
    top["model"]["vocab"] = std::move(vocab);
    top["model"]["merges"] = std::move(merges);
  }

  // BPE of characters, with SentencePiece's spelling of spaces, and bytes for characters that the vocabulary lacks.
  // These are the components of Gemma 4's own tokenizer.json.
  std::unique_ptr<const Tokenizer::Parts> character_level() const {
    Json steps = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}},
                              {{"type", "ByteFallback"}},
                              {{"type", "Fuse"}}});
    Json top = {{"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceSymbol}}},
                {"decoder", {{"type", "Sequence"}, {"decoders", std::move(steps)}}},
                {"added_tokens", added_tokens(true)}};
    top["model"] = {{"type", "BPE"}, {"fuse_unk", true}, {"byte_fallback", true}};
    if (const auto unknown = id("unknown")) top["model"]["unk_token"] = texts_[static_cast<size_t>(*unknown)];
    put_merges(top);
    put_ends(top, true, false);
    return finish(top, load_encoder(Field(top, metadata_.file)));
  }

  std::unique_ptr<const Tokenizer::Parts> sentencepiece(SentencePieceFile::Kind kind) const {
    const bool bpe = kind == SentencePieceFile::Kind::kBpe;
    const SentencePieceFile file = sentencepiece_file(kind);
    SentencePieceParts parts = make_sentencepiece(file, DummyPrefix::kAlways, metadata_.file);
    Json top = {{"added_tokens", added_tokens(false)}};
    Json steps = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}},
                              {{"type", "ByteFallback"}},
                              {{"type", "Fuse"}}});
    if (file.add_dummy_prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    top["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(steps)}};
    put_ends(top, bpe, !bpe);
    return finish(top, {std::move(parts.normalizer), std::move(parts.pretokenizers), std::move(parts.model)});
  }

  SentencePieceFile sentencepiece_file(SentencePieceFile::Kind kind) const {
    const bool bpe = kind == SentencePieceFile::Kind::kBpe;
    constexpr std::string_view kScores = "tokenizer.ggml.scores";
    const std::vector<double> scores = metadata_.numbers(kScores);
    if (scores.size() != texts_.size()) metadata_.fail(kScores, "expected one entry per token");
    SentencePieceFile file{.kind = kind,
                           .add_dummy_prefix = flag("add_space_prefix", true),
                           .remove_extra_whitespaces = flag("remove_extra_whitespaces", false)};
    std::optional<TokenId> unknown = id("unknown");
    int bytes = 0;
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (!std::isfinite(scores[i])) metadata_.fail(kScores, "expected finite numbers");
      file.pieces.push_back({texts_[i], static_cast<float>(scores[i]), types_[i]});
      if (types_[i] == PieceType::kUnknown && !unknown) unknown = static_cast<TokenId>(i);
      if (types_[i] == PieceType::kByte) ++bytes;
    }
    file.byte_fallback = bytes == 256;
    file.unknown = unknown.value_or(bpe ? 0 : 2);  // defaults of the formats
    if (static_cast<size_t>(file.unknown) >= texts_.size()) {
      metadata_.fail(kTokens, "the unknown token is outside the vocabulary");
    }
    if (const GgufValue* map = metadata_.find("tokenizer.ggml.precompiled_charsmap"); map != nullptr) {
      const bool blob = map->array && (map->type == GgufValue::Type::kUint8 || map->type == GgufValue::Type::kInt8);
      if (!blob) metadata_.fail("tokenizer.ggml.precompiled_charsmap", "expected an array of bytes");
      file.charsmap.assign(reinterpret_cast<const char*>(map->data), map->count);
    }
    return file;
  }

  // llama.cpp marks the starts of words; the vocabulary's own files mark continuations.
  std::string word_piece_text(size_t i) const {
    const std::string& text = texts_[i];
    if (text.starts_with(kSpaceSymbol)) return text.substr(kSpaceSymbol.size());
    const bool bracketed = text.starts_with('[') && text.ends_with(']');
    return bracketed || types_[i] == PieceType::kControl ? text : "##" + text;
  }

  std::unique_ptr<const Tokenizer::Parts> word_piece() const {
    const auto unknown = id("unknown");
    if (!unknown) metadata_.fail("tokenizer.ggml.unknown_token_id", "is missing", ErrorCode::kUnsupportedModel);
    Json vocab = Json::object();
    std::set<std::string> seen;
    for (size_t i = 0; i < texts_.size(); ++i) {
      std::string text = word_piece_text(i);
      if (!seen.insert(text).second) metadata_.fail(kTokens, fmt::format("{} appears twice", dump_json(text)));
      append(vocab, std::move(text), static_cast<TokenId>(i));
    }
    Json top = {{"normalizer",
                 {{"type", "BertNormalizer"},
                  {"clean_text", true},
                  {"handle_chinese_chars", true},
                  {"strip_accents", nullptr},
                  {"lowercase", true}}},
                {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                {"added_tokens", added_tokens(true)}};
    top["model"] = {{"type", "WordPiece"},
                    {"unk_token", texts_[static_cast<size_t>(*unknown)]},
                    {"continuing_subword_prefix", "##"},
                    {"max_input_chars_per_word", 100}};
    top["model"]["vocab"] = std::move(vocab);
    std::vector<TokenId> before, after;
    const auto begin = id("cls") ? id("cls") : id("bos"), end = id("seperator") ? id("seperator") : id("eos");
    if (begin && flag("add_bos_token", true)) before = {*begin};
    if (end && (flag("add_sep_token", true) || flag("add_eos_token", false))) after = {*end};
    put_around(top, before, after);
    return finish(top, load_encoder(Field(top, metadata_.file)));
  }

  const GgufMetadata& metadata_;
  std::vector<std::string> texts_;  // indexed by ID
  std::vector<PieceType> types_;
};

}  // namespace

std::unique_ptr<const Tokenizer::Parts> read_gguf_tokenizer(const GgufMetadata& metadata) {
  return GgufTokenizerReader(metadata).read();
}

}  // namespace sluice::tokenizer
