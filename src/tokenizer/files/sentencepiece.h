// Encodes like SentencePiece's library: its normalizer, its dummy prefix, its BPE and Unigram.
#pragma once

#include <memory>

#include "tokenizer/files/sentencepiece_file.h"
#include "tokenizer/models/model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenizer.h"

namespace sluice::tokenizer {

// Which parts of text between added tokens get the dummy prefix, if the model uses one.
enum class DummyPrefix { kNever, kFirst, kAlways };

struct SentencePieceParts {
  std::unique_ptr<Normalizer> normalizer;
  PreTokenizers pretokenizers;
  std::unique_ptr<Model> model;
};

// `name` is the file name in error messages. Throws Error(kCorruptFile).
SentencePieceParts make_sentencepiece(const SentencePieceFile& file, DummyPrefix prefix, const std::string& name);

}  // namespace sluice::tokenizer
