// Converts text to token IDs and back, as the checkpoint's tokenizer files define it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/threads.h"

namespace sluice {

using TokenId = int32_t;

// Immutable after construction: any thread may call every const member. The sections "truncation" and "padding" of
// tokenizer.json are not applied: the engine limits the length of a prompt, and batches are not padded.
class Tokenizer {
 public:
  // Reads a Hugging Face tokenizer.json. Throws Error that names the file and the field: kCorruptFile when the file
  // violates its format, kUnsupportedModel when it needs a component or option that is not implemented.
  static std::unique_ptr<Tokenizer> from_file(const std::string& tokenizer_json_path);
  // Reads a tokenizer.json in memory; `name` is the file name in error messages.
  static std::unique_ptr<Tokenizer> from_json(std::string_view text, const std::string& name);
  // Opens the tokenizer of a model. `path` is a folder, or one of the files below. In a folder, the first of these
  // files is used:
  //   tokenizer.json
  //   tokenizer.model, spiece.model (SentencePiece, or tiktoken's lines), tiktoken.model, *.tiktoken
  //   vocab.json and merges.txt, encoder.json and vocab.bpe (byte-level BPE)
  //   vocab.txt (WordPiece)
  // The settings of tokenizer_config.json, special_tokens_map.json and added_tokens.json in the same folder are
  // applied. Throws Error: kNotFound when there is no tokenizer, otherwise as from_file.
  static std::unique_ptr<Tokenizer> open(const std::string& path);
  ~Tokenizer();

  // Encodes a text. Added tokens (special or not) are recognized wherever their text occurs. `add_special_tokens`
  // applies the post-processor, which adds tokens around the text (<s>, [CLS], ...). Time is linear in the text, up to
  // a logarithm. Long texts are encoded by several threads, as many as the process has CPUs and `threads` allows; the
  // tokens are the same. Throws Error(kInvalidRequest) for invalid UTF-8 and for text beyond 256 MiB.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true,
                              const tokenizer::Threads& threads = {}) const;

  // Apply the post-processor to the own tokens, encode(text, false), of one text or of two texts.
  std::vector<TokenId> surround(std::vector<TokenId> own) const;
  struct Pair {
    std::vector<TokenId> tokens;
    std::vector<int32_t> types;  // 0 for tokens of the first text, usually 1 for the second
  };
  Pair join(std::span<const TokenId> first, std::span<const TokenId> second) const;

  // Returns the text of the tokens. Bytes that are not UTF-8 become U+FFFD. IDs outside the vocabulary are skipped.
  std::string decode(std::span<const TokenId> tokens, bool skip_special_tokens) const;

  // Returns the vocabulary's own spelling, for example "Ġworld"; empty for an ID outside the vocabulary.
  std::string_view token_text(TokenId id) const;
  // Returns the bytes that the token adds to a text when it is not the first token, for example " world". They may be
  // part of a UTF-8 character.
  std::string token_bytes(TokenId id) const;
  std::optional<TokenId> token_id(std::string_view text) const;
  // Returns whether decode(..., skip_special_tokens = true) skips the token.
  bool is_special(TokenId id) const;
  // Returns the highest ID + 1. Lower IDs may be unused.
  int vocab_size() const;
  // Returns a display name: "byte-level BPE", "BPE with byte fallback", "BPE", "Unigram", "WordPiece", "WordLevel".
  std::string_view kind() const;

  struct Parts;  // the components, known only to the loader and to StreamDecoder

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

// Decodes a sequence token by token. The concatenated results of all push() calls and of finish() equal the result of
// Tokenizer::decode for all tokens at once. Each result is valid UTF-8: bytes that may still become a character are
// held back. Amortized constant time per token. One thread at a time; the tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string push(TokenId id);
  // Ends the sequence. Returns what was held back, with U+FFFD for an incomplete character. No push() may follow.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
