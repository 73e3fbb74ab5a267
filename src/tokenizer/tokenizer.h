// Text to token ids and back, as the checkpoint's tokenizer files say.
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

// Immutable after construction: every const member may be called from any thread.
// The sections "truncation" and "padding" of tokenizer.json are not applied: how long a prompt may be is the engine's
// decision, and batches are not padded.
class Tokenizer {
 public:
  // Reads a Hugging Face tokenizer.json. Throws Error that names the file and the field: kCorruptFile when the file
  // contradicts its format, kUnsupportedModel when it asks for a component or option that is not implemented.
  static std::unique_ptr<Tokenizer> from_file(const std::string& tokenizer_json_path);
  // The same for a text in memory; `name` stands for the file in error messages.
  static std::unique_ptr<Tokenizer> from_json(std::string_view text, const std::string& name);
  // The tokenizer of a model: a folder, or one of the files below. In a folder the first of these is taken:
  //   tokenizer.json
  //   tokenizer.model, spiece.model (SentencePiece, or tiktoken's lines), tiktoken.model, *.tiktoken
  //   vocab.json and merges.txt, encoder.json and vocab.bpe (byte-level BPE)
  //   vocab.txt (WordPiece)
  // with what tokenizer_config.json, special_tokens_map.json and added_tokens.json beside it add. Throws Error:
  // kNotFound when there is none, else as from_file.
  static std::unique_ptr<Tokenizer> open(const std::string& path);
  ~Tokenizer();

  // Added tokens (special or not) are recognised wherever their text occurs; `add_special_tokens` asks for what the
  // post-processor puts around the text (<s>, [CLS], ...). Time is linear in the text up to a logarithm.
  // Throws Error(kInvalidRequest) for invalid UTF-8 and for text beyond 256 MiB.
  // Long texts are encoded by several threads, as many as the process has CPUs and `threads` allows, to the same
  // tokens.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true,
                              const tokenizer::Threads& threads = {}) const;

  // What the post-processor makes of the own tokens of one text, encode(text, false), and of two.
  std::vector<TokenId> surround(std::vector<TokenId> own) const;
  struct Pair {
    std::vector<TokenId> tokens;
    std::vector<int32_t> types;  // 0 for the first text's part, as a rule 1 for the second's
  };
  Pair join(std::span<const TokenId> first, std::span<const TokenId> second) const;

  // The text of the tokens. Bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary stand for nothing.
  std::string decode(std::span<const TokenId> tokens, bool skip_special_tokens) const;

  // The vocabulary's own spelling, for example "Ġworld"; empty for an id outside the vocabulary.
  std::string_view token_text(TokenId id) const;
  // The bytes the token adds to a text when it is not the first of it, for example " world"; not always whole UTF-8.
  std::string token_bytes(TokenId id) const;
  std::optional<TokenId> token_id(std::string_view text) const;
  // Whether decode(..., skip_special_tokens = true) leaves the token out.
  bool is_special(TokenId id) const;
  // Highest id + 1. The ids below need not all be taken.
  int vocab_size() const;
  // For people: "byte-level BPE", "BPE with byte fallback", "BPE", "Unigram", "WordPiece", "WordLevel".
  std::string_view kind() const;

  struct Parts;  // the components, known to the loader and to StreamDecoder only

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

// Decodes a sequence token by token. The results of all push() calls and of finish() in a row are exactly what
// Tokenizer::decode gives for all tokens at once, and each is valid UTF-8 by itself: bytes that may still become a
// character are held back. Constant time per token, amortised. One thread at a time; the tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string push(TokenId id);
  // Ends the sequence: what was held back, U+FFFD for an incomplete character. No push() may follow.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
