// Fields about thoughts, and the older form of calls.
#include "server/server_fixture.h"

namespace sluice::reasoning_test {
namespace {

class Reasoning : public ServerTest {
 protected:
  // What the template's variables become.
  std::string variables(const Json& more) {
    const TestResponse response = chat(more);
    EXPECT_EQ(response.status, 200) << response.body;
    const std::string text = response.json()["choices"][0]["message"]["content"].get<std::string>();
    return text.substr(8, text.size() - 9);  // between "user:hi|" and ">"
  }
  std::vector<Json> deltas(const Json& more) {
    Json body = {{"stream", true}};
    body.update(more);
    std::vector<Json> out;
    for (const std::string& data : sse_data(chat(body).body)) {
      if (data != "[DONE]") out.push_back(parse_json(data)["choices"][0]["delta"]);
    }
    return out;
  }
};

TEST_F(Reasoning, EffortIsAVariableOfTheTemplate) {
  expect_error(chat({{"reasoning_effort", "high"}}), 400, "reasoning_effort", "unsupported_parameter");
  engine.info().thinking_switch = "enable_thinking";
  EXPECT_EQ(variables({{"reasoning_effort", "none"}}), R"({"enable_thinking":false})");
  expect_error(chat({{"reasoning_effort", "high"}}), 400, "reasoning_effort", "invalid_value");
  engine.info().template_takes_effort = true;
  EXPECT_EQ(variables({{"reasoning_effort", "high"}}), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(variables({{"reasoning_effort", "none"}}), R"({"enable_thinking":false})");
  engine.info().thinking_switch = "";
  expect_error(chat({{"reasoning_effort", "none"}}), 400, "reasoning_effort", "invalid_value");
  engine.info().template_takes_no_effort = true;
  EXPECT_EQ(variables({{"reasoning_effort", "none"}}), R"({"reasoning_effort":"none"})");
  expect_error(chat({{"reasoning_effort", "much"}}), 400, "reasoning_effort", "invalid_value");
  expect_error(chat({{"reasoning_effort", 3}}), 400, "reasoning_effort", "invalid_type");
  expect_error(chat({{"reasoning_effort", "low"}, {"chat_template_kwargs", {{"reasoning_effort", "high"}}}}), 400,
               "reasoning_effort", "invalid_parameter_combination");
  expect_error(completion({{"reasoning_effort", "low"}}), 400, "reasoning_effort", "unsupported_parameter");
}

TEST_F(Reasoning, TheSwitchIsAVariableOfTheTemplate) {
  EXPECT_EQ(chat({{"thinking", true}}).headers.at("x-sluice-warning"), "unknown fields ignored: thinking");
  engine.info().thinking_switch = "thinking";
  EXPECT_EQ(variables({{"thinking", true}}), R"({"thinking":true})");
  EXPECT_EQ(variables({{"thinking", {{"type", "disabled"}}}}), R"({"thinking":false})");
  EXPECT_EQ(variables({{"enable_thinking", false}}), R"({"thinking":false})");
  expect_error(chat({{"thinking", {{"type", "maybe"}}}}), 400, "thinking.type", "invalid_value");
  expect_error(chat({{"thinking", true}, {"enable_thinking", false}}), 400, "enable_thinking",
               "invalid_parameter_combination");
}

// DeepSeek's and SGLang's clients read the member of every delta.
TEST_F(Reasoning, ModelsThatThinkTellWhereThereIsNoThought) {
  engine.answer_with({ReasoningDelta{"why"}, TextDelta{"a"}, ToolCallBegin{0, "1", "f"}});
  for (const Json& delta : deltas(Json::object())) {
    EXPECT_EQ(delta.contains("reasoning_content"), delta.contains("reasoning")) << delta;
  }
  engine.info().reasoning_syntax = "qwen3";
  const std::vector<Json> all = deltas(Json::object());
  ASSERT_EQ(all.size(), 5u);
  for (const Json& delta : all) {
    EXPECT_EQ(delta.at("reasoning_content"), delta.contains("reasoning") ? Json("why") : Json()) << delta;
  }
  for (const Json& delta : deltas({{"include_reasoning", false}})) EXPECT_FALSE(delta.contains("reasoning_content"));
  engine.answer_with({TextDelta{"a"}});
  EXPECT_EQ(chat().json()["choices"][0]["message"].at("reasoning_content"), Json());
}

TEST_F(Reasoning, BudgetsReachTheEngine) {
  expect_error(chat({{"thinking_token_budget", 5}}), 400, "thinking_token_budget", "unsupported_parameter");
  engine.info().reasoning_syntax = "qwen3";
  engine.info().thinking_switch = "thinking";
  EXPECT_EQ(chat().status, 200);
  EXPECT_FALSE(engine.last_request().thinking_token_budget);
  for (const char* name : {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"}) {
    EXPECT_EQ(chat({{name, 5}}).status, 200);
    EXPECT_EQ(engine.last_request().thinking_token_budget, 5) << name;
  }
  EXPECT_EQ(chat({{"thinking", {{"type", "enabled"}, {"budget_tokens", 7}}}}).status, 200);
  EXPECT_EQ(engine.last_request().thinking_token_budget, 7);
  EXPECT_EQ(chat({{"reasoning_budget", -1}}).status, 200);
  EXPECT_FALSE(engine.last_request().thinking_token_budget);
  EXPECT_EQ(chat({{"thinking_token_budget", -1}}).status, 400);
  expect_error(chat({{"thinking_token_budget", 1}, {"reasoning_budget", 2}}), 400, "reasoning_budget",
               "invalid_parameter_combination");
}

TEST_F(Reasoning, MayBeLeftOut) {
  engine.info().reasoning_syntax = "qwen3";
  engine.answer_with({ReasoningDelta{"why"}, TextDelta{"a"}});
  const Json body = chat({{"include_reasoning", false}}).json();
  EXPECT_EQ(dump_json(body["choices"][0]["message"]), R"({"role":"assistant","content":"a","refusal":null})");
  EXPECT_EQ(dump_json(body["usage"]["completion_tokens_details"]), R"({"reasoning_tokens":0})");
  for (const Json& delta : deltas({{"include_reasoning", false}})) EXPECT_FALSE(delta.contains("reasoning"));
  EXPECT_EQ(deltas(Json::object())[1]["reasoning"], "why");
}

TEST_F(Reasoning, ComesBackInMessages) {
  const TestResponse response =
      chat({{"messages", {{{"role", "assistant"}, {"content", "a"}, {"reasoning", "why"}}}}, {"strict", nullptr}});
  EXPECT_EQ(response.status, 200) << response.body;
}

const Json kFunctions = {{{"name", "f"}, {"parameters", {{"type", "object"}}}}};

TEST_F(Reasoning, FunctionsAreTools) {
  EXPECT_EQ(variables({{"functions", kFunctions}}),
            R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  EXPECT_EQ(variables({{"functions", kFunctions}, {"function_call", "none"}}), "");
  expect_error(chat({{"function_call", "auto"}}), 400, "function_call", "invalid_value");
  expect_error(chat({{"functions", kFunctions}, {"tools", Json::array()}}), 400, "functions",
               "invalid_parameter_combination");
  expect_error(chat({{"functions", {{{"description", "no name"}}}}}), 400, "functions[0].name",
               "missing_required_parameter");
  engine.info().tool_syntax = "hermes";
  EXPECT_EQ(chat({{"functions", kFunctions}, {"function_call", {{"name", "f"}}}}).status, 200);
  const Json calls = parse_json(engine.last_request().grammar->text);
  EXPECT_TRUE(calls["required"].get<bool>());
  EXPECT_FALSE(calls["parallel"].get<bool>());
  EXPECT_EQ(engine.last_request().grammar->param, "function_call");
  EXPECT_EQ(chat({{"functions", kFunctions}}).status, 200);
  EXPECT_FALSE(parse_json(engine.last_request().grammar->text)["required"].get<bool>());
  expect_error(chat({{"functions", kFunctions}, {"function_call", {{"name", "g"}}}}), 400, "function_call.name",
               "invalid_value");
}

TEST_F(Reasoning, CallsAreFunctionCalls) {
  engine.answer_with({ToolCallBegin{0, "", "f"}, ToolCallArguments{0, "{\"x\":"}, ToolCallArguments{0, "1}"}});
  const Json choice = chat({{"functions", kFunctions}}).json()["choices"][0];
  EXPECT_EQ(dump_json(choice["message"]), R"({"role":"assistant","content":null,"refusal":null,)"
                                          R"("function_call":{"name":"f","arguments":"{\"x\":1}"}})");
  EXPECT_EQ(choice["finish_reason"], "function_call");
  const std::vector<Json> all = deltas({{"functions", kFunctions}});
  EXPECT_EQ(dump_json(all.at(1)), R"({"function_call":{"name":"f","arguments":""}})");
  EXPECT_EQ(dump_json(all.at(2)), R"({"function_call":{"arguments":"{\"x\":"}})");
}

TEST_F(Reasoning, MessagesOfFunctionsAreMessagesOfTools) {
  const Json call = {{"name", "f"}, {"arguments", "{\"x\": 1}"}};
  const TestResponse response = chat({{"messages",
                                       {{{"role", "user"}, {"content", "q"}},
                                        {{"role", "assistant"}, {"content", nullptr}, {"function_call", call}},
                                        {{"role", "function"}, {"name", "f"}, {"content", "7"}}}}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(
      response.json()["choices"][0]["message"]["content"],
      R"(user:q|assistant:|[{"id":"call_1","type":"function","function":{"name":"f","arguments":{"x":1}}}]tool:7|>)");
  expect_error(chat({{"messages", {{{"role", "assistant"}, {"function_call", {{"name", "f"}}}}}}}), 400,
               "messages[0].function_call.arguments", "missing_required_parameter");
}

TEST_F(Reasoning, StructuralTagsAreGrammars) {
  const Json tag = {{"type", "structural_tag"}, {"format", {{"type", "any_text"}}}};
  for (const Json& body : {Json{{"response_format", tag}}, Json{{"structured_outputs", {{"structural_tag", tag}}}},
                           Json{{"structural_tag", dump_json(tag)}}}) {
    EXPECT_EQ(chat(body).status, 200);
    EXPECT_EQ(engine.last_request().grammar->kind, "structural_tag");
    EXPECT_EQ(engine.last_request().grammar->text, dump_json(tag));
    EXPECT_EQ(completion(body).status, 200);
  }
  expect_error(chat({{"structured_outputs", {{"json", Json::object()}, {"whitespace_pattern", " "}}}}), 400,
               "structured_outputs.whitespace_pattern", "unsupported_parameter");
}

}  // namespace
}  // namespace sluice::reasoning_test
