// The "model" of tokenizer.json: encodes pieces of text as tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/files/json_field.h"
#include "tokenizer/models/vocab.h"
#include "tokenizer/pieces.h"
#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of all pieces, using several threads for long texts. Throws Error(kInvalidRequest) when the text
  // has a character that the vocabulary cannot spell and there is no unknown token.
  void tokenize(const Pieces& pieces, std::vector<TokenId>& out) const;
  // Splits pieces further at places that no token crosses.
  virtual void cut(Pieces&) const {}
  virtual const Vocab& vocab() const = 0;
  virtual std::string_view kind() const = 0;  // see Tokenizer::kind

 protected:
  // Appends the tokens of some of the pieces. Each piece is encoded independently.
  virtual void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const = 0;
};

// With `byte_level`, pieces hold bytes that the vocabulary spells in the byte-level alphabet (see PreTokenizers).
std::unique_ptr<Model> load_model(const Field& field, bool byte_level);

// One loader per type, each in the file of its name.
std::unique_ptr<Model> load_bpe(const Field& field, bool byte_level);
std::unique_ptr<Model> load_unigram(const Field& field);
std::unique_ptr<Model> load_word_level(const Field& field);
std::unique_ptr<Model> load_word_piece(const Field& field);

// BPE where the rank of a merge is the rank of the token it forms, whatever its parts, as in tiktoken and
// SentencePiece. Of two merges with equal rank, the left one comes first.
struct RankedBpe {
  static constexpr uint32_t kNotMerged = ~0u;
  Vocab vocab{};
  std::vector<uint32_t> ranks{};  // by ID; kNotMerged for tokens that take no part in merges
  std::vector<bool> whole{};      // by ID: whether a piece equal to the token is encoded as it, without merges
  bool byte_level = false;        // see PreTokenizers
  std::optional<TokenId> unknown{};
  bool fuse_unknown = false;   // whether a run of unknown characters is one token
  bool byte_fallback = false;  // whether unknown characters are spelled as <0x00> to <0xFF>
};
// `source` is the file's name. Throws Error(kCorruptFile) for a token of more than 2 KiB.
std::unique_ptr<Model> make_ranked_bpe(RankedBpe bpe, const std::string& source);

// SentencePiece's Unigram. Paths are scored in single precision. A run of unknown characters stays unknown even if the
// vocabulary contains it.
struct SentencePieceUnigram {
  Vocab vocab{};
  std::vector<double> scores{};  // by ID; NaN for tokens that are never used to encode text
  TokenId unknown = 0;
  double unknown_score = 0;
  bool byte_fallback = false;
};
std::unique_ptr<Model> make_unigram(SentencePieceUnigram unigram);

// Reads the {"token": id, ...} of all models except Unigram.
Vocab load_vocab(const Field& field);

}  // namespace sluice::tokenizer
