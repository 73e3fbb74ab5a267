// Tests SHA-256 against the examples of FIPS 180-4, and the build ID of this program.
#include "base/sha256.h"

#include <gtest/gtest.h>

#include "base/build_id.h"

namespace sluice::sha256_test {
namespace {

TEST(Sha256, Examples) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(BuildId, IsAHash) {
  const std::string id = build_id();
  EXPECT_EQ(id.size(), 40u) << id;
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
}

}  // namespace
}  // namespace sluice::sha256_test
