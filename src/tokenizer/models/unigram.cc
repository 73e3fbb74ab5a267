// Unigram language model: of all ways to spell a piece, selects the one with the highest sum of scores (Viterbi).
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/models/model.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10;  // subtracted from the lowest score of the vocabulary

// Returns the score as Hugging Face's tokenizers computes it: its JSON parser reads the digits as an integer and
// divides by a power of ten, which rounds twice. The last bit of the sums decides between spellings of equal score.
double as_divided(double score) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), score, std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  bool fraction = false;
  for (const char* at = text.data(); at != end; ++at) {
    if (*at == 'e') {
      exponent += std::atoi(at + 1);
      break;
    }
    if (*at == '.') fraction = true;
    if (*at < '0' || *at > '9') continue;
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    if (fraction) --exponent;
  }
  const double power = std::pow(10.0, std::abs(exponent));
  const double value = exponent < 0 ? static_cast<double>(digits) / power : static_cast<double>(digits) * power;
  return std::copysign(value, score);
}

class Unigram final : public Model {
 public:
  explicit Unigram(const Field& field) {
    load_vocab(field.at("vocab"));
    if (const auto unknown = field.find("unk_id")) {
      unknown_ = static_cast<TokenId>(unknown->integer(0, vocab_.size() - 1));
    }
    byte_fallback_ = field.boolean_or("byte_fallback", false);
    fill_fallback();
  }

  explicit Unigram(SentencePieceUnigram unigram)
      : vocab_(std::move(unigram.vocab)),
        scores_(std::move(unigram.scores)),
        unknown_score_(unigram.unknown_score),
        unknown_(unigram.unknown),
        byte_fallback_(unigram.byte_fallback),
        sentencepiece_(true) {
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      if (!std::isnan(scores_[static_cast<size_t>(id)])) trie_.insert(vocab_.text(id), id);
    }
    fill_fallback();
  }

  void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const override {
    std::vector<Node> nodes;
    for (const Span span : spans) {
      const std::string_view piece = pieces.view(span);
      if (piece.size() >= kNowhere) {
        throw Error(ErrorCode::kInvalidRequest, "the text contains a word that is too long");
      }
      find_paths(piece, nodes);
      append_best(piece, nodes, out);
    }
  }

  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return "Unigram"; }

 private:
  static constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();
  // The best spelling that ends at a byte: its last token and that token's start.
  struct Node {
    double score = 0;
    uint32_t begin = kNowhere;
    TokenId id = 0;

    void offer(double candidate, size_t from, TokenId token, bool single_precision) {
      if (single_precision) candidate = static_cast<float>(candidate);
      if (begin != kNowhere && candidate <= score) return;
      score = candidate;
      begin = static_cast<uint32_t>(from);
      id = token;
    }
  };

  void load_vocab(const Field& field) {
    double lowest = std::numeric_limits<double>::infinity();
    field.expect(field.json().is_array(), "an array");
    if (field.json().size() > static_cast<size_t>(kMaxTokenId)) field.corrupt("too many tokens");
    for (const Json& entry : field.json()) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
        field.element(scores_.size()).corrupt("expected [\"token\", score]");
      }
      const std::string_view text = entry[0].get_ref<const std::string&>();
      const auto id = static_cast<TokenId>(scores_.size());
      scores_.push_back(as_divided(entry[1].get<double>()));
      lowest = std::min(lowest, scores_.back());
      vocab_.add(text, id);
      if (!text.empty()) trie_.insert(text, id);
    }
    if (scores_.empty()) field.corrupt("the vocabulary is empty");
    unknown_score_ = lowest - kUnknownPenalty;
  }

  void fill_fallback() {
    for (int byte = 0; byte < 256; ++byte) fallback_[byte] = vocab_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }

  void find_paths(std::string_view piece, std::vector<Node>& nodes) const {
    nodes.assign(piece.size() + 1, Node{});
    for (size_t at = 0; at < piece.size();) {
      const double score = nodes[at].score;
      const size_t next = at + code_point_at(piece, at).length;
      bool spelled = false;  // whether the character at `at` is a token by itself
      ByteTrie::Node node = ByteTrie::kRoot;
      for (size_t end = at; end < piece.size();) {
        node = trie_.child(node, static_cast<unsigned char>(piece[end++]));
        if (node == ByteTrie::kNone) break;
        const TokenId id = trie_.value(node);
        if (id < 0) continue;
        nodes[end].offer(score + scores_[id], at, id, sentencepiece_);
        spelled = spelled || end == next;
      }
      if (!spelled) nodes[next].offer(score + unknown_score_, at, require_unknown(), sentencepiece_);
      at = next;
    }
  }

  void append_best(std::string_view piece, const std::vector<Node>& nodes, std::vector<TokenId>& out) const {
    struct Token {
      Span span;
      TokenId id;
    };
    std::vector<Token> reversed;
    for (size_t end = piece.size(); end > 0; end = nodes[end].begin) {
      const Node& node = nodes[end];
      const bool unknown = node.id == unknown_;
      if (unknown && !reversed.empty() && reversed.back().id == unknown_ && reversed.back().span.begin == end) {
        reversed.back().span.begin = node.begin;  // a run of unknown characters is one token
      } else {
        reversed.push_back({{node.begin, end}, node.id});
      }
    }
    for (auto token = reversed.rbegin(); token != reversed.rend(); ++token) {
      if (token->id != unknown_) {
        out.push_back(token->id);
      } else {
        append_unknown(piece.substr(token->span.begin, token->span.end - token->span.begin), out);
      }
    }
  }

  // Encodes a run of unknown characters. The run may be in the vocabulary with a score worse than the unknown token's.
  // Hugging Face's library finds it in that case, SentencePiece does not.
  void append_unknown(std::string_view run, std::vector<TokenId>& out) const {
    if (const auto id = vocab_.find(run); id && !sentencepiece_) {
      out.push_back(*id);
      return;
    }
    const auto fallback = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ && std::all_of(run.begin(), run.end(), [&](char c) { return fallback(c) >= 0; })) {
      for (const char c : run) out.push_back(fallback(c));
      return;
    }
    out.push_back(require_unknown());
  }

  TokenId require_unknown() const {
    if (!unknown_) {
      throw Error(ErrorCode::kInvalidRequest, "the vocabulary cannot spell a character of the text and has no unk_id");
    }
    return *unknown_;
  }

  Vocab vocab_;
  std::vector<double> scores_;  // indexed by ID
  ByteTrie trie_;
  double unknown_score_ = 0;
  std::optional<TokenId> unknown_;
  bool byte_fallback_ = false;
  bool sentencepiece_ = false;         // see SentencePieceUnigram
  std::array<TokenId, 256> fallback_;  // -1: not in the vocabulary
};

}  // namespace

std::unique_ptr<Model> make_unigram(SentencePieceUnigram unigram) {
  return std::make_unique<Unigram>(std::move(unigram));
}

std::unique_ptr<Model> load_unigram(const Field& field) { return std::make_unique<Unigram>(field); }

}  // namespace sluice::tokenizer
