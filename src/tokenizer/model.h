// The "model" of tokenizer.json: spells pieces of text in tokens.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/json_field.h"
#include "tokenizer/pieces.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

namespace sluice::tokenizer {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of all pieces. Throws Error(kInvalidRequest) where the text has a character that the vocabulary
  // cannot spell and there is no token for the unknown.
  virtual void tokenize(const Pieces& pieces, std::vector<TokenId>& out) const = 0;
  virtual const Vocab& vocab() const = 0;
  virtual std::string_view kind() const = 0;  // see Tokenizer::kind
};

// `byte_level`: pieces hold bytes that the vocabulary spells in the byte-level alphabet (see PreTokenizers).
std::unique_ptr<Model> load_model(const Field& field, bool byte_level);

// One loader per type; each in the file of its name.
std::unique_ptr<Model> load_bpe(const Field& field, bool byte_level);
std::unique_ptr<Model> load_unigram(const Field& field);
std::unique_ptr<Model> load_word_level(const Field& field);
std::unique_ptr<Model> load_word_piece(const Field& field);

// The {"token": id, ...} of all models but Unigram.
Vocab load_vocab(const Field& field);

}  // namespace sluice::tokenizer
