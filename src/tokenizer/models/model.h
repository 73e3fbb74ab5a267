// The "model" of tokenizer.json: spells pieces of text in tokens.
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
  // Appends the tokens of all pieces, by several threads where they are long together. Throws Error(kInvalidRequest)
  // where the text has a character that the vocabulary cannot spell and there is no token for the unknown.
  void tokenize(const Pieces& pieces, std::vector<TokenId>& out) const;
  // Cuts pieces further, where no token could begin on one side and end on the other.
  virtual void cut(Pieces&) const {}
  virtual const Vocab& vocab() const = 0;
  virtual std::string_view kind() const = 0;  // see Tokenizer::kind

 protected:
  // Appends the tokens of some of the pieces: each is spelled by itself.
  virtual void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const = 0;
};

// `byte_level`: pieces hold bytes that the vocabulary spells in the byte-level alphabet (see PreTokenizers).
std::unique_ptr<Model> load_model(const Field& field, bool byte_level);

// One loader per type; each in the file of its name.
std::unique_ptr<Model> load_bpe(const Field& field, bool byte_level);
std::unique_ptr<Model> load_unigram(const Field& field);
std::unique_ptr<Model> load_word_level(const Field& field);
std::unique_ptr<Model> load_word_piece(const Field& field);

// Byte pair encoding where the rank of a merge is that of the token it makes, whatever its parts: tiktoken's and
// SentencePiece's. Of two merges that rank equally the left one comes first.
struct RankedBpe {
  static constexpr uint32_t kNotMerged = ~0u;
  Vocab vocab{};
  std::vector<uint32_t> ranks{};  // by id; kNotMerged for tokens that no merge makes and that are part of none
  std::vector<bool> whole{};      // by id: a piece of this spelling is this token, without merges
  bool byte_level = false;        // see PreTokenizers
  std::optional<TokenId> unknown{};
  bool fuse_unknown = false;   // a run of unknown characters is one token
  bool byte_fallback = false;  // unknown characters are spelled in <0x00> to <0xFF>
};
// `source` is the file's name. Error(kCorruptFile) for a token of more than 2 KiB.
std::unique_ptr<Model> make_ranked_bpe(RankedBpe bpe, const std::string& source);

// SentencePiece's Unigram: paths are scored in single precision, and a run of unknown characters stays unknown even
// where the vocabulary has it.
struct SentencePieceUnigram {
  Vocab vocab{};
  std::vector<double> scores{};  // by id; NaN for tokens that text is never spelled in
  TokenId unknown = 0;
  double unknown_score = 0;
  bool byte_fallback = false;
};
std::unique_ptr<Model> make_unigram(SentencePieceUnigram unigram);

// The {"token": id, ...} of all models but Unigram.
Vocab load_vocab(const Field& field);

}  // namespace sluice::tokenizer
