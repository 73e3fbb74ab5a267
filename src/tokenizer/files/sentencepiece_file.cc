// Reads the wire format of protocol buffers, as far as SentencePiece's models use it.
#include "tokenizer/files/sentencepiece_file.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "sluice/error.h"
#include "tokenizer/models/vocab.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

using Piece = SentencePieceFile::Piece;
using PieceType = SentencePieceFile::PieceType;

// A message that is read field by field.
class Message {
 public:
  Message(std::string_view bytes, std::string_view what, const std::string& file)
      : rest_(bytes), what_(what), file_(file) {}

  // Moves to the next field. Returns false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    type_ = static_cast<int>(tag & 7);
    if (field_ == 0 || field_ > 0x1fffffff) fail("invalid field number");
    switch (type_) {
      case kVarint:
        number_ = varint();
        break;
      case kFixed64:
        bytes_ = take(8);
        break;
      case kBytes:
        bytes_ = take(varint());
        break;
      case kFixed32:
        bytes_ = take(4);
        break;
      default:
        fail(fmt::format("field {} has unsupported wire type {}", field_, type_));
    }
    return true;
  }

  uint64_t field() const { return field_; }
  std::string_view bytes() const { return expect(kBytes), bytes_; }
  bool boolean() const { return expect(kVarint), number_ != 0; }
  int32_t integer() const { return expect(kVarint), static_cast<int32_t>(number_); }
  float real() const {
    expect(kFixed32);
    float value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }

  [[noreturn]] void fail(std::string_view why) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}: {}", file_, what_, why));
  }

 private:
  enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  void expect(WireType type) const {
    if (type_ != type) {
      fail(fmt::format("field {} has wire type {}, expected {}", field_, type_, static_cast<int>(type)));
    }
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number has more than ten bytes");
  }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) fail("unexpected end of file: not a SentencePiece model, or truncated");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_, what_;
  const std::string& file_;
  uint64_t field_ = 0, number_ = 0;
  int type_ = 0;
  std::string_view bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  SentencePieceFile read(std::string_view bytes) {
    for (Message model(bytes, "model", name_); model.next();) {
      switch (model.field()) {
        case 1:
          read_piece(model.bytes());
          break;
        case 2:
          read_trainer(model.bytes());
          break;
        case 3:
          read_normalizer(model.bytes());
          break;
        case 5:
          read_denormalizer(model.bytes());
          break;
        default:
          break;  // self tests and extensions
      }
    }
    if (file_.pieces.empty()) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the model has no pieces", name_));
    find_special();
    check_sentencepiece(file_, name_);
    return std::move(file_);
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: {}", name_, what));
  }

  void read_piece(std::string_view bytes) {
    if (file_.pieces.size() > static_cast<size_t>(kMaxTokenId)) Message(bytes, "pieces", name_).fail("too many pieces");
    Piece piece;
    for (Message message(bytes, "piece", name_); message.next();) {
      if (message.field() == 1) piece.text = message.bytes();
      if (message.field() == 2) piece.score = message.real();
      if (message.field() == 3) {
        const int type = message.integer();
        if (type < 1 || type > 6) message.fail(fmt::format("unknown piece type {}", type));
        piece.type = static_cast<PieceType>(type);
      }
    }
    file_.pieces.push_back(std::move(piece));
  }

  void read_trainer(std::string_view bytes) {
    for (Message message(bytes, "trainer_spec", name_); message.next();) {
      switch (message.field()) {
        case 3:
          if (const int kind = message.integer(); kind == 1 || kind == 2) {
            file_.kind = static_cast<SentencePieceFile::Kind>(kind);
          } else {
            unsupported(fmt::format("trainer_spec.model_type {} (word or character) is not supported", kind));
          }
          break;
        case 24:
          if (message.boolean()) unsupported("trainer_spec.treat_whitespace_as_suffix is not supported");
          break;
        case 35:
          file_.byte_fallback = message.boolean();
          break;
        case 46:
          begin_ = message.bytes();
          break;
        case 47:
          end_ = message.bytes();
          break;
        case 48:
          padding_ = message.bytes();
          break;
        default:
          break;  // training settings
      }
    }
  }

  void read_normalizer(std::string_view bytes) {
    for (Message message(bytes, "normalizer_spec", name_); message.next();) {
      if (message.field() == 2) file_.charsmap = message.bytes();
      if (message.field() == 3) file_.add_dummy_prefix = message.boolean();
      if (message.field() == 4) file_.remove_extra_whitespaces = message.boolean();
      if (message.field() == 5) file_.escape_whitespaces = message.boolean();
    }
  }

  void read_denormalizer(std::string_view bytes) const {
    for (Message message(bytes, "denormalizer_spec", name_); message.next();) {
      if (message.field() == 2 && !message.bytes().empty()) unsupported("denormalizers are not supported");
    }
  }

  void find_special() {
    for (size_t i = 0; i < file_.pieces.size(); ++i) {
      const Piece& piece = file_.pieces[i];
      const auto id = static_cast<TokenId>(i);
      if (piece.type == PieceType::kUnknown) file_.unknown = id;
      if (piece.type != PieceType::kControl) continue;
      if (piece.text == begin_) file_.begin = id;
      if (piece.text == end_) file_.end = id;
      if (piece.text == padding_) file_.padding = id;
    }
  }

  const std::string& name_;
  SentencePieceFile file_;
  std::string begin_ = "<s>", end_ = "</s>", padding_ = "<pad>";
};

}  // namespace

void check_sentencepiece(const SentencePieceFile& file, const std::string& name) {
  const auto fail = [&](size_t id, std::string_view what) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: piece {} {}", name, id, what));
  };
  std::unordered_set<std::string_view> seen;
  int unknown = 0;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const Piece& piece = file.pieces[id];
    if (piece.text.empty()) fail(id, "is empty");
    if (valid_utf8_prefix(piece.text) != piece.text.size()) fail(id, "is not UTF-8");
    if (!std::isfinite(piece.score)) fail(id, "has a score that is not finite");
    if (!seen.insert(piece.text).second) fail(id, fmt::format("(\"{}\") appears twice", piece.text));
    if (piece.type == PieceType::kUnknown && ++unknown > 1) fail(id, "is a second unknown piece");
    if (piece.type == PieceType::kUnused && file.kind == SentencePieceFile::Kind::kBpe) {
      throw Error(ErrorCode::kUnsupportedModel,
                  fmt::format("{}: piece {} is unused, which is not supported for BPE", name, id));
    }
  }
  if (unknown == 0) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the model has no unknown piece", name));
  for (int byte = 0; file.byte_fallback && byte < 256; ++byte) {
    const std::string text = fmt::format("<0x{:02X}>", byte);
    if (!seen.contains(text)) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: byte_fallback is set, but the piece {} is missing", name, text));
    }
  }
}

SentencePieceFile read_sentencepiece(std::string_view bytes, const std::string& name) {
  return Reader(name).read(bytes);
}

}  // namespace sluice::tokenizer
