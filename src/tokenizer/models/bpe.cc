// Byte pair encoding: merges the symbols of a piece pair by pair, always the pair with the lowest rank first.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "tokenizer/byte_level.h"
#include "tokenizer/flat_map.h"
#include "tokenizer/models/merge_queue.h"
#include "tokenizer/models/model.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
// Up to this number of symbols the lowest rank is found by scanning, beyond it with a MergeQueue.
constexpr size_t kShortWord = 48;
constexpr std::string_view kSpace = "\u2581";  // SentencePiece's space

struct Merge {
  uint32_t rank = kNoRank;
  TokenId result = -1;
};

uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

class Bpe final : public Model {
 public:
  Bpe(const Field& field, bool byte_level);
  Bpe(RankedBpe bpe, const std::string& source);

  void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const override;
  void cut(Pieces& pieces) const override;
  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override {
    return byte_level_ ? "byte-level BPE" : byte_fallback_ ? "BPE with byte fallback" : "BPE";
  }

 private:
  // Memory reused for all pieces.
  struct Scratch {
    std::vector<TokenId> symbols;
    std::vector<Merge> merges;  // merge of each symbol with the next one
    std::string spelling;
    std::vector<uint32_t> previous, next;
    size_t unknown_run = 0;  // symbols in a run of unknown characters that may become one token
  };

  void load_merges(const Field& field);
  void add_merge(const Field& field, std::string_view left, std::string_view right, uint32_t rank);
  void add_ranked_merges(const std::vector<uint32_t>& ranks, const std::string& source);
  void fill_byte_symbols();
  void fill_fallback();
  void find_space();

  std::optional<TokenId> whole_piece(std::string_view piece, Scratch& scratch) const;
  void seed_bytes(std::string_view piece, Scratch& scratch) const;
  void seed_characters(std::string_view piece, Scratch& scratch) const;
  void seed_unspelled(std::string_view symbol, Scratch& scratch) const;
  void spell(std::string_view character, bool first, bool last, std::string& out) const;
  void merge_short(Scratch& scratch, std::vector<TokenId>& out) const;
  void merge_long(Scratch& scratch, std::vector<TokenId>& out) const;
  bool parts_from_space(std::string_view text, size_t at) const;

  Merge merge_of(TokenId left, TokenId right) const {
    const Merge* merge = merges_.find(pair_key(left, right));
    return merge ? *merge : Merge{};
  }

  Vocab vocab_;
  FlatMap<uint64_t, Merge> merges_;
  std::string prefix_;  // prefix of every symbol except a piece's first
  std::string suffix_;  // suffix of a piece's last symbol
  bool has_unknown_ = false;
  std::optional<TokenId> unknown_;
  bool fuse_unknown_;
  bool byte_fallback_;
  std::array<TokenId, 256> fallback_;  // -1: not in the vocabulary
  bool ignore_merges_ = false;
  std::vector<bool> whole_{};  // by ID, see RankedBpe; empty: none
  bool byte_level_;
  // Indexed by [is the first][is the last] and byte; -1 when the vocabulary lacks the symbol. Only for byte-level BPE.
  std::array<std::array<std::array<TokenId, 256>, 2>, 2> byte_symbols_;
  bool space_ = false;                         // whether pieces may be split before kSpace
  std::unordered_set<char32_t> before_space_;  // characters that come right before kSpace within some token
};

Bpe::Bpe(const Field& field, bool byte_level)
    : vocab_(load_vocab(field.at("vocab"))),
      fuse_unknown_(field.boolean_or("fuse_unk", false)),
      byte_fallback_(field.boolean_or("byte_fallback", false)),
      ignore_merges_(field.boolean_or("ignore_merges", false)),
      byte_level_(byte_level) {
  if (const auto dropout = field.find("dropout"); dropout && dropout->number() != 0) {
    dropout->unsupported("dropout is not supported (it is for training only)");
  }
  if (const auto prefix = field.find("continuing_subword_prefix")) prefix_ = prefix->string();
  if (const auto suffix = field.find("end_of_word_suffix")) suffix_ = suffix->string();
  if (const auto unknown = field.find("unk_token")) {
    has_unknown_ = true;
    unknown_ = vocab_.find(unknown->string());
  }
  load_merges(field.at("merges"));
  fill_fallback();
  fill_byte_symbols();
  find_space();
}

Bpe::Bpe(RankedBpe bpe, const std::string& source)
    : vocab_(std::move(bpe.vocab)),
      has_unknown_(bpe.unknown.has_value()),
      unknown_(bpe.unknown),
      fuse_unknown_(bpe.fuse_unknown),
      byte_fallback_(bpe.byte_fallback),
      whole_(std::move(bpe.whole)),
      byte_level_(bpe.byte_level) {
  whole_.resize(static_cast<size_t>(vocab_.size()));
  add_ranked_merges(bpe.ranks, source);
  fill_fallback();
  fill_byte_symbols();
  find_space();
}

// Adds every way to form a token from two others.
void Bpe::add_ranked_merges(const std::vector<uint32_t>& ranks, const std::string& source) {
  constexpr size_t kLongest = 2048;  // the work is quadratic in the length
  for (TokenId id = 0; id < vocab_.size(); ++id) {
    if (!vocab_.has(id) || ranks[static_cast<size_t>(id)] == RankedBpe::kNotMerged) continue;
    const std::string_view text = vocab_.text(id);
    if (text.size() > kLongest) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: token {} has {} bytes (at most {} are allowed)", source, id, text.size(), kLongest));
    }
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto part = [&](std::string_view half) -> std::optional<TokenId> {
        const auto found = vocab_.find(half);
        if (!found || ranks[static_cast<size_t>(*found)] == RankedBpe::kNotMerged) return std::nullopt;
        return found;
      };
      const auto left = part(text.substr(0, cut));
      const auto right = left ? part(text.substr(cut)) : std::nullopt;
      if (right) merges_[pair_key(*left, *right)] = {ranks[static_cast<size_t>(id)], id};
    }
  }
}

// A merge is "left right" or ["left", "right"].
void Bpe::load_merges(const Field& field) {
  field.expect(field.json().is_array(), "an array");
  merges_.reserve(field.json().size());
  uint32_t rank = 0;
  for (const Json& merge : field.json()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(field, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), rank++);
      continue;
    }
    const std::string_view text = merge.is_string() ? std::string_view(merge.get_ref<const std::string&>()) : "";
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      field.element(rank).corrupt("expected a merge of the form \"left right\" or [\"left\", \"right\"]");
    }
    add_merge(field, text.substr(0, space), text.substr(space + 1), rank++);
  }
}

void Bpe::add_merge(const Field& field, std::string_view left, std::string_view right, uint32_t rank) {
  const auto id_of = [&](std::string_view token) {
    const auto id = vocab_.find(token);
    if (!id) field.element(rank).corrupt(fmt::format("\"{}\" is not in the vocabulary", token));
    return *id;
  };
  if (right.size() < prefix_.size()) field.element(rank).corrupt("shorter than continuing_subword_prefix");
  std::string joined(left);
  joined += right.substr(prefix_.size());
  // A duplicate pair gets its later rank.
  merges_[pair_key(id_of(left), id_of(right))] = {rank, id_of(joined)};
}

void Bpe::fill_byte_symbols() {
  std::string symbol;
  for (int byte = 0; byte < 256; ++byte) {
    for (const bool first : {false, true}) {
      for (const bool last : {false, true}) {
        spell(byte_level_character(static_cast<unsigned char>(byte)), first, last, symbol);
        byte_symbols_[first][last][byte] = vocab_.find(symbol).value_or(-1);
      }
    }
  }
}

void Bpe::fill_fallback() {
  for (int byte = 0; byte < 256; ++byte) fallback_[byte] = vocab_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
}

// Returns the token equal to a whole piece, if that takes precedence over merges.
std::optional<TokenId> Bpe::whole_piece(std::string_view piece, Scratch& scratch) const {
  if ((!ignore_merges_ && whole_.empty()) || piece.size() > vocab_.longest()) return std::nullopt;
  if (byte_level_) {
    scratch.spelling.clear();
    append_byte_level(scratch.spelling, piece);
    piece = scratch.spelling;
  }
  const auto id = vocab_.find(piece);
  return id && (ignore_merges_ || whole_[static_cast<size_t>(*id)]) ? id : std::nullopt;
}

void Bpe::append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const {
  Scratch scratch;
  for (const Span span : spans) {
    const std::string_view piece = pieces.view(span);
    if (piece.size() >= kNoRank) throw Error(ErrorCode::kInvalidRequest, "the text contains a word that is too long");
    if (const auto id = whole_piece(piece, scratch)) {
      out.push_back(*id);
      continue;
    }
    scratch.symbols.clear();
    scratch.unknown_run = 0;
    byte_level_ ? seed_bytes(piece, scratch) : seed_characters(piece, scratch);
    scratch.symbols.size() <= kShortWord ? merge_short(scratch, out) : merge_long(scratch, out);
  }
}

// Merges only form tokens of the vocabulary, and a token's spelling is that of its parts. Suppose a character is a
// symbol, and no token contains it right before SentencePiece's space. Then no merge crosses that place, and splitting
// the piece there does not change the tokens. SentencePiece's texts arrive as one piece, which is split into words this
// way.
void Bpe::cut(Pieces& pieces) const {
  if (!space_) return;
  std::vector<Span> spans;
  for (const Span span : pieces.spans) {
    size_t begin = span.begin;
    for (size_t at = begin; span.end - begin > kShortWord;) {
      at = pieces.text.find(kSpace, at + 1);
      if (at >= span.end) break;
      if (!parts_from_space(pieces.text, at)) continue;
      spans.push_back({begin, at});
      begin = at;
    }
    spans.push_back({begin, span.end});
  }
  pieces.spans = std::move(spans);
}

// Returns whether the character before the space at `at` is a symbol that precedes no space within a token.
bool Bpe::parts_from_space(std::string_view text, size_t at) const {
  size_t before = at - 1;
  while ((static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
  const std::string_view character = text.substr(before, at - before);
  return !before_space_.contains(code_point_at(character, 0).value) && vocab_.find(character);
}

void Bpe::find_space() {
  const bool any_whole = std::ranges::find(whole_, true) != whole_.end();
  space_ = !byte_level_ && !ignore_merges_ && !any_whole && prefix_.empty() && suffix_.empty() && vocab_.find(kSpace);
  for (TokenId id = 0; space_ && id < vocab_.size(); ++id) {
    if (!vocab_.has(id)) continue;
    const std::string_view text = vocab_.text(id);
    for (size_t at = text.find(kSpace, 1); at != std::string_view::npos; at = text.find(kSpace, at + 1)) {
      size_t before = at - 1;
      while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
      before_space_.insert(code_point_at(text, before).value);
    }
  }
}

void Bpe::spell(std::string_view character, bool first, bool last, std::string& out) const {
  out.clear();
  if (!first) out += prefix_;
  out += character;
  if (last) out += suffix_;
}

void Bpe::seed_bytes(std::string_view piece, Scratch& scratch) const {
  for (size_t at = 0; at < piece.size(); ++at) {
    const bool first = at == 0;
    const bool last = at + 1 == piece.size();
    const auto byte = static_cast<unsigned char>(piece[at]);
    if (const TokenId id = byte_symbols_[first][last][byte]; id >= 0) {
      scratch.symbols.push_back(id);
      scratch.unknown_run = 0;
    } else {
      spell(byte_level_character(byte), first, last, scratch.spelling);
      seed_unspelled(scratch.spelling, scratch);
    }
  }
}

void Bpe::seed_characters(std::string_view piece, Scratch& scratch) const {
  const bool bare = prefix_.empty() && suffix_.empty();
  for (size_t at = 0; at < piece.size();) {
    const size_t size = code_point_at(piece, at).length;
    std::string_view symbol = piece.substr(at, size);
    if (!bare) {
      spell(symbol, at == 0, at + size == piece.size(), scratch.spelling);
      symbol = scratch.spelling;
    }
    if (const auto id = vocab_.find(symbol)) {
      scratch.symbols.push_back(*id);
      scratch.unknown_run = 0;
    } else {
      seed_unspelled(symbol, scratch);
    }
    at += size;
  }
}

// Handles a symbol that the vocabulary lacks: emits its bytes, the unknown token, or nothing. As in Hugging Face's
// library, bytes do not end a run of unknown symbols, and the run's token comes after them.
void Bpe::seed_unspelled(std::string_view symbol, Scratch& scratch) const {
  const auto fallback = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
  if (byte_fallback_ && std::all_of(symbol.begin(), symbol.end(), [&](char c) { return fallback(c) >= 0; })) {
    auto where = scratch.symbols.end() - (scratch.unknown_run > 0 ? 1 : 0);
    for (const char c : symbol) where = scratch.symbols.insert(where, fallback(c)) + 1;
    return;
  }
  if (!has_unknown_) return;
  if (!unknown_) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("the vocabulary can spell neither \"{}\" nor its own unk_token", symbol));
  }
  if (scratch.unknown_run++ == 0 || !fuse_unknown_) scratch.symbols.push_back(*unknown_);
}

void Bpe::merge_short(Scratch& scratch, std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  auto& merges = scratch.merges;
  if (symbols.empty()) return;
  merges.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) merges.push_back(merge_of(symbols[i], symbols[i + 1]));
  while (!merges.empty()) {
    const auto best =
        std::min_element(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const size_t i = best - merges.begin();
    symbols[i] = best->result;
    symbols.erase(symbols.begin() + i + 1);
    merges.erase(best);
    if (i > 0) merges[i - 1] = merge_of(symbols[i - 1], symbols[i]);
    if (i < merges.size()) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_long(Scratch& scratch, std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  const auto count = static_cast<uint32_t>(symbols.size());
  scratch.previous.resize(count);
  scratch.next.resize(count);
  MergeQueue queue;
  const auto offer = [&](uint32_t left, uint32_t right) {
    const Merge merge = merge_of(symbols[left], symbols[right]);
    if (merge.rank != kNoRank) queue.push(merge.rank, left);
  };
  for (uint32_t i = 0; i < count; ++i) {
    scratch.previous[i] = i - 1;  // wraps to a value >= count at the ends
    scratch.next[i] = i + 1;
    if (i + 1 < count) offer(i, i + 1);
  }
  while (const auto top = queue.pop()) {
    const uint32_t left = top->position;
    const uint32_t right = scratch.next[left];
    if (symbols[left] < 0 || right >= count) continue;  // already merged, or the last symbol
    const Merge merge = merge_of(symbols[left], symbols[right]);
    if (merge.rank != top->rank) continue;  // one of the two symbols has changed
    symbols[left] = merge.result;
    symbols[right] = -1;
    scratch.next[left] = scratch.next[right];
    if (scratch.next[left] < count) scratch.previous[scratch.next[left]] = left;
    if (scratch.previous[left] < count) offer(scratch.previous[left], left);
    if (scratch.next[left] < count) offer(left, scratch.next[left]);
  }
  for (uint32_t i = 0; i < count; i = scratch.next[i]) out.push_back(symbols[i]);
}

}  // namespace

std::unique_ptr<Model> make_ranked_bpe(RankedBpe bpe, const std::string& source) {
  return std::make_unique<Bpe>(std::move(bpe), source);
}

std::unique_ptr<Model> load_bpe(const Field& field, bool byte_level) {
  return std::make_unique<Bpe>(field, byte_level);
}

}  // namespace sluice::tokenizer
