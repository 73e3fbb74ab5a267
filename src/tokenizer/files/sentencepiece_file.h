// SentencePiece's tokenizer.model: a protocol buffer (sentencepiece_model.proto), read field by field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

// A vocabulary of SentencePiece with all that its library encodes by; ids are places in `pieces`.
struct SentencePieceFile {
  enum class Kind { kUnigram = 1, kBpe = 2 };
  enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text{};
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  Kind kind = Kind::kUnigram;
  std::vector<Piece> pieces{};
  bool byte_fallback = false;
  std::string charsmap{};  // of the normalizer, compiled; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  TokenId unknown = 0;
  std::optional<TokenId> begin{}, end{}, padding{};  // where the vocabulary has them
};

// `name` stands for the file. Checks what check_sentencepiece() does. Throws Error that names the file: kCorruptFile,
// or kUnsupportedModel for kinds and options that are not implemented.
SentencePieceFile read_sentencepiece(std::string_view bytes, const std::string& name);

// One unknown piece; no piece empty, twice or not UTF-8; finite scores; all 256 bytes when there is byte fallback.
void check_sentencepiece(const SentencePieceFile& file, const std::string& name);

}  // namespace sluice::tokenizer
