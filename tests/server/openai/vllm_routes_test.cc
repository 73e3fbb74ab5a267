// Routes of vLLM beside OpenAI's: /invocations, /pooling, /classify, /tokenizer_info, /reset_prefix_cache, /sleep.
#include "server/server_fixture.h"

namespace sluice::vllm_routes_test {
namespace {

class VllmRoutes : public ServerTest {
 protected:
  TestResponse invoke(const Json& body) { return post("/invocations", dump_json(body)); }
  void serve_as(Task task, int size) {
    engine.info().task = task;
    engine.info().vector_size = size;
    engine.info().matryoshka = true;
  }
  TestResponse post_nothing(std::string_view path, std::string_view headers = "") {
    return send(fmt::format("POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}Content-Length: 0\r\n\r\n", path, headers));
  }
};

TEST_F(VllmRoutes, InvocationsTellsByTheFields) {
  EXPECT_EQ(invoke({{"messages", {{{"role", "user"}, {"content", "hi"}}}}}).json()["object"], "chat.completion");
  EXPECT_EQ(invoke({{"prompt", "hi"}, {"model", "fake"}}).json()["object"], "text_completion");
  EXPECT_EQ(invoke({{"prompt", "hi"}, {"stream", true}}).headers.at("content-type"),
            "text/event-stream; charset=utf-8");
  expect_error(invoke({{"prompt", "hi"}, {"n", 0}}), 400, "n", "integer_below_min_value");
  expect_error(invoke({{"x", 1}}), 400, "", "missing_required_parameter");
  expect_error(invoke({{"input", "a"}}), 400, "model", "unsupported_task");
  expect_error(invoke({{"prompt", "a"}, {"model", "b"}}), 404, "", "model_not_found");
  serve_as(Task::kEmbed, 4);
  EXPECT_EQ(invoke({{"input", "a"}}).json()["data"][0]["object"], "embedding");
  EXPECT_TRUE(invoke({{"query", "a"}, {"documents", {"b"}}}).json().contains("results"));
  EXPECT_EQ(invoke({{"text_1", "a"}, {"text_2", "b"}}).json()["data"][0]["object"], "score");
  EXPECT_EQ(invoke({{"queries", "a"}, {"documents", {"b", "c"}}}).json()["data"].size(), 2u);
  serve_as(Task::kScore, 3);
  EXPECT_EQ(invoke({{"input", "a"}}).json()["data"][0]["num_classes"], 3);
}

TEST_F(VllmRoutes, ScoreKnowsAllNames) {
  serve_as(Task::kScore, 1);
  const Json expected = post("/score", R"({"text_1":"a","text_2":["b","cd"]})").json()["data"];
  EXPECT_EQ(expected.size(), 2u);
  EXPECT_EQ(post("/score", R"({"queries":"a","documents":["b","cd"]})").json()["data"], expected);
  EXPECT_EQ(post("/score", R"({"queries":"a","items":["b","cd"]})").json()["data"], expected);
  EXPECT_EQ(post("/score", R"({"data_1":"a","data_2":["b","cd"]})").json()["data"], expected);
  expect_error(post("/score", R"({"text_1":"a","queries":"b","text_2":"c"})"), 400, "queries",
               "invalid_parameter_combination");
  expect_error(post("/score", R"({"queries":"a"})"), 400, "text_2", "missing_required_parameter");
  expect_error(post("/score", R"({"queries":["a","b"],"items":["c"]})"), 400, "items", "invalid_value");
}

TEST_F(VllmRoutes, Pooling) {
  serve_as(Task::kEmbed, 4);
  const Json answer = post("/pooling", R"({"input":["ab","c"],"task":"embed","dimensions":2})").json();
  EXPECT_EQ(dump_json(answer["data"]),
            R"([{"index":0,"object":"pooling","data":[3,257]},{"index":1,"object":"pooling","data":[2,257]}])");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(post("/pooling", R"({"input":"ab","encoding_format":"base64"})").json()["data"][0]["data"],
            "AABAQACAgEMAAMRCAAAAAA==");
  expect_error(post("/pooling", R"({"input":"ab","task":"token_embed"})"), 400, "task", "invalid_value");
  expect_error(post("/pooling", R"({"task":"embed"})"), 400, "input", "missing_required_parameter");
  serve_as(Task::kScore, 3);
  EXPECT_EQ(dump_json(post("/pooling", R"({"input":"ab"})").json()["data"][0]["data"]), "[3,98,0]");
  post("/pooling", R"({"input":"ab","use_activation":false})");
  EXPECT_EQ(engine.last_pooling().activate, false);
  expect_error(post("/pooling", R"({"input":"ab","dimensions":2})"), 400, "dimensions", "unsupported_parameter");
  engine.info().task = Task::kGenerate;
  expect_error(post("/pooling", R"({"input":"ab"})"), 400, "model", "unsupported_task");
}

TEST_F(VllmRoutes, Classify) {
  serve_as(Task::kScore, 3);
  engine.info().labels = {"bad", "fair", "good"};
  const Json answer = post("/classify", R"({"input":["ab","c"]})").json();
  EXPECT_EQ(dump_json(answer["data"][0]), R"({"index":0,"label":"fair","probs":[3.0,98.0,0.0],"num_classes":3})");
  EXPECT_EQ(answer["data"].size(), 2u);
  expect_error(post("/classify", R"({"input":"a","encoding_format":"base64"})"), 400, "encoding_format",
               "unsupported_parameter");
  serve_as(Task::kEmbed, 4);
  expect_error(post("/classify", R"({"input":"a"})"), 400, "model", "unsupported_task");
}

TEST_F(VllmRoutes, TokenizerInfo) {
  const Json info = get("/tokenizer_info").json();
  EXPECT_EQ(info["tokenizer_class"], "Fake");
  EXPECT_EQ(info["chat_template"], "{{ x }}");
  expect_error(get("/tokenizer_info?model=x"), 404, "", "model_not_found");
}

TEST_F(VllmRoutes, PrefixCacheIsReset) {
  EXPECT_EQ(post_nothing("/reset_prefix_cache").status, 200) << "clients send neither a body nor its type";
  EXPECT_EQ(engine.resets, 1);
  EXPECT_EQ(post_nothing("/reset_prefix_cache?model=fake").status, 200);
  EXPECT_EQ(post_nothing("/flush_cache").body, "Cache flushed.\n");
  EXPECT_EQ(get("/flush_cache").status, 200);
  EXPECT_EQ(engine.resets, 4);
  expect_error(post_nothing("/reset_prefix_cache?model=x"), 404, "", "model_not_found");
  EXPECT_EQ(post_nothing("/reset_prefix_cache", "Origin: https://other.example\r\n").status, 415)
      << "a page of another origin must name a type that it may not send";
  EXPECT_EQ(engine.resets, 4);
}

TEST_F(VllmRoutes, SleepNeedsAModelThatCanBeUnloaded) {
  const TestResponse refused = post_nothing("/sleep?level=1");
  expect_error(refused, 501, "", "unsupported_endpoint");
  EXPECT_NE(refused.body.find("--load-models-on-demand"), std::string::npos);
  EXPECT_EQ(get("/is_sleeping").json(), Json({{"is_sleeping", false}}));
  EXPECT_EQ(post_nothing("/wake_up").status, 200);
}

// vLLM's clients read the members, whether they asked for them or not.
TEST_F(VllmRoutes, ResponseFormatInTgisForm) {
  const auto kind_of = [&](const std::string& format) {
    EXPECT_EQ(post("/v1/completions", R"({"prompt":"hi","response_format":)" + format + "}").status, 200) << format;
    return engine.last_request().grammar.value().kind;
  };
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"string"}}})";
  EXPECT_TRUE(kind_of(R"({"type":"json","value":)" + schema + "}").starts_with("json_schema"));
  EXPECT_TRUE(
      kind_of(R"({"type":"json_schema","value":{"name":"a","schema":)" + schema + "}}").starts_with("json_schema"));
  EXPECT_EQ(kind_of(R"({"type":"regex","value":"a+"})"), "regex");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"hi","response_format":{"type":"json"}})").status, 400);
}

// SGLang's names of grammars.
TEST_F(VllmRoutes, RegexAndEbnfConstrain) {
  post("/v1/completions", R"({"prompt":"hi","regex":"a+"})");
  EXPECT_EQ(engine.last_request().grammar.value().kind, "regex");
  post("/v1/completions", R"({"prompt":"hi","ebnf":"root ::= \"a\""})");
  EXPECT_EQ(engine.last_request().grammar.value().kind, "gbnf");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"hi","ebnf":"root ::= \"a\"","regex":"a"})").status, 400);
}

TEST_F(VllmRoutes, PromptLogprobsAreNullUnlessTheyAreAskedFor) {
  EXPECT_TRUE(chat().json().at("prompt_logprobs").is_null());
  EXPECT_TRUE(completion().json()["choices"][0].at("prompt_logprobs").is_null());
  EXPECT_TRUE(chat({{"prompt_logprobs", 0}}).json()["prompt_logprobs"].is_array());
  EXPECT_TRUE(completion({{"prompt_logprobs", 0}}).json()["choices"][0]["prompt_logprobs"].is_array());
}

TEST_F(VllmRoutes, ErrorsNameWhatIsAtFault) {
  expect_error(chat({{"max_tokens", 4096}}), 400, "max_tokens", "context_length_exceeded");
  expect_error(chat({{"max_completion_tokens", 4096}}), 400, "max_completion_tokens", "context_length_exceeded");
  expect_error(completion({{"max_tokens", 4096}}), 400, "max_tokens", "context_length_exceeded");
  const TestResponse two = chat({{"logit_bias", {{"300", 1}, {"5", 1}, {"-1", 1}}}});
  expect_error(two, 400, "logit_bias", "invalid_value");
  EXPECT_NE(two.body.find("token ids 300, -1 are not"), std::string::npos) << two.body;
}

}  // namespace
}  // namespace sluice::vllm_routes_test
