// Checks that the goldens' weights match those written by the Python script.
#include "support/hashed_weights.h"

#include <gtest/gtest.h>

#include "base/mmap.h"
#include "support/temp_folder.h"

namespace sluice::testing::hashed_weights_test {
namespace {

struct Golden {
  const char* name;
  uint64_t checksum;  // fnv1a64 of the data that numpy computed, one tensor after another
};

TEST(HashedWeights, AreThoseOfTheScriptByteForByte) {
  for (const Golden& golden : {Golden{"llama", 0xa22c4350e281dd52}, Golden{"qwen2", 0xc102107bd9dd94e8}}) {
    const TempFolder folder;
    write_hashed_checkpoint(std::string(SLUICE_SOURCE_DIR "/tests/goldens/arch/") + golden.name, folder.path());
    const MappedFile file(folder / "model.safetensors");
    const auto entries = read_safetensors(file.bytes(), file.path());
    ASSERT_FALSE(entries.empty());
    const char* begin = reinterpret_cast<const char*>(entries.front().data);
    const char* end = reinterpret_cast<const char*>(entries.back().data) + entries.back().bytes;
    EXPECT_EQ(fnv1a64({begin, end}), golden.checksum) << golden.name;
  }
}

TEST(HashedWeights, ValuesGivenInFullAreRoundedToBf16) {
  const Json row = parse_json(R"({"name": "a_log", "shape": [3], "values": [1.0, 1.00390625, -2.5]})");
  EXPECT_EQ(hashed_weights(row), (std::vector<uint16_t>{0x3f80, 0x3f80, 0xc020}));
}

}  // namespace
}  // namespace sluice::testing::hashed_weights_test
