// Fuzzes read_gguf and the readers of its metadata with arbitrary files: the result is an Error, or tensors within the
// file. Each input is tried as it is, and after a valid magic number and version.
#include <string>

#include "base/check.h"
#include "formats/gguf/text.h"
#include "sluice/error.h"
#include "tokenizer/files/gguf_tokenizer.h"

namespace {

using namespace sluice;

void check_tensors(const GgufFile& gguf, std::span<const std::byte> file) {
  for (const TensorEntry& entry : gguf.tensors) {
    CHECK(entry.data >= file.data() && entry.data + entry.bytes <= file.data() + file.size(), "{}", entry.name);
    CHECK(entry.view().bytes() == entry.bytes, "{}", entry.name);
  }
}

void read(std::span<const std::byte> file) {
  try {
    const GgufFile gguf = read_gguf(file, "input");
    check_tensors(gguf, file);
    gguf_end_tokens(gguf.metadata);
    gguf_tokenizer_config(gguf.metadata);
    tokenizer::read_gguf_tokenizer(gguf.metadata);
  } catch (const Error& e) {
    CHECK(e.code == ErrorCode::kCorruptFile || e.code == ErrorCode::kUnsupportedModel, "{}", e.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  read(std::as_bytes(std::span(input)));
  std::string file("GGUF\x03\0\0\0", 8);
  file.append(input);
  read(std::as_bytes(std::span(file)));
  return 0;
}
