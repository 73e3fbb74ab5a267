// Fuzzes SentencePiece models: the result is an Error, or a vocabulary that can encode and decode.
#include "base/check.h"
#include "sluice/error.h"
#include "tokenizer/files/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  try {
    const auto file = tokenizer::read_sentencepiece({reinterpret_cast<const char*>(data), size}, "input");
    const auto parts = tokenizer::make_sentencepiece(file, tokenizer::DummyPrefix::kAlways, "input");
    std::string text = "Hello  world \u00e9\u3000\u2581 <s> \U0001F600";
    parts.normalizer->apply(text);
    tokenizer::Pieces pieces{.text = text, .spans = {{0, text.size()}}, .from_the_start = true};
    for (const auto& step : parts.pretokenizers.steps) step->apply(pieces);
    std::vector<TokenId> ids;
    parts.model->tokenize(pieces, ids);
    for (const TokenId id : ids) CHECK(parts.model->vocab().has(id), "{}", id);
  } catch (const Error& e) {
    CHECK(e.code == ErrorCode::kCorruptFile || e.code == ErrorCode::kUnsupportedModel, "{}", e.what());
  }
  return 0;
}
