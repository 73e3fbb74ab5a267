// The components of a tokenizer, shared by Tokenizer and StreamDecoder.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/files/json_field.h"
#include "tokenizer/models/model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/postprocessor.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

namespace tokenizer {

// Converts text without added tokens to IDs.
struct Encoder {
  std::unique_ptr<Normalizer> normalizer;  // may be null
  PreTokenizers pretokenizers;
  std::unique_ptr<Model> model;
};
Encoder load_encoder(const Field& top);

}  // namespace tokenizer

struct Tokenizer::Parts {
  // `top` is the whole tokenizer.json, or the part of it that `encoder` does not replace.
  Parts(const tokenizer::Field& top, tokenizer::Encoder encoder);

  std::unique_ptr<tokenizer::Normalizer> normalizer;  // may be null
  tokenizer::PreTokenizers pretokenizers;
  std::unique_ptr<tokenizer::Model> model;
  tokenizer::AddedTokens added;
  tokenizer::PostProcessor postprocessor;
  tokenizer::Decoder decoder;

  // Returns the decoder's input for an ID; nullopt for an ID outside the vocabulary.
  std::optional<std::string_view> decoder_input(TokenId id) const;
  bool is_special(TokenId id) const;
};

}  // namespace sluice
