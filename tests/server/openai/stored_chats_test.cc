// Stored chat completions over HTTP: kept whole or streamed, listed, changed and erased, and a store that fails.
#include "server/server_fixture.h"
#include "server/store/failing_disk.h"
#include "support/temp_folder.h"

namespace sluice::stored_chats_test {
namespace {

constexpr std::string_view kPath = "/v1/chat/completions";

class StoredChats : public ServerTest {
 protected:
  // The id of a stored chat completion.
  std::string store(const Json& more = Json::object(), std::string_view headers = "") {
    Json body = {{"model", "fake"}, {"store", true}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    const TestResponse response = post(kPath, dump_json(body), headers);
    EXPECT_EQ(response.status, 200) << response.body;
    return "chatcmpl-" + response.headers.at("x-request-id");
  }
  TestResponse at(std::string_view rest, std::string_view headers = "") {
    return get(fmt::format("{}/{}", kPath, rest), headers);
  }
  TestResponse erase(const std::string& id, std::string_view headers = "") {
    return send(get_text(fmt::format("{}/{}", kPath, id), headers, "DELETE"));
  }
  TestResponse update(const std::string& id, std::string_view body, std::string_view headers = "") {
    return post(fmt::format("{}/{}", kPath, id), body, headers);
  }
  // The ids of a list.
  std::vector<std::string> ids(std::string_view query) {
    const TestResponse response = get(fmt::format("{}{}", kPath, query));
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<std::string> out;
    const Json list = response.json();
    for (const Json& item : list["data"]) out.push_back(item["id"]);
    EXPECT_EQ(list["object"], "list");
    EXPECT_EQ(list["first_id"], out.empty() ? Json() : Json(out.front()));
    EXPECT_EQ(list["last_id"], out.empty() ? Json() : Json(out.back()));
    return out;
  }
};

TEST_F(StoredChats, AnAnswerIsKeptWithItsRequest) {
  const TestResponse answer = chat({{"store", true},
                                    {"metadata", {{"k", "v"}}},
                                    {"temperature", 0.5},
                                    {"seed", 7},
                                    {"response_format", {{"type", "text"}}}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json sent = answer.json();
  EXPECT_FALSE(sent.contains("metadata"));
  const Json kept = at(sent["id"].get<std::string>()).json();
  for (const auto& [key, value] : sent.items()) EXPECT_EQ(kept[key], value) << key;
  EXPECT_EQ(kept["object"], "chat.completion");
  EXPECT_EQ(kept["metadata"], (Json{{"k", "v"}}));
  EXPECT_EQ(kept["request_id"], answer.headers.at("x-request-id"));
  EXPECT_EQ(kept["temperature"], 0.5);
  EXPECT_EQ(kept["seed"], 7);
  EXPECT_EQ(kept["response_format"]["type"], "text");
  EXPECT_EQ(kept["tools"], nullptr);
  EXPECT_EQ(kept["service_tier"], "default");
}

// What a stream leaves behind is what the whole answer is.
TEST_F(StoredChats, StreamsAreKeptAsAWhole) {
  engine.answer_with({ReasoningDelta{"why"}, TextDelta{"a"}, TextDelta{"b"}, ToolCallBegin{0, "id", "f"},
                      ToolCallArguments{0, "{\"x\":"}, ToolCallArguments{0, "1}"}});
  for (const Json& more : {Json::object(), Json{{"n", 2}}, Json{{"logprobs", true}, {"top_logprobs", 2}},
                           Json{{"return_token_ids", true}}}) {
    SCOPED_TRACE(dump_json(more));
    Json streamed = more;
    streamed["stream"] = true;
    const Json whole = at(store(more)).json(), stream = at(store(streamed)).json();
    for (const char* member : {"choices", "usage", "object", "prompt_token_ids"}) {
      std::string a = dump_json(whole.value(member, Json())), b = dump_json(stream.value(member, Json()));
      EXPECT_EQ(a, b) << member;
    }
  }
}

TEST_F(StoredChats, OnlyWhatIsToBeStoredIs) {
  const Json answer = chat({{"metadata", {{"k", "v"}}}}).json();
  expect_error(at(answer["id"].get<std::string>()), 404, "", "");
  engine.fail_at_token = 1;
  EXPECT_EQ(chat({{"store", true}}).status, 500);
  EXPECT_TRUE(ids("").empty());
}

TEST_F(StoredChats, Lists) {
  std::vector<std::string> all;
  for (const char* label : {"x", "y", "x"}) all.push_back(store({{"metadata", {{"k e", label}}}}));
  all.push_back(store());
  using Ids = std::vector<std::string>;
  EXPECT_EQ(ids(""), all);
  EXPECT_EQ(ids("?order=desc"), Ids(all.rbegin(), all.rend()));
  EXPECT_EQ(ids("?limit=2"), Ids(all.begin(), all.begin() + 2));
  EXPECT_EQ(get(std::string(kPath) + "?limit=2").json()["has_more"], true);
  EXPECT_EQ(get(std::string(kPath) + "?limit=2&after=" + all[1]).json()["has_more"], false);
  EXPECT_EQ(ids("?limit=2&after=" + all[0]), Ids(all.begin() + 1, all.begin() + 3));
  EXPECT_EQ(ids("?metadata%5Bk+e%5D=x"), (Ids{all[0], all[2]}));
  EXPECT_EQ(ids("?metadata[k%20e]=x&order=desc"), (Ids{all[2], all[0]}));
  EXPECT_EQ(ids("?model=fake"), all);
  EXPECT_TRUE(ids("?model=other").empty());
  // Cleaning up goes on from what was just erased.
  Ids erased;
  for (std::string after;;) {
    const Ids page = ids(fmt::format("?limit=1&after={}", after));
    if (page.empty()) break;
    after = page[0];
    EXPECT_EQ(erase(after).body, R"({"id":")" + after + R"(","object":"chat.completion.deleted","deleted":true})");
    erased.push_back(after);
  }
  EXPECT_EQ(erased, all);
  EXPECT_TRUE(ids("").empty());
}

TEST_F(StoredChats, BadQueriesAreRefusedByName) {
  const std::string path(kPath);
  expect_error(get(path + "?limit=0"), 400, "limit", "integer_below_min_value");
  expect_error(get(path + "?limit=101"), 400, "limit", "integer_above_max_value");
  expect_error(get(path + "?limit=many"), 400, "limit", "invalid_type");
  expect_error(get(path + "?order=up"), 400, "order", "invalid_value");
  expect_error(get(path + "?after=none"), 404, "after", "");
  std::string many = "?a=1";
  for (int i = 0; i < 17; ++i) many += fmt::format("&metadata[{}]=a", i);
  expect_error(get(path + many), 400, "metadata", "invalid_value");
  EXPECT_EQ(get(path + "?colour=red").headers.at("x-sluice-warning"), "unknown fields ignored: colour");
  const std::string id = store();
  expect_error(at(id + "/messages?after=" + id + "-1"), 404, "after", "");
  expect_error(at(id + "/messages?after=x"), 404, "after", "");
  expect_error(at(id + "/other"), 404, "", "unknown_url");
  expect_error(at("none/messages"), 404, "", "");
  expect_error(at("%00"), 404, "", "");
  expect_error(erase("none"), 404, "", "");
  expect_error(update("none", R"({"metadata":{}})"), 404, "", "");
  expect_error(update(id, "{}"), 400, "metadata", "missing_required_parameter");
}

TEST_F(StoredChats, Messages) {
  Json messages = Json::array();
  messages.push_back({{"role", "system"}, {"content", "be"}});
  messages.push_back({{"role", "user"}, {"name", "me"}, {"content", Json::array({{{"type", "text"}, {"text", "a"}}})}});
  const Json call = {{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  messages.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}});
  messages.push_back({{"role", "tool"}, {"content", "r"}, {"tool_call_id", "1"}});
  const std::string id = store({{"messages", messages}});
  const Json list = at(id + "/messages").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["first_id"], id + "-0");
  EXPECT_EQ(list["last_id"], id + "-3");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(dump_json(list["data"][0]),
            R"({"id":")" + id + R"(-0","role":"system","content":"be","content_parts":null,"name":null})");
  EXPECT_EQ(list["data"][1]["content"], nullptr);
  EXPECT_EQ(list["data"][1]["content_parts"][0]["text"], "a");
  EXPECT_EQ(list["data"][1]["name"], "me");
  EXPECT_EQ(list["data"][2]["tool_calls"][0], call);
  EXPECT_EQ(list["data"][3]["tool_call_id"], "1");
  const Json page = at(id + "/messages?limit=2&order=desc&after=" + id + "-3").json();
  EXPECT_EQ(page["first_id"], id + "-2");
  EXPECT_EQ(page["last_id"], id + "-1");
  EXPECT_EQ(page["has_more"], true);
  EXPECT_TRUE(at(id + "/messages?after=" + id + "-3").json()["data"].empty());
}

TEST_F(StoredChats, MetadataHasOpenAisLimits) {
  const std::string id = store({{"metadata", {{"a", "1"}}}});
  EXPECT_EQ(update(id, R"({"metadata":{"b":"2"}})").json()["metadata"], (Json{{"b", "2"}}));
  EXPECT_EQ(at(id).json()["metadata"], (Json{{"b", "2"}}));
  Json many = Json::object();
  for (int i = 0; i < 17; ++i) many[std::to_string(i)] = "";
  std::string accented;  // characters count, not bytes
  for (int i = 0; i < 512; ++i) accented += "\u00e9";
  const std::vector<std::tuple<Json, std::string, std::string>> rows = {
      {5, "metadata", "invalid_type"},
      {many, "metadata", "object_above_max_length"},
      {{{"a", 5}}, "metadata.a", "invalid_type"},
      {{{std::string(65, 'k'), ""}}, "metadata", "string_above_max_length"},
      {{{"a", std::string(513, 'v')}}, "metadata.a", "string_above_max_length"},
  };
  for (const auto& [metadata, param, code] : rows) {
    SCOPED_TRACE(dump_json(metadata));
    expect_error(update(id, dump_json({{"metadata", metadata}})), 400, param, code);
    expect_error(chat({{"metadata", metadata}}), 400, param, code);
    expect_error(chat({{"metadata", metadata}, {"stream", true}, {"store", true}}), 400, param, code);
    expect_error(post("/v1/responses", dump_json({{"input", "a"}, {"metadata", metadata}})), 400, param, code);
  }
  EXPECT_EQ(update(id, dump_json({{"metadata", {{std::string(64, 'k'), accented}}}})).status, 200);
  expect_error(chat({{"store", "yes"}}), 400, "store", "invalid_type");
}

TEST_F(StoredChats, BelongToTheKey) {
  options.api_key = {"a", "b"};
  const std::string a = "Authorization: Bearer a\r\n", b = "Authorization: Bearer b\r\n";
  const std::string id = store(Json::object(), a);
  EXPECT_EQ(at(id, a).status, 200);
  expect_error(at(id, b), 404, "", "");
  expect_error(at(id + "/messages", b), 404, "", "");
  expect_error(update(id, R"({"metadata":{}})", b), 404, "", "");
  expect_error(erase(id, b), 404, "", "");
  EXPECT_TRUE(get(kPath, b).json()["data"].empty());
  EXPECT_EQ(erase(id, a).status, 200);
}

TEST_F(StoredChats, AFileIsReadByTheNextServer) {
  const testing::TempFolder folder;
  options.store = folder / "store.db";
  const std::string id = store({{"metadata", {{"k", "v"}}}});
  const std::string response = post("/v1/responses", R"({"input":"hi"})").json()["id"];
  stop();
  EXPECT_EQ(ids("?metadata[k]=v"), std::vector<std::string>{id});
  EXPECT_EQ(get("/v1/responses/" + response).status, 200);
  const Json next = post("/v1/responses", dump_json({{"input", "go"}, {"previous_response_id", response}})).json();
  EXPECT_EQ(next["output"][0]["content"][0]["text"], "user:hi|assistant:user:hi|>|user:go|>");
}

// Only those who want their answers stored notice.
TEST_F(StoredChats, AFullDisk) {
  const server::FailingDisk disk;
  const testing::TempFolder folder;
  options.store = folder / "store.db";
  const std::string id = store();
  server::FailingDisk::error = SQLITE_FULL;
  const TestResponse refused = chat({{"store", true}});
  expect_error(refused, 500, "", "store_failed", "server_error");
  EXPECT_NE(refused.body.find("database or disk is full"), std::string::npos) << refused.body;
  const int submitted = engine.submitted;
  expect_error(chat({{"store", true}, {"stream", true}}), 500, "", "store_failed", "server_error");
  expect_error(post("/v1/responses", R"({"input":"hi"})"), 500, "", "store_failed", "server_error");
  EXPECT_EQ(engine.submitted, submitted) << "the answers would be lost";
  EXPECT_EQ(post("/v1/responses", R"({"input":"hi","store":false})").status, 200);
  EXPECT_EQ(chat().status, 200);
  EXPECT_EQ(at(id).status, 200);
  server::FailingDisk::error = SQLITE_OK;
  EXPECT_EQ(chat({{"store", true}}).status, 200);
  // A disk that fills up while the answer is streamed ends the stream with the error.
  server::FailingDisk::error = SQLITE_FULL;
  const TestResponse stream = chat({{"store", true}, {"stream", true}});
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("\"code\":\"store_failed\""), std::string::npos) << stream.body;
  EXPECT_EQ(stream.body.find("[DONE]"), std::string::npos);
  server::FailingDisk::error = SQLITE_OK;
  stop();
}

TEST_F(StoredChats, AnAnswerThatIsLargerThanTheStore) {
  options.store_size = 200;
  expect_error(chat({{"store", true}}), 400, "store", "answer_above_store_size");
  EXPECT_EQ(chat().status, 200);
}

}  // namespace
}  // namespace sluice::stored_chats_test
