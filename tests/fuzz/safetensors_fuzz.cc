// Fuzzes read_safetensors with arbitrary files: the result is an Error, or entries that cover the data exactly. Each
// input is tried as a whole file, and as a header up to the first newline followed by the data, so that mutations need
// not guess a length.
#include <cstring>
#include <string>

#include "base/check.h"
#include "formats/safetensors.h"
#include "sluice/error.h"

namespace {

using namespace sluice;

void read(std::span<const std::byte> file) {
  std::vector<TensorEntry> entries;
  try {
    entries = read_safetensors(file, "input");
  } catch (const Error& e) {
    CHECK(e.code == ErrorCode::kCorruptFile || e.code == ErrorCode::kUnsupportedModel, "{}", e.what());
    return;
  }
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const std::byte* at = file.data() + sizeof(header) + header;
  for (const TensorEntry& entry : entries) {
    CHECK(entry.data == at && entry.view().bytes() == entry.bytes, "{}", entry.name);
    at += entry.bytes;
  }
  CHECK(at == file.data() + file.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  read(std::as_bytes(std::span(input)));

  const std::string_view header = input.substr(0, input.find('\n'));
  const std::string_view rest = input.substr(std::min(size, header.size() + 1));
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file.append(header).append(rest);
  read(std::as_bytes(std::span(file)));
  return 0;
}
