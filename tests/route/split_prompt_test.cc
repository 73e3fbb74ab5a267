// One request becomes two, which differ from it only where they must.
#include "route/split_prompt.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace sluice::route {
namespace {

const TransferAddress kAddress{.host = "10.0.0.7", .port = 5600};

TEST(SplitPrompt, BothHaveThePrompt) {
  const Json asked = {{"model", "m"},
                      {"messages", {{{"role", "user"}, {"content", "a \"quoted\" } text"}}}},
                      {"tools", Json::array()},
                      {"cache_salt", "s"},
                      {"temperature", 0.25},
                      {"max_tokens", 100},
                      {"stream", true},
                      {"stream_options", {{"include_usage", true}}},
                      {"n", 3},
                      {"store", true}};
  const auto bodies = split_body(asked.dump(2), kAddress, "id-1");
  ASSERT_TRUE(bodies.has_value());
  Json decode = asked;
  decode["kv_transfer_params"] = {{"do_remote_decode", false},
                                  {"do_remote_prefill", true},
                                  {"transfer_id", "id-1"},
                                  {"remote_host", "10.0.0.7"},
                                  {"remote_port", 5600}};
  EXPECT_EQ(parse_json(bodies->decode), decode);
  const Json prefill = {
      {"model", "m"},
      {"messages", asked["messages"]},
      {"tools", Json::array()},
      {"cache_salt", "s"},
      {"temperature", 0.25},
      {"max_tokens", 1},
      {"kv_transfer_params", {{"do_remote_decode", true}, {"do_remote_prefill", false}, {"transfer_id", "id-1"}}}};
  EXPECT_EQ(parse_json(bodies->prefill), prefill);
}

TEST(SplitPrompt, WhatIsNoObjectIsLeftAlone) {
  for (const char* body : {"", "[]", "7", "{", R"({"prompt":"a")", R"({"prompt":"a"} x)", R"({"prompt":"a}",)",
                           R"({"prompt":"a","kv_transfer_params":null})", R"({"prompt":"a","prompt_embeds":"AAAA"})",
                           R"({"prompt":"a","prompt_modules":[{"prompt":"b"}]})"}) {
    EXPECT_FALSE(split_body(body, kAddress, "id").has_value()) << body;
  }
  EXPECT_TRUE(split_body("{}", kAddress, "id").has_value());
  EXPECT_TRUE(split_body(R"({"prompt":"a","prompt_embeds":null})", kAddress, "id").has_value());
  EXPECT_TRUE(parse_json(split_body(" { } ", kAddress, "id")->decode).contains("kv_transfer_params"));
}

// Whoever answers finds the fault, as without the split.
TEST(SplitPrompt, WhatIsMalformedStaysMalformed) {
  for (const char* body : {R"({"prompt":"a",})", R"({"prompt":"a" "n":2})", R"({"prompt":})", R"({"prompt":tru})"}) {
    const auto bodies = split_body(body, kAddress, "id");
    if (!bodies) continue;
    EXPECT_THROW(parse_json(bodies->decode), std::exception) << body;
  }
}

TEST(SplitPrompt, HealthTellsTheAddress) {
  const auto address = transfer_address(R"({"status":"ok","kv_transfer":{"host":"h","port":7}})");
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(address->host, "h");
  EXPECT_EQ(address->port, 7);
  for (const char* health : {"", "ok", "{}", R"({"kv_transfer":null})", R"({"kv_transfer":{"host":7,"port":7}})"}) {
    EXPECT_FALSE(transfer_address(health).has_value()) << health;
  }
}

}  // namespace
}  // namespace sluice::route
