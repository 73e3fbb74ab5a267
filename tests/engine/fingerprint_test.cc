// A model's fingerprint follows its contents and the types it is loaded with, not its path.
#include "engine/fingerprint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/collect.h"
#include "support/temp_folder.h"

namespace sluice::fingerprint_test {
namespace {

namespace fs = std::filesystem;

std::string fingerprint_of(EngineOptions options) {
  options.kv_cache_memory_bytes = int64_t{8} << 20;
  ThreadPool threads(1);
  return model_fingerprint(plan_load(options, threads));
}

TEST(Fingerprint, FollowsContentsAndTypes) {
  const EngineOptions original{.model = testing::demo_model()};
  const std::string fingerprint = fingerprint_of(original);
  EXPECT_EQ(fingerprint.size(), 64u);

  const testing::TempFolder folder;
  const fs::path copy = folder / "elsewhere";
  fs::copy(original.model, copy);
  EngineOptions moved = original;
  moved.model = copy.string();
  EXPECT_EQ(fingerprint_of(moved), fingerprint) << "the path does not count";

  EngineOptions narrow = original;
  narrow.kv_cache_dtype = "fp8";
  EXPECT_NE(fingerprint_of(narrow), fingerprint) << "the type of the cache counts";
  EngineOptions quantized = original;
  quantized.quantization = "q8_0";
  EXPECT_NE(fingerprint_of(quantized), fingerprint) << "quantization counts";

  const auto with_draft = [&](const std::string& model) {
    EngineOptions options = original;
    options.speculative_config = R"({"model": ")" + model + R"("})";
    return fingerprint_of(options);
  };
  EXPECT_NE(with_draft(testing::draft_model()), fingerprint) << "blocks have the draft model's values, too";
  EXPECT_NE(with_draft(testing::draft_model()), with_draft(original.model));

  // Another model of the same architecture: same headers, other weights.
  std::fstream file(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(0, std::ios::end);
  std::string bytes(static_cast<size_t>(file.tellg()), '\0');
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (size_t i = 8 + header; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  file.seekp(0);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  EXPECT_NE(fingerprint_of(moved), fingerprint) << "the weights count";
}

}  // namespace
}  // namespace sluice::fingerprint_test
