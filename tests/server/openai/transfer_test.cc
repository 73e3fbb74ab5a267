// The field kv_transfer_params of vLLM's proxies: what a server that computes a prompt answers is what the one that
// goes on with it is given.
#include "server/server_fixture.h"

namespace sluice::transfer_test {
namespace {

class Transfer : public ServerTest {
 protected:
  Transfer() {
    engine.info().kv_transfer_host = "10.0.0.7";
    engine.info().kv_transfer_port = 5600;
  }
  TestResponse ask(const Json& params, const Json& more = Json::object()) {
    Json body = {{"kv_transfer_params", params}};
    body.update(more);
    return completion(body);
  }
  const std::optional<KvTransfer>& given() {
    request_ = engine.last_request();
    return request_.kv_transfer;
  }

 private:
  Request request_;
};

TEST_F(Transfer, TheAnswerOfAPrefillIsTheRequestOfADecode) {
  const Json asked = {{"do_remote_decode", true},    {"do_remote_prefill", false}, {"remote_engine_id", nullptr},
                      {"remote_block_ids", nullptr}, {"remote_host", nullptr},     {"remote_port", nullptr}};
  for (const bool chats : {false, true}) {
    const TestResponse prefill = chats ? chat({{"kv_transfer_params", asked}}) : ask(asked);
    ASSERT_EQ(prefill.status, 200) << prefill.body;
    ASSERT_TRUE(given().has_value());
    EXPECT_EQ(given()->host, "");
    const std::string id = given()->id;
    EXPECT_FALSE(id.empty());
    const Json params = prefill.json()["kv_transfer_params"];
    EXPECT_EQ(params, (Json{{"do_remote_prefill", true},
                            {"do_remote_decode", false},
                            {"transfer_id", id},
                            {"remote_engine_id", "10.0.0.7:5600"},
                            {"remote_block_ids", Json::array()},
                            {"remote_host", "10.0.0.7"},
                            {"remote_port", 5600}}));
    const TestResponse decode = chats ? chat({{"kv_transfer_params", params}}) : ask(params);
    ASSERT_EQ(decode.status, 200) << decode.body;
    EXPECT_FALSE(decode.json().contains("kv_transfer_params"));
    ASSERT_TRUE(given().has_value());
    EXPECT_EQ(given()->host, "10.0.0.7");
    EXPECT_EQ(given()->port, 5600);
    EXPECT_EQ(given()->id, id);
  }
}

TEST_F(Transfer, TheClientMayNameThePrompt) {
  EXPECT_EQ(ask({{"do_remote_decode", true}, {"transfer_id", "mine"}}).json()["kv_transfer_params"]["transfer_id"],
            "mine");
  EXPECT_EQ(given()->id, "mine");
}

TEST_F(Transfer, NothingAskedForIsNothing) {
  for (const Json& params : {Json::object(), Json{{"do_remote_decode", false}}, Json{{"remote_host", "a"}}}) {
    const TestResponse response = ask(params);
    EXPECT_EQ(response.status, 200);
    EXPECT_FALSE(response.json().contains("kv_transfer_params"));
    EXPECT_FALSE(given().has_value());
  }
  EXPECT_EQ(ask(nullptr).status, 200);
}

TEST_F(Transfer, DecodesCanBeStreamed) {
  const Json params = {
      {"do_remote_prefill", true}, {"transfer_id", "a"}, {"remote_host", "10.0.0.7"}, {"remote_port", 5600}};
  EXPECT_EQ(ask(params, {{"stream", true}}).status, 200);
  expect_error(ask({{"do_remote_decode", true}}, {{"stream", true}}), 400, "stream", "invalid_value");
}

TEST_F(Transfer, RefusesWhatIsWrong) {
  const std::string field = "kv_transfer_params";
  expect_error(ask(7), 400, field, "invalid_type");
  expect_error(ask({{"do_remote_decode", 1}}), 400, field + ".do_remote_decode", "invalid_type");
  expect_error(ask({{"do_remote_decode", true}, {"do_remote_prefill", true}}), 400, field, "invalid_value");
  expect_error(ask({{"do_remote_prefill", true}, {"transfer_id", "a"}, {"remote_port", 1}}), 400,
               field + ".remote_host", "missing_required_parameter");
  expect_error(ask({{"do_remote_prefill", true}, {"transfer_id", "a"}, {"remote_host", "h"}}), 400,
               field + ".remote_port", "missing_required_parameter");
  expect_error(ask({{"do_remote_prefill", true}, {"remote_host", "h"}, {"remote_port", 1}}), 400,
               field + ".transfer_id", "missing_required_parameter");
  expect_error(ask({{"remote_port", 65536}}), 400, field + ".remote_port", "integer_above_max_value");
  expect_error(ask({{"transfer_id", ""}}), 400, field + ".transfer_id", "invalid_value");
  expect_error(ask({{"transfer_id", std::string(200, 'x')}}), 400, field + ".transfer_id", "invalid_value");
  expect_error(ask({{"tp", 2}}), 400, field + ".tp", "unsupported_parameter");
}

TEST_F(Transfer, HealthTellsARouterWhere) {
  EXPECT_EQ(get("/health").json()["kv_transfer"], (Json{{"host", "10.0.0.7"}, {"port", 5600}}));
  engine.info().kv_transfer_host.clear();
  EXPECT_FALSE(get("/health").json().contains("kv_transfer"));
}

}  // namespace
}  // namespace sluice::transfer_test
