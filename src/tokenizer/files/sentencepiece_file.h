// Reads SentencePiece's tokenizer.model: a protocol buffer (sentencepiece_model.proto), read field by field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sluice::tokenizer {

// What pieces have for a space.
inline constexpr std::string_view kSpaceSymbol = "\u2581";

// A SentencePiece vocabulary and all settings that its library uses to encode. IDs are indices into `pieces`.
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
  std::string charsmap{};  // compiled character map of the normalizer; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  TokenId unknown = 0;
  std::optional<TokenId> begin{}, end{}, padding{};  // set if the vocabulary has these pieces
};

// `name` is the file name in error messages. Performs the checks of check_sentencepiece(). Throws Error that names the
// file: kCorruptFile, or kUnsupportedModel for models and options that are not implemented.
SentencePieceFile read_sentencepiece(std::string_view bytes, const std::string& name);

// Checks that there is one unknown piece, that no piece is empty, duplicate or invalid UTF-8, and that scores are
// finite. With byte fallback, all 256 bytes must be present.
void check_sentencepiece(const SentencePieceFile& file, const std::string& name);

}  // namespace sluice::tokenizer
