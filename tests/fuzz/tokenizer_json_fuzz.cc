// Fuzzes Tokenizer::from_json with arbitrary text: the result is an Error, or a tokenizer that can encode and decode.
#include "base/check.h"
#include "base/log.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  log::set_level(log::Level::kOff);
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = Tokenizer::from_json(json, "tokenizer.json");
    for (const std::string_view text :
         {"", "Hello, World! 123  it's\n\n a--b", "ab▁ab <s>Ünï 中文 🙂e\u0301\u0327 \u3000x"}) {
      const auto ids = tokenizer->encode(text);
      for (const TokenId id : ids) {
        CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
        tokenizer->token_bytes(id);
      }
      for (const bool skip : {false, true}) {
        StreamDecoder stream(*tokenizer, skip);
        std::string streamed;
        for (const TokenId id : ids) streamed += stream.push(id);
        streamed += stream.finish();
        CHECK(streamed == tokenizer->decode(ids, skip), "{}", streamed);
      }
    }
  } catch (const Error& e) {
    CHECK(e.what()[0] != '\0');
  }
  return 0;
}
