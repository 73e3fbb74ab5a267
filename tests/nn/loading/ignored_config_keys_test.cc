// Tests which unread configuration keys are reported.
#include "nn/loading/ignored_config_keys.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace sluice::ignored_config_keys_test {
namespace {

using Keys = std::vector<std::string>;

Config config(std::string_view json) { return Config(parse_json(json), "config.json"); }

TEST(IgnoredConfigKeys, UnreadKeysAreReportedUnlessListed) {
  const Config c = config(R"({"hidden_size": 8, "n_ctx": 64, "pad_key_length": true, "rope_twist": 1})");
  c.get("hidden_size", 0);
  const IgnoredKey of_family[] = {{"pad_key_length"}};
  EXPECT_EQ(unknown_config_keys(c, of_family), Keys{"'rope_twist'"});
  EXPECT_EQ(unknown_config_keys(c, {}), (Keys{"'pad_key_length'", "'rope_twist'"}));
}

TEST(IgnoredConfigKeys, OtherThanTheAcceptedValueIsReported) {
  const IgnoredKey of_family[] = {{"qk_norm", "true"}, {"norm_type", "\"rms\""}};
  EXPECT_EQ(unknown_config_keys(config(R"({"qk_norm": true, "norm_type": "rms", "qkv_bias": false})"), of_family),
            Keys{});
  EXPECT_EQ(unknown_config_keys(config(R"({"qk_norm": false, "norm_type": "layer", "qkv_bias": true})"), of_family),
            (Keys{"'qk_norm' (false; true is supported)", "'norm_type' (\"layer\"; \"rms\" is supported)",
                  "'qkv_bias' (true; false is supported)"}));
}

}  // namespace
}  // namespace sluice::ignored_config_keys_test
