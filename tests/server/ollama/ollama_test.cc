// Ollama's API: lines of JSON, options, conversations, listings and errors.
#include "server/server_fixture.h"

namespace sluice::ollama_test {
namespace {

class Ollama : public ServerTest {
 protected:
  Ollama() {
    engine.info().thinking_switch = "enable_thinking";
    engine.info().template_takes_effort = true;
  }
  TestResponse ask(std::string_view path, const Json& more, bool stream = false) {
    Json body = {{"model", "fake:latest"}, {"stream", stream}};
    body.update(more);
    return post(path, dump_json(body));
  }
  TestResponse chat(const Json& more = Json::object(), bool stream = false) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return ask("/api/chat", body, stream);
  }
  TestResponse generate(const Json& more = Json::object(), bool stream = false) {
    Json body = {{"prompt", "hi"}};
    body.update(more);
    return ask("/api/generate", body, stream);
  }
  static std::vector<Json> lines(const TestResponse& response) {
    EXPECT_EQ(response.headers.at("content-type"), "application/x-ndjson");
    std::vector<Json> out;
    for (size_t at = 0; at < response.body.size();) {
      const size_t end = response.body.find('\n', at);
      out.push_back(parse_json(response.body.substr(at, end - at)));
      at = end + 1;
    }
    return out;
  }
  static void expect_refused(const TestResponse& response, int status, const std::string& part) {
    EXPECT_EQ(response.status, status) << response.body;
    const Json body = response.json();
    ASSERT_EQ(body.size(), 1u) << response.body;
    EXPECT_NE(body.at("error").get<std::string>().find(part), std::string::npos) << response.body;
  }
};

TEST_F(Ollama, ChatWholeAndStreamed) {
  const TestResponse whole = chat();
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json answer = whole.json();
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_EQ(dump_json(answer["message"]), R"({"role":"assistant","content":"user:hi|>"})");
  EXPECT_EQ(answer["done"], true);
  EXPECT_EQ(answer["done_reason"], "stop");
  EXPECT_EQ(answer["prompt_eval_count"], 9);
  EXPECT_EQ(answer["eval_count"], 10);
  EXPECT_EQ(answer["created_at"].get<std::string>().size(), 27u);
  for (const auto* key : {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}) {
    EXPECT_GE(answer.at(key), 0) << key;
  }
  EXPECT_EQ(answer["total_duration"].get<int64_t>(),
            answer["prompt_eval_duration"].get<int64_t>() + answer["eval_duration"].get<int64_t>());

  // Without the field, an answer is streamed.
  const TestResponse stream = post("/api/chat", R"({"model":"fake","messages":[{"role":"user","content":"hi"}]})");
  std::string text;
  const std::vector<Json> all = lines(stream);
  for (const Json& line : all) {
    EXPECT_EQ(line["done"], &line == &all.back());
    text += line["message"]["content"].get<std::string>();
  }
  EXPECT_EQ(text, "user:hi|>");
  EXPECT_EQ(all.back()["eval_count"], 10);
}

// Each token's log probability comes once, whether the answer is whole or streamed.
TEST_F(Ollama, LogProbabilities) {
  const Json fields = {{"logprobs", true}, {"top_logprobs", 2}};
  for (const bool chats : {true, false}) {
    const TestResponse whole = chats ? chat(fields) : generate(fields);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json tokens = whole.json().at("logprobs");
    std::string text;
    for (const Json& token : tokens) {
      text += token.at("token").get<std::string>();
      EXPECT_LE(token.at("logprob"), 0);
      EXPECT_EQ(token.at("bytes").size(), token.at("token").get<std::string>().size());
      EXPECT_EQ(token.at("top_logprobs").size(), 2u);
    }
    EXPECT_EQ(text, "user:hi|>");
    EXPECT_EQ(engine.last_request().sampling.logprobs, 2);

    Json streamed = Json::array();
    for (const Json& line : lines(chats ? chat(fields, true) : generate(fields, true))) {
      if (!line.contains("logprobs")) continue;
      for (const Json& token : line["logprobs"]) streamed.push_back(token);
    }
    EXPECT_EQ(streamed, tokens);
  }
  EXPECT_FALSE(chat().json().contains("logprobs"));
}

TEST_F(Ollama, ThinkingAndCalls) {
  engine.answer_with({ReasoningDelta{"why"}, TextDelta{"a"}, ToolCallBegin{0, "", "f"}, ToolCallArguments{0, "{\"x\":"},
                      ToolCallArguments{0, "1}"}});
  const Json message = chat().json()["message"];
  EXPECT_EQ(message["content"], "a");
  EXPECT_EQ(message["thinking"], "why");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(dump_json(message["tool_calls"][0]["function"]), R"({"name":"f","arguments":{"x":1}})");
  const std::vector<Json> all = lines(chat(Json::object(), true));
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["message"]["thinking"], "why");
  EXPECT_EQ(all[1]["message"]["content"], "a");
  EXPECT_EQ(all[2]["message"]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(all[3]["done_reason"], "stop");
}

TEST_F(Ollama, Conversations) {
  const Json call = {{"function", {{"name", "f"}, {"arguments", {{"x", 1}}}}}};
  Json turns = Json::array();
  turns.push_back({{"role", "system"}, {"content", "s"}});
  turns.push_back({{"role", "user"}, {"content", "a"}});
  turns.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}});
  turns.push_back({{"role", "tool"}, {"tool_name", "f"}, {"content", "r"}});
  EXPECT_EQ(chat({{"messages", turns}}).json()["message"]["content"],
            "system:s|user:a|assistant:|"
            R"([{"id":"call_0","type":"function","function":{"name":"f","arguments":{"x":1}}}]tool:r|>)");
  EXPECT_EQ(chat({{"think", true}}).json()["message"]["content"], R"(user:hi|{"enable_thinking":true}>)");
  EXPECT_EQ(chat({{"think", "low"}}).json()["message"]["content"],
            R"(user:hi|{"enable_thinking":true,"reasoning_effort":"low"}>)");
}

TEST_F(Ollama, Generate) {
  EXPECT_EQ(generate({{"system", "be"}}).json()["response"], "system:be|user:hi|>");
  EXPECT_EQ(generate({{"raw", true}, {"options", {{"num_predict", 3}}}}).json()["response"], "hi");
  EXPECT_EQ(engine.last_request().prompt.front(), FakeEngine::kBos);
  const std::vector<Json> all = lines(generate({{"options", {{"num_predict", 2}}}}, true));
  EXPECT_EQ(all.back()["done_reason"], "length");
  EXPECT_EQ(all.back()["response"], "");
  expect_refused(generate({{"raw", true}, {"system", "be"}}), 400, "'system'");
  const Json loaded = ask("/api/generate", Json::object(), true).json();
  EXPECT_EQ(loaded["done_reason"], "load");
  EXPECT_EQ(loaded["response"], "");
  EXPECT_EQ(chat({{"messages", Json::array()}}).json()["done_reason"], "load");
  expect_refused(ask("/api/generate", {{"keep_alive", 0}}), 400, "'keep_alive'");
  engine.info().has_chat_template = false;
  EXPECT_EQ(generate({{"options", {{"num_predict", 3}}}}).json()["response"], "hi");
}

TEST_F(Ollama, OptionsReachTheEngine) {
  const TestResponse response = chat({{"keep_alive", "5m"},
                                      {"options",
                                       {{"num_predict", 9},
                                        {"temperature", 0.5},
                                        {"top_k", 7},
                                        {"top_p", 0.25},
                                        {"min_p", 0.125},
                                        {"seed", 3},
                                        {"stop", Json::array({"x", "y"})},
                                        {"repeat_penalty", 1.5},
                                        {"presence_penalty", 0.5},
                                        {"frequency_penalty", -0.5},
                                        {"num_ctx", 4096},
                                        {"num_thread", 8}}}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("x-sluice-warning"), "unknown fields ignored: options.num_thread");
  const SamplingParams sampling = engine.last_request().sampling;
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_EQ(sampling.temperature, 0.5);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.top_p, 0.25);
  EXPECT_EQ(sampling.min_p, 0.125);
  EXPECT_EQ(sampling.seed, 3);
  EXPECT_EQ(sampling.stop.size(), 2u);
  EXPECT_EQ(sampling.repetition_penalty, 1.5);
  EXPECT_EQ(sampling.presence_penalty, 0.5);
  EXPECT_EQ(sampling.frequency_penalty, -0.5);
  chat({{"options", {{"num_predict", -1}}}});
  EXPECT_FALSE(engine.last_request().sampling.max_tokens);
  chat({{"format", "json"}});
  EXPECT_EQ(engine.last_request().grammar.value().kind, "json_object");
  chat({{"format", {{"type", "object"}}}});
  EXPECT_EQ(engine.last_request().grammar.value().text, R"({"type":"object"})");
}

TEST_F(Ollama, Embeddings) {
  engine.info().task = Task::kEmbed;
  engine.info().vector_size = 4;
  const Json both = ask("/api/embed", {{"input", Json::array({"ab", "c"})}}).json();
  EXPECT_EQ(dump_json(both["embeddings"]), "[[3,257,98,0],[2,257,99,0]]");
  EXPECT_EQ(both["prompt_eval_count"], 5);
  EXPECT_EQ(dump_json(ask("/api/embed", {{"input", "ab"}, {"dimensions", 2}}).json()["embeddings"]), "[[3,257]]");
  EXPECT_EQ(ask("/api/embed", {{"input", std::string(5000, 'a')}}).json()["prompt_eval_count"], 4096);
  expect_refused(ask("/api/embed", {{"input", std::string(5000, 'a')}, {"truncate", false}}), 400, "context");
  EXPECT_EQ(dump_json(ask("/api/embeddings", {{"prompt", "ab"}}).json()), R"({"embedding":[3,257,98,0]})");
  expect_refused(ask("/api/embed", {{"input", ""}}), 400, "'input'");
  expect_refused(chat(), 400, "generate text");
}

TEST_F(Ollama, Listings) {
  const Json model = get("/api/tags").json()["models"][0];
  EXPECT_EQ(model["name"], "fake");
  EXPECT_EQ(model["modified_at"], "2023-11-14T22:13:20.000000Z");
  EXPECT_EQ(model["digest"].get<std::string>().size(), 64u);
  EXPECT_EQ(get("/api/ps").json()["models"][0]["context_length"], 4096);
  const Json shown = post("/api/show", R"({"model":"fake"})").json();
  EXPECT_EQ(dump_json(shown["capabilities"]), R"(["completion"])");
  EXPECT_EQ(post("/api/show", R"({"name":"fake:latest"})").status, 200);
  expect_refused(post("/api/show", R"({"name":"other"})"), 404, "`fake`");
  EXPECT_EQ(get("/api/version").json()["version"], get("/version").json()["version"]);
  EXPECT_EQ(send(get_text("/", "", "HEAD"), true).status, 200);
}

TEST_F(Ollama, ServedModelsNeedNoPull) {
  EXPECT_EQ(post("/api/pull", R"({"model":"fake:latest","stream":false})").body, R"({"status":"success"})");
  const TestResponse lines = post("/api/pull", R"({"name":"fake"})");
  EXPECT_EQ(lines.headers.at("content-type"), "application/x-ndjson");
  EXPECT_TRUE(lines.body.starts_with("{\"status\":\"pulling manifest\"}\n{\"status\":\"pulling ")) << lines.body;
  EXPECT_TRUE(lines.body.ends_with("}\n{\"status\":\"success\"}\n")) << lines.body;
  expect_refused(post("/api/pull", R"({"model":"other"})"), 403, "`fake`");
}

TEST_F(Ollama, WhatIsNotSupportedIsRefusedByName) {
  const std::vector<std::pair<Json, std::string>> rows = {
      {{{"options", {{"num_ctx", 5000}}}}, "'num_ctx'"},
      {{{"options", {{"num_predict", 0}}}}, "'num_predict'"},
      {{{"options", {{"temperature", "hot"}}}}, "'temperature'"},
      {{{"options", {{"tfs_z", 0.5}}}}, "'tfs_z'"},
      {{{"format", "xml"}}, "'format'"},
      {{{"think", "much"}}, "'much'"},
      {{{"keep_alive", "later"}}, "'keep_alive'"},
      {{{"top_logprobs", 2}}, "'logprobs' to be true"},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "'top_logprobs'"},
      {{{"truncate", true}}, "'truncate'"},
      {{{"messages", Json::array({{{"role", "bot"}, {"content", "a"}}})}}, "'bot'"},
      {{{"messages", Json::array({{{"role", "user"}, {"images", Json::array({"AA=="})}}})}}, "'messages[0].images'"},
  };
  for (const auto& [fields, part] : rows) {
    SCOPED_TRACE(dump_json(fields));
    expect_refused(chat(fields), 400, part);
  }
  for (const auto* field : {"template", "suffix", "images", "context"}) {
    expect_refused(generate({{field, Json::array({1})}}), 400, field);
  }
  EXPECT_EQ(engine.submitted, 0);
}

TEST_F(Ollama, ErrorsOfEveryLayer) {
  options.api_key = {"key"};
  options.max_body_bytes = 4096;
  const std::string key = "Authorization: Bearer key\r\n";
  expect_refused(post("/api/chat", "{}"), 401, "API key");
  expect_refused(post("/api/create", R"({"model":"a"})", key), 404, "/api/create");
  expect_refused(post("/api/chat", R"({"model":"a"})", key), 404, "`a`");
  expect_refused(post("/api/chat", std::string(5000, ' '), key), 413, "");
  const std::string text = R"({"messages":[{"role":"user","content":"hi"}]})";
  engine.fail_at_token = 3;
  const TestResponse broken = post("/api/chat", text, key);
  EXPECT_EQ(broken.status, 200);
  EXPECT_TRUE(lines(broken).back().contains("error"));
  engine.is_overloaded = true;
  expect_refused(post("/api/chat", text, key), 503, "overloaded");
}

// curl -d says application/x-www-form-urlencoded. A page of another origin, which names its origin, may not send that.
TEST_F(Ollama, ContentTypesOfCurl) {
  const std::string body = R"({"model": "fake", "prompt": "hi", "stream": false})";
  const auto with = [&](std::string_view headers) {
    return send(fmt::format("POST /api/generate HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}", headers,
                            body.size(), body));
  };
  for (const char* type : {"", "Content-Type: application/x-www-form-urlencoded\r\n", "Content-Type: text/plain\r\n"}) {
    EXPECT_EQ(with(type).status, 200) << type;
    EXPECT_EQ(with(std::string(type) + "Origin: http://localhost\r\n").status, 415) << type;
  }
}

}  // namespace
}  // namespace sluice::ollama_test
