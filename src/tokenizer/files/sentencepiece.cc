// Encodes like SentencePiece's library. The order of operations follows normalizer.cc, bpe_model.cc and
// unigram_model.cc (0.2).
#include "tokenizer/files/sentencepiece.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "sluice/error.h"
#include "tokenizer/precompiled_charsmap.h"
#include "tokenizer/token_matcher.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

using PieceType = SentencePieceFile::PieceType;

// Returns a matcher for the strings that are tokens wherever they occur.
std::shared_ptr<const TokenMatcher> user_defined(const SentencePieceFile& file) {
  auto matcher = std::make_shared<TokenMatcher>();
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == PieceType::kUserDefined) {
      matcher->add(file.pieces[id].text, static_cast<int32_t>(id));
    }
  }
  matcher->build();
  return matcher;
}

class SentencePieceNormalizer final : public Normalizer {
 public:
  SentencePieceNormalizer(const SentencePieceFile& file, std::shared_ptr<const TokenMatcher> matcher)
      : matcher_(std::move(matcher)),
        remove_extra_(file.remove_extra_whitespaces),
        space_(file.escape_whitespaces ? kSpaceSymbol : " ") {
    if (!file.charsmap.empty()) charsmap_.emplace(file.charsmap);
  }

  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    bool after_space = remove_extra_;
    std::vector<TokenMatcher::Match> kept;
    if (!matcher_->empty()) kept = matcher_->find_all(text);
    auto next_kept = kept.begin();
    const std::string_view all = text;
    for (size_t at = 0; at < all.size();) {
      while (next_kept != kept.end() && next_kept->begin < at) ++next_kept;
      const bool keep = next_kept != kept.end() && next_kept->begin == at;
      size_t size = keep ? next_kept->end - at : 0;
      std::string_view piece = all.substr(at, size);
      if (!keep) std::tie(piece, size) = replace(all.substr(at));
      at += size;
      append(piece, after_space, out);
    }
    if (remove_extra_) {
      while (out.ends_with(space_)) out.resize(out.size() - space_.size());
    }
    text = std::move(out);
  }

 private:
  // Returns the replacement of the first characters of the text, and the number of bytes it replaces.
  std::pair<std::string_view, size_t> replace(std::string_view text) const {
    if (charsmap_) {
      const auto match = charsmap_->longest(text);
      // A key that ends inside a character can only come from a corrupt table.
      if (match && (match->size == text.size() || (text[match->size] & 0xC0) != 0x80)) {
        return {match->replacement, match->size};
      }
    }
    const size_t size = code_point_at(text, 0).length;
    return {text.substr(0, size), size};
  }

  void append(std::string_view piece, bool& after_space, std::string& out) const {
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    if (!piece.empty()) {
      for (const char c : piece) c == ' ' ? out.append(space_) : out.append(1, c);
      after_space = piece.ends_with(' ');
    }
    if (!remove_extra_) after_space = false;
  }

  std::shared_ptr<const TokenMatcher> matcher_;
  std::optional<Charsmap> charsmap_;
  bool remove_extra_;
  std::string_view space_;
};

// Adds the dummy prefix and splits at user-defined pieces.
class SentencePiecePreTokenizer final : public PreTokenizer {
 public:
  SentencePiecePreTokenizer(const SentencePieceFile& file, DummyPrefix prefix,
                            std::shared_ptr<const TokenMatcher> matcher)
      : prefix_(file.add_dummy_prefix ? prefix : DummyPrefix::kNever),
        space_(file.escape_whitespaces ? kSpaceSymbol : " "),
        matcher_(std::move(matcher)) {}

  void apply(Pieces& pieces) const override {
    const bool prefixed = prefix_ == DummyPrefix::kAlways || (prefix_ == DummyPrefix::kFirst && pieces.from_the_start);
    if (prefixed) pieces.text.insert(0, space_);
    pieces.spans.clear();
    size_t done = 0;
    const auto add = [&](size_t end) {
      if (end > done) pieces.spans.push_back({done, end});
      done = end;
    };
    if (matcher_ != nullptr && !matcher_->empty()) {
      for (const TokenMatcher::Match& match : matcher_->find_all(pieces.text)) {
        add(match.begin);
        add(match.end);
      }
    }
    add(pieces.text.size());
  }

 private:
  DummyPrefix prefix_;
  std::string_view space_;
  std::shared_ptr<const TokenMatcher> matcher_;  // null: pieces are not split
};

Vocab make_vocab(const SentencePieceFile& file) {
  Vocab vocab;
  size_t bytes = 0;
  for (const auto& piece : file.pieces) bytes += piece.text.size();
  vocab.reserve(file.pieces.size(), bytes);
  for (size_t id = 0; id < file.pieces.size(); ++id) vocab.add(file.pieces[id].text, static_cast<TokenId>(id));
  return vocab;
}

// Tokens with higher scores are merged earlier; tokens with equal scores rank equally.
std::unique_ptr<Model> make_bpe(const SentencePieceFile& file, const std::string& name) {
  RankedBpe bpe{
      .vocab = make_vocab(file), .unknown = file.unknown, .fuse_unknown = true, .byte_fallback = file.byte_fallback};
  std::map<float, uint32_t, std::greater<>> rank_of_score;
  const auto merged = [](PieceType type) { return type == PieceType::kNormal || type == PieceType::kUserDefined; };
  for (const auto& piece : file.pieces) {
    if (merged(piece.type)) rank_of_score.emplace(piece.score, 0);
  }
  uint32_t next = 0;
  for (auto& [score, rank] : rank_of_score) rank = next++;
  for (const auto& piece : file.pieces) {
    bpe.ranks.push_back(merged(piece.type) ? rank_of_score[piece.score] : RankedBpe::kNotMerged);
    bpe.whole.push_back(piece.type == PieceType::kUserDefined);
  }
  return make_ranked_bpe(std::move(bpe), name);
}

std::unique_ptr<Model> make_unigram_of(const SentencePieceFile& file) {
  constexpr float kUnknownPenalty = 10;
  SentencePieceUnigram unigram{.vocab = make_vocab(file), .unknown = file.unknown, .byte_fallback = file.byte_fallback};
  float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::min();
  for (const auto& piece : file.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    lowest = std::min(lowest, piece.score);
    highest = std::max(highest, piece.score);
  }
  for (const auto& piece : file.pieces) {
    double score = std::numeric_limits<double>::quiet_NaN();
    if (piece.type == PieceType::kNormal) score = piece.score;
    // higher than any other score
    if (piece.type == PieceType::kUserDefined) score = static_cast<float>(piece.text.size()) * highest - 0.1;
    unigram.scores.push_back(score);
  }
  unigram.unknown_score = lowest - kUnknownPenalty;
  return make_unigram(std::move(unigram));
}

}  // namespace

SentencePieceParts make_sentencepiece(const SentencePieceFile& file, DummyPrefix prefix, const std::string& name) {
  const bool bpe = file.kind == SentencePieceFile::Kind::kBpe;
  const auto matcher = user_defined(file);
  SentencePieceParts parts;
  try {
    parts.normalizer = std::make_unique<SentencePieceNormalizer>(file, matcher);
  } catch (const std::invalid_argument& e) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: normalizer_spec: {}", name, e.what()));
  }
  parts.pretokenizers.steps.push_back(
      std::make_unique<SentencePiecePreTokenizer>(file, prefix, bpe ? matcher : nullptr));
  parts.model = bpe ? make_bpe(file, name) : make_unigram_of(file);
  return parts;
}

}  // namespace sluice::tokenizer
