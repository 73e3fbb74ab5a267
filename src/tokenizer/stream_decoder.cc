// Decodes token by token with the stages of Tokenizer::decode, emptied after each token.
#include "base/check.h"
#include "tokenizer/tokenizer_parts.h"

namespace sluice {

struct StreamDecoder::State {
  const Tokenizer::Parts& parts;
  bool skip_special_tokens;
  tokenizer::Decoding decoding;
  bool finished = false;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(new State{*tokenizer.parts_, skip_special_tokens, tokenizer.parts_->decoder.start()}) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(TokenId id) {
  CHECK(!state_->finished, "push after finish");
  if (state_->skip_special_tokens && state_->parts.is_special(id)) return {};
  const auto token = state_->parts.decoder_input(id);
  if (!token) return {};
  state_->decoding.push(*token);
  return state_->decoding.take();
}

std::string StreamDecoder::finish() {
  CHECK(!state_->finished, "finish twice");
  state_->finished = true;
  state_->decoding.finish();
  return state_->decoding.take();
}

}  // namespace sluice
