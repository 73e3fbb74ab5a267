// Tokenizer::open: finds a model's tokenizer among its files and converts it to the form of tokenizer.json.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/folder.h"
#include "base/mmap.h"
#include "tokenizer/files/gguf_tokenizer.h"
#include "tokenizer/files/sentencepiece.h"
#include "tokenizer/files/tekken.h"
#include "tokenizer/files/tiktoken.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sluice {

using namespace tokenizer;

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kByteLevelDecoder =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";

bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: cannot read file", path.string()));
  return std::move(text).str();
}

// A template that puts tokens around a text. Tokens without an ID are skipped.
struct Around {
  std::vector<std::pair<std::string, TokenId>> before, after;

  Json json() const {
    if (before.empty() && after.empty()) return nullptr;
    Json out = {{"type", "TemplateProcessing"}, {"single", Json::array()}, {"special_tokens", Json::object()}};
    const auto add = [&](const auto& tokens) {
      for (const auto& [text, id] : tokens) {
        out["single"].push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
        out["special_tokens"][text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
      }
    };
    add(before);
    out["single"].push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    add(after);
    return out;
  }
};

// The tokens that a transformers class puts around a text, unless add_bos_token and add_eos_token override it.
struct ClassEnds {
  std::string_view name;
  bool begin, end;
};
constexpr auto kSentencePieceClasses = std::to_array<ClassEnds>({{"", true, false},
                                                                 {"LlamaTokenizer", true, false},
                                                                 {"CodeLlamaTokenizer", true, false},
                                                                 {"GemmaTokenizer", true, false},
                                                                 {"InternLMTokenizer", true, false},
                                                                 {"InternLM2Tokenizer", true, false},
                                                                 {"InternLM3Tokenizer", true, false},
                                                                 {"BaichuanTokenizer", true, false},
                                                                 {"OrionTokenizer", true, false},
                                                                 {"YiTokenizer", true, false},
                                                                 {"T5Tokenizer", false, true}});
// Classes that assign new IDs to SentencePiece's tokens.
constexpr auto kRenumbering =
    std::to_array<std::string_view>({"XLMRobertaTokenizer", "CamembertTokenizer", "MBartTokenizer", "MBart50Tokenizer",
                                     "NllbTokenizer", "XGLMTokenizer", "PegasusTokenizer", "BarthezTokenizer",
                                     "MarianTokenizer", "M2M100Tokenizer", "Speech2TextTokenizer"});

constexpr auto kWordPieceClasses = std::to_array<std::string_view>(
    {"", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"});

// A class with byte-level BPE in vocab.json and merges.txt.
struct ByteLevelClass {
  std::string_view name;
  bool begin = false, end = false;
  bool nfc = false;
  std::string_view pattern{};  // empty: GPT-2's pattern
};
constexpr auto kByteLevelClasses = std::to_array<ByteLevelClass>(
    {{.name = ""},
     {.name = "GPT2Tokenizer"},
     {.name = "CodeGenTokenizer"},
     {.name = "RobertaTokenizer", .begin = true, .end = true},
     {.name = "BartTokenizer", .begin = true, .end = true},
     {.name = "Qwen2Tokenizer",
      .nfc = true,
      .pattern =
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}});

template <class Classes>
const auto* find_class(const Classes& classes, std::string_view name) {
  const auto found = std::ranges::find_if(classes, [&](const auto& c) { return c.name == name; });
  return found == classes.end() ? nullptr : &*found;
}

Json byte_level_pretokenizer(std::string_view pattern, bool add_prefix_space) {
  Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", pattern.empty()}};
  if (pattern.empty()) return byte_level;
  Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {std::move(split), std::move(byte_level)}}};
}

class Source {
 public:
  explicit Source(const fs::path& file) : path_(file.string()), special_(file.parent_path()) {}

  std::unique_ptr<const Tokenizer::Parts> tokenizer_json() {
    top_ = read_json_file(path_);
    const Field top(top_, path_);
    Encoder encoder = load_encoder(top);
    return finish(std::move(encoder), {});
  }

  std::unique_ptr<const Tokenizer::Parts> tekken_json() {
    const Json json = read_json_file(path_);
    Tekken file = read_tekken(json, path_);
    top_["pre_tokenizer"] = byte_level_pretokenizer(file.pattern, false);
    top_["decoder"] = parse_json(kByteLevelDecoder);
    top_["added_tokens"] = std::move(file.added_tokens);
    const Field top(top_, path_);
    Encoder encoder{.normalizer = nullptr,
                    .pretokenizers = load_pretokenizers(top.at("pre_tokenizer")),
                    .model = std::move(file.model)};
    return finish(std::move(encoder), {.begin = special_.flag("add_bos_token").value_or(true),
                                       .end = special_.flag("add_eos_token").value_or(false),
                                       .begin_token = "<s>",
                                       .end_token = "</s>"});
  }

  std::unique_ptr<const Tokenizer::Parts> model_file() {
    const std::string bytes = read_file(path_);
    if (bytes.starts_with("version https://git-lfs")) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: this is a Git LFS pointer, not the file itself (run git lfs pull)", path_));
    }
    return looks_like_tiktoken(bytes) ? tiktoken(bytes) : sentencepiece(bytes);
  }

  // Builds byte-level BPE; `merges` is the text file next to the vocabulary.
  std::unique_ptr<const Tokenizer::Parts> byte_level(const fs::path& merges) {
    const ByteLevelClass* known = find_class(kByteLevelClasses, special_.tokenizer_class());
    if (known == nullptr) refuse_class();
    top_["normalizer"] = known->nfc ? Json{{"type", "NFC"}} : Json(nullptr);
    top_["pre_tokenizer"] = byte_level_pretokenizer(known->pattern, special_.flag("add_prefix_space").value_or(false));
    top_["model"] = {{"type", "BPE"}, {"vocab", read_json_file(path_)}, {"merges", read_merges(merges)}};
    top_["decoder"] = parse_json(kByteLevelDecoder);
    const bool cls = known->begin;
    return finish(
        load_encoder(Field(top_, path_)),
        {.begin = special_.flag("add_bos_token").value_or(known->begin),
         .end = special_.flag("add_eos_token").value_or(known->end),
         .begin_token = special_.named(cls ? "cls_token" : "bos_token").value_or(cls ? "<s>" : "<|endoftext|>"),
         .end_token = special_.named(cls ? "sep_token" : "eos_token").value_or(cls ? "</s>" : "<|endoftext|>")});
  }

  // Builds WordPiece: one token per line, and the line number is the ID.
  std::unique_ptr<const Tokenizer::Parts> word_piece() {
    const std::string_view name = special_.tokenizer_class();
    if (std::ranges::count(kWordPieceClasses, name) == 0) refuse_class();
    const auto flag = [&](std::string_view key, bool fallback) { return special_.flag(key).value_or(fallback); };
    const bool lowercase = flag("do_lower_case", true);
    top_["normalizer"] = {{"type", "BertNormalizer"},
                          {"clean_text", true},
                          {"handle_chinese_chars", flag("tokenize_chinese_chars", true)},
                          {"strip_accents", flag("strip_accents", lowercase)},
                          {"lowercase", lowercase}};
    top_["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
    top_["model"] = {{"type", "WordPiece"},
                     {"unk_token", special_.named("unk_token").value_or("[UNK]")},
                     {"continuing_subword_prefix", "##"},
                     {"max_input_chars_per_word", 100},
                     {"vocab", read_lines()}};
    top_["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
    top_["added_tokens"] = Json::array();
    Json& added = top_["added_tokens"];
    for (const std::string_view token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
      const auto id = top_["model"]["vocab"].find(token);
      if (id != top_["model"]["vocab"].end()) added.push_back(added_token(id->get<TokenId>(), token, true));
    }
    return finish(load_encoder(Field(top_, path_)), {.begin = true,
                                                     .end = true,
                                                     .begin_token = special_.named("cls_token").value_or("[CLS]"),
                                                     .end_token = special_.named("sep_token").value_or("[SEP]")});
  }

 private:
  struct Ends {
    bool begin = false, end = false;
    std::string begin_token{}, end_token{};
    std::vector<std::string_view> prefix{};  // tokens before every text
  };

  [[noreturn]] void refuse_class() const {
    throw Error(
        ErrorCode::kUnsupportedModel,
        fmt::format("{}: unsupported tokenizer_class '{}' for this kind of file; provide a tokenizer.json instead",
                    path_, special_.tokenizer_class()));
  }

  // Returns {line: number}, counted from 0.
  Json read_lines() const {
    Json vocab = Json::object();
    auto& members = vocab.get_ref<Json::object_t&>();
    std::istringstream lines(read_file(path_));
    TokenId id = 0;
    for (std::string line; std::getline(lines, line); ++id) {
      if (line.ends_with('\r')) line.pop_back();
      if (valid_utf8_prefix(line) != line.size() || id > kMaxTokenId) {
        throw Error(ErrorCode::kCorruptFile,
                    fmt::format("{}: line {}: invalid UTF-8, or too many lines", path_, id + 1));
      }
      // Appending to the vector of pairs skips the scan for an equal key. Of equal tokens, the last one is found.
      using Members = std::vector<std::pair<const std::string, Json>, Json::object_t::allocator_type>;
      static_cast<Members&>(members).emplace_back(std::move(line), Json(id));
    }
    return vocab;
  }

  static Json read_merges(const fs::path& path) {
    Json merges = Json::array();
    std::istringstream lines(read_file(path));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && !(merges.empty() && line.starts_with("#version"))) merges.push_back(std::move(line));
    }
    return merges;
  }

  std::unique_ptr<const Tokenizer::Parts> sentencepiece(const std::string& bytes) {
    const std::string_view name = special_.tokenizer_class();
    if (std::ranges::count(kRenumbering, name) > 0) refuse_class();
    const ClassEnds* known = find_class(kSentencePieceClasses, name);
    const auto begin = special_.flag("add_bos_token"), end = special_.flag("add_eos_token");
    if (known == nullptr && !begin) refuse_class();

    const SentencePieceFile file = read_sentencepiece(bytes, path_);
    Json& added = top_["added_tokens"] = Json::array();
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      const auto& piece = file.pieces[id];
      if (piece.type == SentencePieceFile::PieceType::kControl ||
          piece.type == SentencePieceFile::PieceType::kUnknown) {
        added.push_back(added_token(static_cast<TokenId>(id), piece.text, true));
      }
    }
    DummyPrefix prefix = special_.flag("legacy").value_or(true) ? DummyPrefix::kAlways : DummyPrefix::kFirst;
    if (!special_.flag("add_prefix_space").value_or(true)) prefix = DummyPrefix::kNever;
    top_["decoder"] = sentencepiece_decoder(file, prefix);
    SentencePieceParts parts = make_sentencepiece(file, prefix, path_);
    const auto text_of = [&](const std::optional<TokenId>& id) { return id ? file.pieces[*id].text : std::string(); };
    return finish({std::move(parts.normalizer), std::move(parts.pretokenizers), std::move(parts.model)},
                  {.begin = begin.value_or(known != nullptr && known->begin),
                   .end = end.value_or(known != nullptr && known->end),
                   .begin_token = special_.named("bos_token").value_or(text_of(file.begin)),
                   .end_token = special_.named("eos_token").value_or(text_of(file.end))});
  }

  static Json sentencepiece_decoder(const SentencePieceFile& file, DummyPrefix prefix) {
    Json steps = Json::array();
    if (file.escape_whitespaces) {
      steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}});
    }
    if (file.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
    steps.push_back({{"type", "Fuse"}});
    // Removes one space for the dummy prefix. Removes all leading spaces when the text cannot have begun with one.
    const bool prefixed = file.add_dummy_prefix && prefix != DummyPrefix::kNever;
    if (const int leading = file.remove_extra_whitespaces ? 1 << 20 : prefixed ? 1 : 0; leading > 0) {
      steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", leading}, {"stop", 0}});
    }
    return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
  }

  std::unique_ptr<const Tokenizer::Parts> tiktoken(const std::string& bytes) {
    const TiktokenScheme& scheme =
        find_tiktoken_scheme(fs::path(path_).filename().string(), special_.tokenizer_class(), path_);
    TiktokenVocab vocab = read_tiktoken(bytes, path_);
    top_["normalizer"] = scheme.nfc ? Json{{"type", "NFC"}} : Json(nullptr);
    top_["pre_tokenizer"] = byte_level_pretokenizer(scheme.pattern, false);
    top_["decoder"] = parse_json(kByteLevelDecoder);
    special_.add_given(top_["added_tokens"]);
    add_scheme_tokens(scheme, vocab.size);
    const Field top(top_, path_);
    Encoder encoder{.normalizer = scheme.nfc ? load_normalizer(top.at("normalizer")) : nullptr,
                    .pretokenizers = load_pretokenizers(top.at("pre_tokenizer")),
                    .model = std::move(vocab.model)};
    Ends ends{.begin = special_.flag("add_bos_token").value_or(false),
              .end = special_.flag("add_eos_token").value_or(false),
              .begin_token = special_.named("bos_token").value_or(""),
              .end_token = special_.named("eos_token").value_or("")};
    if (special_.flag("add_bos_token").value_or(true)) {
      ends.begin = false;
      ends.prefix = scheme.prefix;
    }
    return finish(std::move(encoder), ends);
  }

  // Adds the scheme's own special tokens when the files next to the vocabulary do not give their IDs.
  void add_scheme_tokens(const TiktokenScheme& scheme, int base) {
    Json& added = top_["added_tokens"];
    std::vector<std::string> texts;
    std::vector<int64_t> ids;
    for (const Json& token : added) {
      texts.push_back(token["content"].get<std::string>());
      ids.push_back(token["id"].get<int64_t>());
    }
    TokenId id = base;
    for (const std::string& text : scheme.special(base)) {
      if (!text.empty() && std::ranges::count(ids, id) == 0 && std::ranges::count(texts, text) == 0) {
        added.push_back(added_token(id, text, true));
      }
      ++id;
    }
  }

  std::unique_ptr<const Tokenizer::Parts> finish(Encoder encoder, const Ends& ends) {
    const Vocab& vocab = encoder.model->vocab();
    special_.add_given(top_["added_tokens"]);
    special_.add_special(top_["added_tokens"], vocab.size(), [&](std::string_view text) { return vocab.find(text); });
    Around around;
    for (const std::string_view text : ends.prefix) around.before.emplace_back(text, id_of(text, vocab));
    if (ends.begin) around.before.emplace_back(ends.begin_token, id_of(ends.begin_token, vocab));
    if (ends.end) around.after.emplace_back(ends.end_token, id_of(ends.end_token, vocab));
    if (Json json = around.json(); !json.is_null()) top_["post_processor"] = std::move(json);
    return std::make_unique<const Tokenizer::Parts>(Field(top_, path_), std::move(encoder));
  }

  TokenId id_of(std::string_view text, const Vocab& vocab) const {
    for (const Json& token : top_["added_tokens"]) {
      if (token["content"] == text) return token["id"].get<TokenId>();
    }
    if (const auto id = vocab.find(text)) return *id;
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: \"{}\", which is added around texts, is not in the vocabulary", path_, text));
  }

  std::string path_;
  SpecialTokens special_;
  Json top_ = Json::object();
};

// Returns the file of a folder that defines the tokenizer; empty when there is none.
fs::path choose_file(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model", "tiktoken.model",
                           "vocab.json", "encoder.json", "vocab.txt"}) {
    if (!present(folder / name)) continue;
    if (std::string_view(name) == "vocab.json" && !present(folder / "merges.txt")) continue;
    if (std::string_view(name) == "encoder.json" && !present(folder / "vocab.bpe")) continue;
    return folder / name;
  }
  std::error_code ignored;
  for (const std::string& name : names_in(folder, ignored)) {
    if (fs::path(name).extension() == ".tiktoken") return folder / name;
  }
  return {};
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::open(const std::string& path) {
  std::error_code ignored;
  fs::path file = path;
  if (fs::is_directory(file, ignored)) file = choose_file(file);
  if (file.empty() || !present(file)) {
    throw Error(
        ErrorCode::kNotFound,
        fmt::format("{}: no tokenizer found (expected tokenizer.json, tekken.json, tokenizer.model, *.tiktoken, "
                    "vocab.json with merges.txt, or vocab.txt)",
                    path));
  }
  const std::string name = file.filename().string();
  Source source(file);
  std::unique_ptr<const Parts> parts;
  if (file.extension() == ".gguf") {
    const MappedFile mapped(file.string());
    parts = read_gguf_tokenizer(read_gguf(mapped.bytes(), file.string()).metadata);
    mapped.check();
  } else if (name == "vocab.json" || name == "encoder.json") {
    parts = source.byte_level(file.parent_path() / (name == "vocab.json" ? "merges.txt" : "vocab.bpe"));
  } else if (name == "vocab.txt") {
    parts = source.word_piece();
  } else if (name == "tekken.json") {
    parts = source.tekken_json();
  } else if (file.extension() == ".json") {
    parts = source.tokenizer_json();
  } else {
    parts = source.model_file();
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

}  // namespace sluice
