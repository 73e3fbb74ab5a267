// OpenAI's Responses API: input, answers whole and streamed, stored responses.
#include <atomic>
#include <chrono>
#include <thread>

#include "server/server_fixture.h"

namespace sluice::responses_test {
namespace {

class Responses : public ServerTest {
 protected:
  Responses() {
    engine.info().thinking_switch = "enable_thinking";
    engine.info().template_takes_effort = true;
  }
  TestResponse create(const Json& more, std::string_view headers = "") {
    Json body = {{"model", "fake"}, {"input", "hi"}};
    body.update(more);
    return post("/v1/responses", dump_json(body), headers);
  }
  // What the template would get: the fake engine answers with its prompt.
  std::string prompt(const Json& more) {
    const TestResponse response = create(more);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json()["output"][0]["content"][0]["text"];
  }
  TestResponse remove(const std::string& id, std::string_view headers = "") {
    return send(get_text("/v1/responses/" + id, headers, "DELETE"));
  }
  static std::vector<Json> events(const std::string& text) {
    std::vector<Json> out;
    for (size_t at = 0; at < text.size();) {
      const size_t line = text.find('\n', at), end = text.find("\n\n", at);
      out.push_back(parse_json(text.substr(line + 7, end - line - 7)));
      EXPECT_EQ(text.substr(at, line - at), "event: " + out.back().at("type").get<std::string>());
      EXPECT_EQ(out.back().at("sequence_number"), out.size() - 1);
      at = end + 2;
    }
    return out;
  }
};

TEST_F(Responses, WholeAnswer) {
  const TestResponse response = create({{"instructions", "be"}, {"metadata", {{"a", "b"}}}, {"temperature", 0.5}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_EQ(answer["id"], "resp_" + response.headers.at("x-request-id"));
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_EQ(answer["instructions"], "be");
  EXPECT_EQ(answer["metadata"]["a"], "b");
  EXPECT_EQ(answer["temperature"], 0.5);
  EXPECT_EQ(answer["incomplete_details"], nullptr);
  const Json& item = answer["output"][0];
  EXPECT_EQ(item["type"], "message");
  EXPECT_EQ(item["status"], "completed");
  EXPECT_EQ(dump_json(item["content"]),
            R"([{"type":"output_text","text":"system:be|user:hi|>","annotations":[],"logprobs":[]}])");
  EXPECT_EQ(dump_json(answer["usage"]),
            R"({"input_tokens":19,"input_tokens_details":{"cached_tokens":3},"output_tokens":20,)"
            R"("output_tokens_details":{"reasoning_tokens":0},"total_tokens":39})");
  const Json cut = create({{"max_output_tokens", 2}}).json();
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(cut["output"][0]["status"], "incomplete");
}

TEST_F(Responses, ItemsInOrder) {
  engine.answer_with({ReasoningDelta{"why"}, TextDelta{"a"}, TextDelta{"b"}, ToolCallBegin{0, "id", "f"},
                      ToolCallArguments{0, "{\"x\":"}, ToolCallArguments{0, "1}"}});
  const Json whole = create(Json::object()).json();
  const TestResponse stream = create({{"stream", true}});
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<Json> all = events(stream.body);
  std::string types;
  for (const Json& event : all) types += event["type"].get<std::string>().substr(9) + " ";
  EXPECT_EQ(types,
            "created in_progress output_item.added content_part.added reasoning_text.delta reasoning_text.done "
            "content_part.done output_item.done output_item.added content_part.added output_text.delta "
            "output_text.delta output_text.done content_part.done output_item.done output_item.added "
            "function_call_arguments.delta function_call_arguments.delta function_call_arguments.done "
            "output_item.done completed ");
  const Json& output = all.back()["response"]["output"];
  ASSERT_EQ(output.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    Json same = whole["output"][i];
    same["id"] = output[i]["id"];
    EXPECT_EQ(dump_json(same), dump_json(output[i]));
  }
  EXPECT_EQ(dump_json(output[0]["content"]), R"([{"type":"reasoning_text","text":"why"}])");
  EXPECT_EQ(output[1]["content"][0]["text"], "ab");
  EXPECT_EQ(output[2]["call_id"], "id");
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_EQ(output[2]["arguments"], R"({"x":1})");
  EXPECT_EQ(all[2]["item"]["content"], Json::array());
  EXPECT_EQ(all[10]["item_id"], output[1]["id"]);
  EXPECT_EQ(all[10]["output_index"], 1);
  EXPECT_EQ(all[0]["response"]["status"], "in_progress");
}

TEST_F(Responses, LogProbabilitiesOfTheText) {
  const Json include = {{"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}};
  const Json answer = create(include).json();
  EXPECT_EQ(answer["top_logprobs"], 2);
  const Json& part = answer["output"][0]["content"][0];
  EXPECT_EQ(part["text"], "user:hi|>");
  ASSERT_EQ(part["logprobs"].size(), 9u) << "without the token that ended it";
  EXPECT_EQ(dump_json(part["logprobs"][0]),
            R"({"token":"u","logprob":-0.5,"bytes":[117],"top_logprobs":[{"token":"u","logprob":-0.5,"bytes":[117]},)"
            R"({"token":"v","logprob":-1.5,"bytes":[118]}]})");
  Json streamed = include;
  streamed["stream"] = true;
  Json pieces = Json::array();
  for (const Json& event : events(create(streamed).body)) {
    if (event["type"] == "response.output_text.delta") {
      for (const Json& token : event["logprobs"]) pieces.push_back(token);
    } else if (event["type"] == "response.output_text.done") {
      EXPECT_EQ(event["logprobs"], part["logprobs"]);
    } else if (event["type"] == "response.content_part.done") {
      EXPECT_EQ(event["part"], part);
    }
  }
  EXPECT_EQ(pieces, part["logprobs"]);
  EXPECT_EQ(create({{"include", {"message.output_text.logprobs"}}})
                .json()["output"][0]["content"][0]["logprobs"][0]["top_logprobs"],
            Json::array());
  expect_error(create({{"top_logprobs", 2}}), 400, "top_logprobs", "invalid_value");
  expect_error(create({{"include", {"file_search_call.results"}}}), 400, "include[0]", "unsupported_parameter");
}

// Tokens of a character come before its text, and are told with it.
TEST_F(Responses, LogProbabilitiesOfACharacter) {
  const Json asked = {{"input", "é"}, {"include", {"message.output_text.logprobs"}}, {"stream", true}};
  for (const Json& event : events(create(asked).body)) {
    if (event["type"] != "response.output_text.delta" || event["delta"] != "é") continue;
    EXPECT_EQ(event["logprobs"].size(), 2u);
    EXPECT_EQ(event["logprobs"][1]["bytes"], Json::array({0xa9}));
    return;
  }
  FAIL() << "no such piece";
}

TEST_F(Responses, MessagesAsTokens) {
  const Json answer = create({{"enable_response_messages", true}}).json();
  const std::vector<TokenId> prompt = engine.tokenize("user:hi|>", false);
  EXPECT_EQ(answer["input_messages"],
            Json::array({{{"type", "raw_message_tokens"}, {"message", "user:hi|>"}, {"tokens", prompt}}}));
  const Json& output = answer["output_messages"][0];
  EXPECT_EQ(output["message"], "user:hi|>");
  EXPECT_EQ(output["tokens"].size(), prompt.size() + 1) << "with the token that ended it";
  EXPECT_FALSE(create(Json::object()).json().contains("input_messages"));
  const std::vector<Json> all = events(create({{"enable_response_messages", true}, {"stream", true}}).body);
  EXPECT_EQ(all.back()["response"]["output_messages"], answer["output_messages"]);
}

TEST_F(Responses, Input) {
  Json items = Json::array();
  items.push_back({{"role", "developer"}, {"content", "d"}});
  items.push_back({{"role", "user"}, {"content", Json::array({{{"type", "input_text"}, {"text", "a"}}})}});
  items.push_back({{"type", "reasoning"},
                   {"id", "rs_1"},
                   {"summary", Json::array()},
                   {"content", Json::array({{{"type", "reasoning_text"}, {"text", "t"}}})}});
  items.push_back({{"type", "message"},
                   {"role", "assistant"},
                   {"id", "msg_1"},
                   {"content", Json::array({{{"type", "output_text"}, {"text", "b"}}})}});
  items.push_back({{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", R"({"x":1})"}});
  items.push_back({{"type", "function_call_output"}, {"call_id", "1"}, {"output", "r"}});
  EXPECT_EQ(prompt({{"input", items}, {"instructions", "be"}}),
            "system:be\n\nd|user:a|assistant:b|"
            R"([{"id":"1","type":"function","function":{"name":"f","arguments":{"x":1}}}]tool:r|>)");
  EXPECT_EQ(prompt({{"reasoning", {{"effort", "low"}}}}),
            R"(user:hi|{"enable_thinking":true,"reasoning_effort":"low"}>)");
  EXPECT_EQ(prompt({{"reasoning", {{"effort", "none"}}}}), R"(user:hi|{"enable_thinking":false}>)");
}

TEST_F(Responses, ToolsAndFormats) {
  const Json tool = {{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}};
  engine.info().tool_syntax = "hermes";
  EXPECT_EQ(prompt({{"tools", Json::array({tool})}}),
            R"(user:hi|[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]>)");
  EXPECT_FALSE(engine.last_request().grammar);
  create({{"tools", Json::array({tool})}, {"tool_choice", "required"}});
  EXPECT_EQ(parse_json(engine.last_request().grammar.value().text)["required"], true);
  create({{"tools", Json::array({tool})}, {"tool_choice", {{"type", "function"}, {"name", "f"}}}});
  EXPECT_EQ(parse_json(engine.last_request().grammar.value().text)["parallel"], false);
  EXPECT_EQ(prompt({{"tools", Json::array({tool})}, {"tool_choice", "none"}}), "user:hi|>");
  const Json format = {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "object"}}}};
  const Json answer = create({{"text", {{"format", format}}}}).json();
  EXPECT_EQ(engine.last_request().grammar.value().text, R"({"type":"object"})");
  EXPECT_EQ(answer["text"]["format"], format);
}

TEST_F(Responses, AreKeptForTheirTenant) {
  options.api_key = {"a", "b"};
  const std::string a = "Authorization: Bearer a\r\n", b = "Authorization: Bearer b\r\n";
  const TestResponse first = create({{"instructions", "be"}}, a);
  const std::string id = first.json()["id"], path = "/v1/responses/" + id;
  EXPECT_EQ(get(path, a).body, first.body);
  expect_error(get(path, b), 404, "", "");
  EXPECT_EQ(get(path + "/input_items", a).json()["data"][0]["content"][0]["text"], "hi");
  expect_error(get(path + "/other", a), 404, "", "unknown_url");
  expect_error(post(path + "/cancel", "", a), 400, "", "");
  // Instructions are not carried over.
  const Json next = create({{"previous_response_id", id}, {"input", "go"}}, a).json();
  EXPECT_EQ(next["output"][0]["content"][0]["text"], "user:hi|assistant:system:be|user:hi|>|user:go|>");
  EXPECT_EQ(next["previous_response_id"], id);
  expect_error(create({{"previous_response_id", id}}, b), 404, "previous_response_id", "previous_response_not_found");
  expect_error(remove(id, b), 404, "", "");
  EXPECT_EQ(remove(id, a).json()["deleted"], true);
  expect_error(get(path, a), 404, "", "");
  const std::string unkept = create({{"store", false}}, a).json()["id"];
  expect_error(get("/v1/responses/" + unkept, a), 404, "", "");
}

TEST_F(Responses, InTheBackground) {
  engine.stalled = true;
  const TestResponse begun = create({{"background", true}});
  ASSERT_EQ(begun.status, 200) << begun.body;
  EXPECT_EQ(begun.json()["status"], "queued");
  EXPECT_EQ(begun.json()["background"], true);
  EXPECT_EQ(begun.json()["usage"], nullptr);
  const std::string path = "/v1/responses/" + begun.json()["id"].get<std::string>();
  EXPECT_EQ(get(path).json()["status"], "in_progress");
  EXPECT_EQ(get(path + "/input_items").json()["data"][0]["content"][0]["text"], "hi");
  expect_error(create({{"previous_response_id", begun.json()["id"]}}), 400, "previous_response_id", "invalid_value");
  engine.stalled = false;
  eventually([&] { return get(path).json()["status"] == "completed"; });
  const Json answer = get(path).json();
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "user:hi|>");
  EXPECT_EQ(answer["usage"]["output_tokens"], 10);
  EXPECT_EQ(post(path + "/cancel", "").json(), answer) << "it has ended";
  EXPECT_EQ(create({{"previous_response_id", answer["id"]}}).status, 200);
}

TEST_F(Responses, InTheBackgroundUntilCancelled) {
  engine.stalled = true;
  const std::string id = create({{"background", true}}).json()["id"], path = "/v1/responses/" + id;
  const TestResponse cancelled = post(path + "/cancel", "");
  ASSERT_EQ(cancelled.status, 200) << cancelled.body;
  EXPECT_EQ(cancelled.json()["status"], "cancelled");
  eventually([&] { return engine.running() == 0; });
  EXPECT_EQ(engine.cancelled, 1);
  EXPECT_EQ(get(path).body, cancelled.body);
  EXPECT_EQ(post(path + "/cancel", "").body, cancelled.body);
  const std::string erased = create({{"background", true}}).json()["id"];
  EXPECT_EQ(remove(erased).json()["deleted"], true);
  eventually([&] { return engine.running() == 0; });
  engine.stalled = false;
  expect_error(get("/v1/responses/" + erased), 404, "", "");
  create(Json::object());  // what was stored before is written
  expect_error(get("/v1/responses/" + erased), 404, "", "");
}

TEST_F(Responses, TheServerEndsAfterThoseInTheBackground) {
  engine.stalled = true;
  create({{"background", true}});
  eventually([&] { return engine.running() == 1; });
  std::atomic<bool> ended{false};
  std::thread end([&] {
    stop();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // several looks of the server
  EXPECT_FALSE(ended);
  EXPECT_EQ(engine.running(), 1);
  engine.stalled = false;
  end.join();
  EXPECT_EQ(engine.cancelled, 0);
}

TEST_F(Responses, FaultsInTheBackgroundAreKept) {
  engine.fail_at_token = 3;
  const std::string path = "/v1/responses/" + create({{"background", true}}).json()["id"].get<std::string>();
  eventually([&] { return get(path).json()["status"] == "failed"; });
  EXPECT_EQ(get(path).json()["error"]["code"], "server_error");
}

TEST_F(Responses, InputTokens) {
  const TestResponse response = post("/v1/responses/input_tokens", R"({"input":"hi"})");
  EXPECT_EQ(response.body, R"({"object":"response.input_tokens","input_tokens":9})");
}

TEST_F(Responses, WhatIsNotSupportedIsRefusedByName) {
  const auto item = [](const Json& one) { return Json{{"input", Json::array({one})}}; };
  const std::vector<std::tuple<Json, std::string, std::string>> rows = {
      {{{"input", nullptr}}, "input", "missing_required_parameter"},
      {{{"input", 5}}, "input", "invalid_type"},
      {item({{"type", "item_reference"}, {"id", "1"}}), "input[0]", "unsupported_parameter"},
      {item({{"role", "user"}, {"content", Json::array({{{"type", "input_image"}}})}}), "input[0].content[0]",
       "unsupported_parameter"},
      {item({{"role", "bot"}, {"content", "a"}}), "input[0].role", "invalid_value"},
      {item({{"type", "function_call"}, {"name", "f"}}), "input[0].call_id", "missing_required_parameter"},
      {{{"tools", Json::array({{{"type", "web_search"}}})}}, "tools[0]", "unsupported_parameter"},
      {{{"tool_choice", "required"}}, "tool_choice", "invalid_value"},
      {{{"text", {{"format", {{"type", "xml"}}}}}}, "text.format.type", "invalid_value"},
      {{{"text", {{"verbosity", "low"}}}}, "text.verbosity", "unsupported_parameter"},
      {{{"reasoning", {{"effort", "much"}}}}, "reasoning.effort", "invalid_value"},
      {{{"reasoning", {{"summary", "detailed"}}}}, "reasoning.summary", "unsupported_parameter"},
      {{{"include", Json::array({"file_search_call.results"})}}, "include[0]", "unsupported_parameter"},
      {{{"background", true}, {"store", false}}, "background", "invalid_value"},
      {{{"background", true}, {"stream", true}}, "stream", "unsupported_parameter"},
      {{{"conversation", "c"}}, "conversation", "unsupported_parameter"},
      {{{"truncation", "auto"}}, "truncation", "unsupported_parameter"},
      {{{"max_output_tokens", 0}}, "max_output_tokens", "integer_below_min_value"},
  };
  for (const auto& [fields, param, code] : rows) {
    SCOPED_TRACE(dump_json(fields));
    expect_error(create(fields), 400, param, code);
  }
  EXPECT_EQ(engine.submitted, 0);
}

TEST_F(Responses, AFaultIsAnEvent) {
  engine.fail_at_token = 3;
  const std::vector<Json> all = events(create({{"stream", true}}).body);
  EXPECT_EQ(all.back()["type"], "response.failed");
  EXPECT_EQ(all.back()["response"]["status"], "failed");
  EXPECT_EQ(all.back()["response"]["error"]["code"], "server_error");
}

}  // namespace
}  // namespace sluice::responses_test
