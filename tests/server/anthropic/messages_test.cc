// Anthropic's Messages API: translation of conversations, answers whole and streamed, and errors of every layer.
#include "server/server_fixture.h"

namespace sluice::messages_test {
namespace {

class Anthropic : public ServerTest {
 protected:
  Anthropic() {
    engine.info().thinking_switch = "enable_thinking";
    engine.info().template_takes_effort = true;
  }
  static Json body(const Json& more = Json::object()) {
    Json body = {{"model", "fake"}, {"max_tokens", 1000}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return body;
  }
  TestResponse messages(const Json& more = Json::object()) { return post("/v1/messages", dump_json(body(more))); }

  // What the template would get: the fake engine answers with its prompt.
  std::string prompt(const Json& more) {
    const TestResponse response = messages(more);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json()["content"][0]["text"];
  }

  void expect_refused(const TestResponse& response, int status, const std::string& type, const std::string& part) {
    EXPECT_EQ(response.status, status) << response.body;
    ASSERT_EQ(response.headers.at("content-type"), "application/json");
    EXPECT_EQ(response.headers.at("request-id"), response.headers.at("x-request-id"));
    const Json body = response.json();
    EXPECT_EQ(body.at("type"), "error");
    EXPECT_EQ(body.at("error").at("type"), type) << response.body;
    EXPECT_NE(body.at("error").at("message").get<std::string>().find(part), std::string::npos) << response.body;
  }

  static std::vector<std::pair<std::string, Json>> events(const std::string& text) {
    std::vector<std::pair<std::string, Json>> out;
    for (size_t at = 0; at < text.size();) {
      const size_t line = text.find('\n', at), end = text.find("\n\n", at);
      const std::string name = text.substr(at + 7, line - at - 7);
      out.emplace_back(name, parse_json(text.substr(line + 7, end - line - 7)));
      EXPECT_EQ(out.back().second.at("type"), name);
      at = end + 2;
    }
    return out;
  }
};

TEST_F(Anthropic, WholeAnswer) {
  const TestResponse response = messages({{"thinking", {{"type", "adaptive"}}}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_EQ(answer["id"], "msg_" + response.headers.at("request-id"));
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_EQ(dump_json(answer["content"]), R"([{"type":"text","text":"user:hi|{\"enable_thinking\":true}>"}])");
  EXPECT_EQ(answer["stop_reason"], "end_turn");
  EXPECT_EQ(answer["stop_sequence"], nullptr);
  EXPECT_EQ(dump_json(answer["usage"]), R"({"input_tokens":30,"cache_creation_input_tokens":0,)"
                                        R"("cache_read_input_tokens":3,"output_tokens":34})");
  EXPECT_FALSE(response.headers.contains("x-sluice-warning"));
}

TEST_F(Anthropic, ReasonsToStop) {
  const Json stopped = messages({{"stop_sequences", {"zz", ":h"}}}).json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], ":h");
  EXPECT_EQ(stopped["content"][0]["text"], "user");
  const Json cut = messages({{"max_tokens", 2}}).json();
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  EXPECT_EQ(cut["content"][0]["text"], "us");
}

TEST_F(Anthropic, BlocksInOrder) {
  engine.answer_with({ReasoningDelta{"wh"}, ReasoningDelta{"y"}, TextDelta{"a"}, ToolCallBegin{0, "", "f"},
                      ToolCallArguments{0, "{\"x\":"}, ToolCallArguments{0, "1}"}, ToolCallBegin{1, "id", "g"}});
  const TestResponse whole = messages();
  const Json answer = whole.json();
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  const Json& content = answer["content"];
  ASSERT_EQ(content.size(), 4u) << whole.body;
  EXPECT_EQ(content[0]["type"], "thinking");
  EXPECT_EQ(content[0]["thinking"], "why");
  EXPECT_EQ(content[0]["signature"].get<std::string>().size(), 64u);
  EXPECT_EQ(dump_json(content[1]), R"({"type":"text","text":"a"})");
  EXPECT_TRUE(content[2]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(content[2]["name"], "f");
  EXPECT_EQ(dump_json(content[2]["input"]), R"({"x":1})");
  EXPECT_EQ(dump_json(content[3]), R"({"type":"tool_use","id":"id","name":"g","input":{}})");

  const TestResponse stream = messages({{"stream", true}});
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
  std::string names;
  Json starts = Json::array(), deltas = Json::array();
  for (const auto& [name, data] : events(stream.body)) {
    names += name + " ";
    if (name == "message_start") {
      EXPECT_EQ(data["message"]["content"], Json::array());
    } else if (name == "content_block_start") {
      starts.push_back(data["content_block"]);
    } else if (name == "content_block_delta") {
      deltas.push_back(data["delta"]);
      EXPECT_EQ(data["index"].get<size_t>() + 1, starts.size());
    } else if (name == "message_delta") {
      EXPECT_EQ(data["delta"]["stop_reason"], "tool_use");
      EXPECT_EQ(data["usage"]["output_tokens"], 1);
    }
  }
  EXPECT_EQ(names,
            "message_start ping content_block_start content_block_delta content_block_delta content_block_delta "
            "content_block_stop content_block_start content_block_delta content_block_stop content_block_start "
            "content_block_delta content_block_delta content_block_stop content_block_start content_block_stop "
            "message_delta message_stop ");
  EXPECT_EQ(dump_json(starts[0]), R"({"type":"thinking","thinking":"","signature":""})");
  EXPECT_EQ(dump_json(starts[3]), R"({"type":"tool_use","id":"id","name":"g","input":{}})");
  EXPECT_EQ(dump_json(deltas[1]), R"({"type":"thinking_delta","thinking":"y"})");
  EXPECT_EQ(deltas[2]["type"], "signature_delta");
  EXPECT_EQ(dump_json(deltas[3]), R"({"type":"text_delta","text":"a"})");
  EXPECT_EQ(dump_json(deltas[4]), R"({"type":"input_json_delta","partial_json":"{\"x\":"})");
}

TEST_F(Anthropic, Conversations) {
  const Json cached = {{"type", "text"}, {"text", "be"}, {"cache_control", {{"type", "ephemeral"}}}};
  EXPECT_EQ(prompt({{"system", {cached, {{"type", "text"}, {"text", " kind"}}}}}),
            R"(system:be kind|user:hi|{"enable_thinking":false}>)");
  EXPECT_EQ(prompt({{"output_config", {{"effort", "low"}}}}),
            R"(user:hi|{"enable_thinking":false,"reasoning_effort":"low"}>)");
  EXPECT_EQ(prompt({{"system", "be"}}), R"(system:be|user:hi|{"enable_thinking":false}>)");
  const Json turns = {
      {{"role", "user"}, {"content", "a"}},
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "b"}}}}},
      {{"role", "assistant"},
       {"content",
        {{{"type", "thinking"}, {"thinking", "t"}, {"signature", "s"}},
         {{"type", "text"}, {"text", "c"}},
         {{"type", "tool_use"}, {"id", "1"}, {"name", "f"}, {"input", {{"x", 1}}}}}}},
      {{"role", "user"},
       {"content",
        {{{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", "d"}, {"is_error", true}},
         {{"type", "tool_result"}, {"tool_use_id", "2"}, {"content", {{{"type", "text"}, {"text", "e"}}}}},
         {{"type", "text"}, {"text", "f"}}}}}};
  EXPECT_EQ(prompt({{"messages", turns}}),
            "user:a\n\nb|assistant:c|"
            R"([{"id":"1","type":"function","function":{"name":"f","arguments":{"x":1}}}])"
            R"(tool:Error: d|tool:e|user:f|{"enable_thinking":false}>)");
}

// A last message of the assistant is the beginning of the answer.
Json begun(const Json& beginning, const Json& more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", beginning}}}}};
  body.update(more);
  return body;
}

TEST_F(Anthropic, AnswersThatAreBegun) {
  const std::string want = R"(user:a|assistant:b{"enable_thinking":false})";
  EXPECT_EQ(prompt(begun("b")), want);
  EXPECT_EQ(prompt(begun({{{"type", "text"}, {"text", "b"}}})), want);
}

TEST_F(Anthropic, Tools) {
  const Json tool = {{"name", "f"}, {"description", "d"}, {"input_schema", {{"type", "object"}}}};
  const std::string told = R"(user:hi|[{"type":"function","function":{"name":"f","description":"d",)"
                           R"("parameters":{"type":"object"}}}]{"enable_thinking":false}>)";
  const std::string untold = R"(user:hi|{"enable_thinking":false}>)";
  const auto with_choice = [&](const Json& choice) {
    return Json{{"max_tokens", 500}, {"tools", {tool}}, {"tool_choice", choice}};
  };
  EXPECT_EQ(prompt({{"max_tokens", 500}, {"tools", {tool}}}), told);
  EXPECT_EQ(prompt(with_choice({{"type", "auto"}})), told);
  EXPECT_FALSE(engine.last_request().grammar);
  EXPECT_EQ(prompt(with_choice({{"type", "none"}})), untold);
  expect_refused(messages(with_choice({{"type", "any"}})), 400, "invalid_request_error", "'tool_choice'");
  engine.info().tool_syntax = "hermes";
  EXPECT_EQ(prompt(with_choice({{"type", "any"}})), told);
  const auto grammar = [&] { return parse_json(engine.last_request().grammar.value().text); };
  EXPECT_EQ(grammar()["required"], true);
  EXPECT_EQ(grammar()["parallel"], true);
  prompt(with_choice({{"type", "tool"}, {"name", "f"}}));
  EXPECT_EQ(grammar()["parallel"], false);
  prompt(with_choice({{"type", "auto"}, {"disable_parallel_tool_use", true}}));
  EXPECT_EQ(grammar()["required"], false);
  EXPECT_EQ(grammar()["parallel"], false);
  expect_refused(messages(with_choice({{"type", "tool"}, {"name", "g"}})), 400, "invalid_request_error", "'g'");
}

TEST_F(Anthropic, FieldsReachTheEngine) {
  messages({{"temperature", 0.5}, {"top_p", 0.25}, {"top_k", 7}, {"max_tokens", 9}});
  const SamplingParams sampling = engine.last_request().sampling;
  EXPECT_EQ(sampling.temperature, 0.5);
  EXPECT_EQ(sampling.top_p, 0.25);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.max_tokens, 9);
  messages({{"output_config", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}}});
  EXPECT_EQ(engine.last_request().grammar.value().text, R"({"type":"object"})");
  const TestResponse budget = messages({{"thinking", {{"type", "enabled"}, {"budget_tokens", 50}}}});
  EXPECT_EQ(budget.status, 200);
  EXPECT_NE(budget.headers.at("x-sluice-warning").find("thinking.budget_tokens"), std::string::npos);
  EXPECT_FALSE(engine.last_request().thinking_token_budget);
  engine.info().reasoning_syntax = "deepseek_r1";
  const TestResponse enforced = messages({{"thinking", {{"type", "enabled"}, {"budget_tokens", 50}}}});
  EXPECT_FALSE(enforced.headers.contains("x-sluice-warning"));
  EXPECT_EQ(engine.last_request().thinking_token_budget, 50);
}

TEST_F(Anthropic, AModelThatCannotThinkSaysSo) {
  engine.info().thinking_switch.clear();
  engine.info().template_takes_effort = false;
  EXPECT_EQ(prompt(Json::object()), "user:hi|>");
  const TestResponse asked = messages({{"thinking", {{"type", "adaptive"}}}, {"output_config", {{"effort", "low"}}}});
  EXPECT_EQ(asked.json()["content"][0]["text"], "user:hi|>");
  EXPECT_EQ(asked.headers.at("x-sluice-warning"), "unknown fields ignored: thinking, output_config.effort");
}

TEST_F(Anthropic, CountTokens) {
  const TestResponse response =
      post("/v1/messages/count_tokens", R"({"model":"fake","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(response.body,
            fmt::format(R"({{"input_tokens":{}}})", std::string(R"(user:hi|{"enable_thinking":false}>)").size()));
}

TEST_F(Anthropic, WhatIsNotSupportedIsRefusedByName) {
  const auto user = [](const Json& block) { return Json{{"messages", {{{"role", "user"}, {"content", {block}}}}}}; };
  const Json tools = {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}};
  const std::vector<std::pair<Json, std::string>> rows = {
      {{{"max_tokens", nullptr}}, "'max_tokens'"},
      {{{"max_tokens", 0}}, "'max_tokens'"},
      {{{"messages", nullptr}}, "'messages'"},
      {{{"messages", Json::array()}}, "'messages'"},
      {{{"messages", {{{"role", "system"}, {"content", "a"}}}}}, "'system'"},
      {begun("b "), "ends with white space"},
      {begun(""), "is not text"},
      {begun({{{"type", "tool_use"}, {"id", "1"}, {"name", "f"}, {"input", {{"x", 1}}}}}), "is not text"},
      {begun("b", {{"thinking", {{"type", "adaptive"}}}}), "begins with thoughts"},
      {begun("b", {{"tools", tools}, {"tool_choice", {{"type", "any"}}}}), "must be a call"},
      {begun("b", {{"output_config", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}}}),
       "has a format"},
      {user({{"type", "image"}, {"source", {{"type", "base64"}}}}), "'messages[0].content[0]' is of type 'image'"},
      {user({{"type", "document"}}), "'messages[0].content[0]' is of type 'document'"},
      {user({{"type", "other"}}), "'other'"},
      {user({{"type", "tool_result"}}), "'messages[0].content[0].tool_use_id'"},
      {{{"system", 5}}, "'system'"},
      {{{"thinking", {{"type", "enabled"}}}}, "'thinking.budget_tokens'"},
      {{{"thinking", {{"type", "much"}}}}, "'much'"},
      {{{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}}, "'web_search_20250305'"},
      {{{"tools", {{{"name", "f"}}}}}, "'tools[0].input_schema'"},
      {{{"tool_choice", {{"type", "auto"}}}}, "'tool_choice'"},
      {{{"stop_sequences", {""}}}, "'stop_sequences[0]'"},
      {{{"output_config", {{"effort", "some"}}}}, "'some'"},
      {{{"output_config", {{"task_budget", 5}}}}, "'output_config.task_budget'"},
      {{{"context_management", {{"edits", {{{"type", "clear_tool_uses_20250919"}}}}}}}, "context_management.edits[0]"},
      {{{"mcp_servers", {{{"name", "a"}}}}}, "'mcp_servers'"},
      {{{"temperature", 3}}, "'temperature'"},
      {{{"service_tier", "priority"}}, "'service_tier'"},
  };
  for (const auto& [fields, part] : rows) {
    SCOPED_TRACE(dump_json(fields));
    expect_refused(messages(fields), 400, "invalid_request_error", part);
  }
  EXPECT_EQ(engine.submitted, 0);
}

TEST_F(Anthropic, ErrorsOfEveryLayer) {
  options.api_key = {"key"};
  options.max_body_bytes = 4096;
  const std::string text = dump_json(body());
  expect_refused(post("/v1/messages", text), 401, "authentication_error", "API key");
  expect_refused(post("/v1/messages", text, "X-Api-Key: no\r\n"), 401, "authentication_error", "Incorrect");
  EXPECT_EQ(post("/v1/messages", text, "X-Api-Key: key\r\nanthropic-version: 2023-06-01\r\n").status, 200);
  EXPECT_EQ(post("/v1/messages", text, "Authorization: Bearer key\r\n").status, 200);
  EXPECT_EQ(post("/v1/messages", text, "Authorization: Bearer no\r\nX-Api-Key: key\r\n").status, 200);
  const auto ask = [&](std::string_view path, const std::string& content) {
    return post(path, content, "X-Api-Key: key\r\n");
  };
  expect_refused(ask("/v1/messages/batches", text), 404, "not_found_error", "/v1/messages/batches");
  expect_refused(get("/v1/messages", "X-Api-Key: key\r\n"), 405, "invalid_request_error", "POST");
  expect_refused(ask("/v1/messages", "{"), 400, "invalid_request_error", "JSON");
  expect_refused(ask("/v1/messages", dump_json(body({{"model", "other"}}))), 404, "not_found_error", "`fake`");
  expect_refused(ask("/v1/messages", std::string(5000, ' ')), 413, "request_too_large", "");
  expect_refused(ask("/v1/messages", dump_json(body({{"max_tokens", 5000}}))), 400, "invalid_request_error",
                 "input length and `max_tokens` exceed context limit: 34 + 5000 > 4096, ");
  engine.is_overloaded = true;
  const TestResponse busy = ask("/v1/messages", text);
  expect_refused(busy, 529, "overloaded_error", "overloaded");
  EXPECT_EQ(busy.headers.at("retry-after"), "1");
  engine.is_overloaded = false;
  engine.refuse_submit = true;
  expect_refused(ask("/v1/messages", text), 529, "overloaded_error", "full");
  engine.refuse_submit = false;
  engine.fail_at_token = 0;
  expect_refused(ask("/v1/messages", text), 500, "api_error", "error");
  engine.fail_at_token = 3;
  const TestResponse broken = ask("/v1/messages", dump_json(body({{"stream", true}})));
  EXPECT_EQ(broken.status, 200);
  const auto last = events(broken.body).back();
  EXPECT_EQ(last.first, "error");
  EXPECT_EQ(last.second["error"]["type"], "api_error");
}

TEST_F(Anthropic, PromptsThatAreTooLong) {
  const auto user = [](size_t bytes) {
    return Json{{"messages", Json::array({{{"role", "user"}, {"content", std::string(bytes, 'a')}}})}};
  };
  expect_refused(messages(user(5000)), 400, "invalid_request_error", "prompt is too long: 5032 tokens > 4096 maximum");
  expect_refused(messages(user(100'000)), 400, "invalid_request_error", "prompt is too long: ");
}

}  // namespace
}  // namespace sluice::messages_test
