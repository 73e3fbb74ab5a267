// llama.cpp's routes: completions, listings, and the routes without /v1.
#include "server/server_fixture.h"

namespace sluice::llamacpp_test {
namespace {

class LlamaCpp : public ServerTest {
 protected:
  TestResponse complete(const Json& more, std::string_view path = "/completion") {
    Json body = {{"prompt", "hi"}, {"n_predict", 3}};
    body.update(more);
    return post(path, dump_json(body));
  }
  static void expect_refused(const TestResponse& response, int status, const std::string& type,
                             const std::string& part) {
    EXPECT_EQ(response.status, status) << response.body;
    const Json error = response.json().at("error");
    EXPECT_EQ(error.at("code"), status);
    EXPECT_EQ(error.at("type"), type);
    EXPECT_NE(error.at("message").get<std::string>().find(part), std::string::npos) << response.body;
  }
};

TEST_F(LlamaCpp, WholeAnswer) {
  const Json answer = complete({{"return_tokens", true}, {"temperature", 0.5}}, "/completions").json();
  EXPECT_EQ(answer["content"], "hi");
  EXPECT_EQ(dump_json(answer["tokens"]), "[257,104,105]");
  EXPECT_EQ(answer["stop"], true);
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_EQ(answer["prompt"], "hi");
  EXPECT_EQ(answer["stop_type"], "limit");
  EXPECT_EQ(answer["tokens_predicted"], 3);
  EXPECT_EQ(answer["tokens_evaluated"], 3);
  EXPECT_EQ(answer["generation_settings"]["temperature"], 0.5);
  EXPECT_EQ(answer["timings"]["predicted_n"], 3);
  const Json word = complete({{"n_predict", -1}, {"stop", Json::array({"i"})}}).json();
  EXPECT_EQ(word["stop_type"], "word");
  EXPECT_EQ(word["stopping_word"], "i");
  const Json ids = complete({{"n_predict", -1}, {"prompt", Json::array({104, 105})}}).json();
  EXPECT_EQ(ids["stop_type"], "eos");
  EXPECT_EQ(ids["content"], "hi");
  EXPECT_EQ(ids["prompt"], "hi");
}

TEST_F(LlamaCpp, Stream) {
  const TestResponse response = complete({{"stream", true}});
  const std::vector<std::string> data = sse_data(response.body);
  std::string text;
  for (const std::string& line : data) {
    const Json event = parse_json(line);
    EXPECT_EQ(event["stop"], &line == &data.back());
    text += event["content"];
  }
  EXPECT_EQ(text, "hi");
  EXPECT_EQ(parse_json(data.back())["timings"]["predicted_n"], 3);
}

TEST_F(LlamaCpp, FieldsReachTheEngine) {
  complete({{"seed", -1}, {"repeat_penalty", 1.5}, {"top_k", 5}, {"ignore_eos", true}});
  EXPECT_FALSE(engine.last_request().sampling.seed);
  EXPECT_EQ(engine.last_request().sampling.repetition_penalty, 1.5);
  EXPECT_EQ(engine.last_request().sampling.top_k, 5);
  EXPECT_TRUE(engine.last_request().sampling.ignore_eos);
  complete({{"json_schema", {{"type", "object"}}}, {"seed", 4}});
  EXPECT_EQ(engine.last_request().grammar.value().kind, "json_schema_strict");
  EXPECT_EQ(engine.last_request().sampling.seed, 4);
}

TEST_F(LlamaCpp, Listings) {
  const Json props = get("/props").json();
  EXPECT_EQ(props["model_alias"], "fake");
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 4096);
  EXPECT_EQ(get("/slots").json(), Json::array());
  engine.stalled = true;
  TestClient client(port);
  client.send(post_text("/completion", R"({"prompt":"hi"})"));
  EXPECT_TRUE(eventually([&] { return get("/slots").json().size() == 1; }));
  engine.stalled = false;
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(post("/apply-template", R"({"messages":[{"role":"user","content":"hi"}]})").json()["prompt"], "user:hi|>");
  expect_refused(post("/apply-template", "{}"), 400, "invalid_request_error", "'messages'");
}

TEST_F(LlamaCpp, Tokens) {
  EXPECT_EQ(dump_json(post("/tokenize", R"({"content":"hi"})").json()["tokens"]), "[104,105]");
  EXPECT_EQ(
      dump_json(post("/tokenize", R"({"content":"h\u00fc","add_special":true,"with_pieces":true})").json()["tokens"]),
      R"([{"id":257,"piece":"<bos>"},{"id":104,"piece":"h"},{"id":195,"piece":[195]},{"id":188,"piece":[188]}])");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[104,105]})").json()["content"], "hi");
  expect_error(post("/tokenize", R"({"content":"a","prompt":"b"})"), 400, "prompt", "invalid_parameter_combination");
}

TEST_F(LlamaCpp, RoutesWithoutTheVersion) {
  EXPECT_EQ(post("/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})").json()["object"],
            "chat.completion");
  EXPECT_EQ(get("/models").json()["data"][0]["id"], "fake");
  engine.info().task = Task::kEmbed;
  engine.info().vector_size = 4;
  EXPECT_EQ(post("/embeddings", R"({"input":"a"})").json()["object"], "list");
}

TEST_F(LlamaCpp, Errors) {
  expect_refused(complete({{"prompt", nullptr}}), 400, "invalid_request_error", "'prompt'");
  expect_refused(complete({{"prompt", Json::array({"a", "b"})}}), 400, "invalid_request_error", "'prompt[0]'");
  expect_refused(complete({{"n_predict", 0}}), 400, "invalid_request_error", "'n_predict'");
  expect_refused(complete({{"n_predict", 5000}}), 400, "exceed_context_size_error", "context");
  expect_refused(complete({{"cache_prompt", false}}), 400, "invalid_request_error", "'cache_prompt'");
  expect_refused(complete({{"mirostat", 3}}), 400, "invalid_request_error", "'mirostat'");
  expect_refused(complete({{"model", "other"}}), 404, "not_found_error", "`fake`");
  expect_refused(post("/infill", "{}"), 501, "not_supported_error", "/infill");
  expect_refused(post("/slots/0", "{}"), 404, "not_found_error", "/slots/0");
  EXPECT_EQ(engine.submitted, 0);
  engine.is_overloaded = true;
  expect_refused(complete(Json::object()), 503, "unavailable_error", "overloaded");
}

}  // namespace
}  // namespace sluice::llamacpp_test
