// Base64, with and without the padding that it should have.
#include "base/base64.h"

#include <gtest/gtest.h>

namespace sluice::base64_test {
namespace {

TEST(Base64, Decodes) {
  for (const auto& [text, bytes] : {std::pair{"", ""},
                                    {"Zg==", "f"},
                                    {"Zm8=", "fo"},
                                    {"Zm9v", "foo"},
                                    {"Zm9vYg==", "foob"},
                                    {"Pj4+Pz8/", ">>>???"}}) {
    EXPECT_EQ(decode_base64(text), bytes);
    EXPECT_EQ(decode_padded_base64(text), bytes);
  }
  EXPECT_EQ(decode_base64("Zm8"), "fo");
}

TEST(Base64, RefusesWhatIsNone) {
  for (const char* text : {"Zm8", "Zg=", "Z===", "====", "Zm9=v", "Zm 9", "Zm9v\n", "Zm9-", "Zm9_", "=Zm9"}) {
    EXPECT_EQ(decode_padded_base64(text), std::nullopt) << text;
  }
  EXPECT_EQ(decode_base64("Zm9-"), std::nullopt);
}

}  // namespace
}  // namespace sluice::base64_test
