// Fuzzes read_torch_file and read_torch_tensor with arbitrary files: the result is an Error, or tensors whose bytes can
// be read. Each input is tried as a whole file, and as the pickle of an archive with one storage, so that mutations
// need not guess offsets and checksums.
#include "base/check.h"
#include "formats/torch/torch_file.h"
#include "formats/torch_archive.h"
#include "sluice/error.h"

namespace {

using namespace sluice;

void read(std::string_view file, TorchFile (*reader)(std::span<const std::byte>, const std::string&)) {
  try {
    const TorchFile found = reader(std::as_bytes(std::span(file)), "input");
    unsigned sum = 0;
    for (const TensorEntry& entry : found.entries) {
      for (const std::byte b : std::span(entry.data, entry.bytes)) sum += std::to_integer<unsigned>(b);
    }
    volatile unsigned read_all = sum;
    (void)read_all;
  } catch (const Error& e) {
    CHECK(e.code == ErrorCode::kCorruptFile || e.code == ErrorCode::kUnsupportedModel, "{}", e.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string archive = testing::zip(testing::torch_files(input, {{"0", std::string(64, '\1')}}));
  for (const auto reader : {read_torch_file, read_torch_tensor}) {
    read(input, reader);
    read(archive, reader);
  }
  return 0;
}
