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
  EXPECT_EQ(complete({{"n_predict", 5000}}).json()["generation_settings"]["n_predict"], 4093) << "up to the context";
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

TEST_F(LlamaCpp, ProbabilitiesOfTokens) {
  const auto check = [](const Json& list, size_t count) {
    ASSERT_EQ(list.size(), count);
    for (const Json& token : list) {
      EXPECT_EQ(token["token"].get<std::string>().size(), token["bytes"].size());
      EXPECT_LE(token["logprob"].get<double>(), 0);
      EXPECT_EQ(token["top_logprobs"].size(), 2u);
      EXPECT_TRUE(token["top_logprobs"][0]["id"].is_number());
    }
  };
  check(complete({{"n_probs", 2}}).json()["completion_probabilities"], 3);
  EXPECT_EQ(engine.last_request().sampling.logprobs, 2);
  size_t tokens = 0;
  for (const std::string& line : sse_data(complete({{"n_probs", 2}, {"stream", true}}).body)) {
    const Json list = parse_json(line)["completion_probabilities"];
    tokens += list.size();
    check(list, list.size());
  }
  EXPECT_EQ(tokens, 3u);
  EXPECT_FALSE(complete(Json::object()).json().contains("completion_probabilities"));
}

TEST_F(LlamaCpp, FieldsOfTheAnswer) {
  const Json fields = {"content", "generation_settings/n_predict", "nothing", "content/x"};
  const Json answer = complete({{"response_fields", fields}}).json();
  EXPECT_EQ(answer, (Json{{"content", "hi"}, {"generation_settings/n_predict", 3}}));
  const Json list = complete({{"prompt", {"ab", "cd"}}, {"response_fields", {"content"}}}).json();
  EXPECT_EQ(list, (Json{{{"content", "ab"}}, {{"content", "cd"}}}));
  EXPECT_GT(complete({{"response_fields", Json::array()}}).json().size(), 5u) << "all";
  EXPECT_EQ(complete({{"response_fields", "content"}}).json(), (Json{{"content", "hi"}})) << "one";
}

TEST_F(LlamaCpp, TimingsPerToken) {
  for (const bool wanted : {false, true}) {
    const auto data = sse_data(complete({{"stream", true}, {"timings_per_token", wanted}}).body);
    EXPECT_EQ(parse_json(data.front()).contains("timings"), wanted);
    EXPECT_TRUE(parse_json(data.back()).contains("timings"));
  }
}

TEST_F(LlamaCpp, APromptWithoutTheCache) {
  std::set<std::string> salts;
  for (int i = 0; i < 3; ++i) {
    complete({{"cache_prompt", false}});
    salts.insert(engine.last_request().cache_salt);
  }
  EXPECT_EQ(salts.size(), 3u);
  complete({{"cache_prompt", true}});
  EXPECT_EQ(engine.last_request().cache_salt, "");
}

TEST_F(LlamaCpp, FieldsReachTheEngine) {
  const Json answer = complete({{"seed", -1}, {"repeat_penalty", 1.5}, {"top_k", 5}, {"ignore_eos", true}}).json();
  EXPECT_EQ(answer["generation_settings"]["logit_bias"],
            Json::array({{{"token", FakeEngine::kEos}, {"bias", nullptr}}}));
  EXPECT_FALSE(engine.last_request().sampling.seed);
  EXPECT_EQ(engine.last_request().sampling.repetition_penalty, 1.5);
  EXPECT_EQ(engine.last_request().sampling.top_k, 5);
  EXPECT_TRUE(engine.last_request().sampling.ignore_eos);
  complete({{"json_schema", {{"type", "object"}}}, {"seed", 4}});
  EXPECT_EQ(engine.last_request().grammar.value().kind, "json_schema_strict");
  EXPECT_EQ(engine.last_request().sampling.seed, 4);
}

TEST_F(LlamaCpp, SeveralPrompts) {
  const Json list = complete({{"prompt", {"ab", {99, "d", 101}, {102}}}, {"n_predict", -1}}).json();
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["content"], "ab");
  EXPECT_EQ(list[1]["content"], "cde");
  EXPECT_EQ(list[2]["prompt"], "f");
  EXPECT_EQ(list[2]["index"], 2);
  EXPECT_EQ(complete({{"prompt", Json::array({"ab"})}}).json()["content"], "ab") << "one is no list";
  EXPECT_EQ(complete({{"prompt", {"a", 98}}, {"n_predict", -1}}).json()["content"], "ab") << "a text and a token";
  EXPECT_EQ(engine.last_request().prompt, (std::vector<TokenId>{FakeEngine::kBos, 'a', 'b'}));
  EXPECT_EQ(complete({{"prompt", {{"prompt_string", "ab"}}}, {"n_predict", -1}}).json()["content"], "ab");
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(complete({{"prompt", {{"content", parts}}}, {"n_predict", -1}}).json()["content"], "ab");
  expect_refused(complete({{"prompt", {{"prompt_string", "ab"}, {"multimodal_data", {"x"}}}}}), 400,
                 "invalid_request_error", "'prompt.multimodal_data'");
  std::map<int, std::string> texts;
  int ends = 0;
  for (const std::string& line : sse_data(complete({{"prompt", {"ab", "cd"}}, {"stream", true}}).body)) {
    const Json event = parse_json(line);
    texts[event["index"].get<int>()] += event["content"];
    ends += event["stop"].get<bool>() ? 1 : 0;
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "ab"}, {1, "cd"}}));
  EXPECT_EQ(ends, 2);
}

TEST_F(LlamaCpp, LogitBias) {
  using Biases = std::vector<std::pair<TokenId, float>>;
  const float never = -std::numeric_limits<float>::infinity();
  complete({{"logit_bias", {{5, 1.5}, {"hi", -2}, {7, false}}}});
  EXPECT_EQ(engine.last_request().sampling.logit_bias, (Biases{{5, 1.5f}, {'h', -2.0f}, {'i', -2.0f}, {7, never}}));
  complete({{"logit_bias", {{"5", 1.5}, {"hi", false}}}});
  EXPECT_EQ(engine.last_request().sampling.logit_bias, (Biases{{5, 1.5f}, {'h', never}, {'i', never}}));
  complete({{"logit_bias", Json::array()}});
  EXPECT_TRUE(engine.last_request().sampling.logit_bias.empty());
  for (const auto& [bias, path] : std::vector<std::pair<Json, std::string>>{{{{5, 101}}, "logit_bias[0][1]"},
                                                                            {{{5, true}}, "logit_bias[0][1]"},
                                                                            {{{300, 1}}, "logit_bias[0][0]"},
                                                                            {{{5}}, "logit_bias[0]"},
                                                                            {Json{{"300", 1}}, "logit_bias.300"},
                                                                            {"x", "logit_bias"}}) {
    expect_refused(complete({{"logit_bias", bias}}), 400, "invalid_request_error", "'" + path + "'");
  }
}

TEST_F(LlamaCpp, Infill) {
  engine.fills_in = true;
  const Json body = {{"input_prefix", "ab"}, {"input_suffix", {"c", 100}}, {"prompt", "x"}, {"n_predict", 1}};
  const TestResponse response = post("/infill", dump_json(body));
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(engine.last_request().prompt,
            (std::vector<TokenId>{FakeEngine::kBos, 258, 'a', 'b', 'x', 259, 'c', 'd', 260}));
  EXPECT_EQ(response.json()["prompt"], "<bos><fim_prefix>abx<fim_suffix>cd<fim_middle>");
  Json more = body;
  more["input_extra"] = {{{"filename", "a.py"}, {"text", "y"}}};
  EXPECT_EQ(post("/infill", dump_json(more)).status, 200);
  EXPECT_EQ(engine.detokenize(engine.last_request().prompt, true), "\n\n--- snippet ---\n\nyabxcd");
  more["input_extra"] = {{{"filename", "a.py"}}};
  expect_refused(post("/infill", dump_json(more)), 400, "invalid_request_error", "'input_extra[0].text'");
  more = body;
  more.erase("input_suffix");
  expect_refused(post("/infill", dump_json(more)), 400, "invalid_request_error", "'input_suffix'");
}

TEST_F(LlamaCpp, Listings) {
  const Json props = get("/props").json();
  EXPECT_EQ(props["model_alias"], "fake");
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 4096);
  EXPECT_EQ(get("/slots").json(), Json::array({{{"id", 0}, {"is_processing", false}, {"n_ctx", 4096}}}));
  engine.stalled = true;
  TestClient client(port);
  client.send(post_text("/completion", R"({"prompt":"hi"})"));
  EXPECT_TRUE(eventually([&] { return get("/slots").json().size() == 2; }));
  engine.stalled = false;
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(post("/apply-template", R"({"messages":[{"role":"user","content":"hi"}]})").json()["prompt"], "user:hi|>");
  expect_refused(post("/apply-template", "{}"), 400, "invalid_request_error", "'messages'");
}

TEST_F(LlamaCpp, Adapters) {
  EXPECT_EQ(get("/lora-adapters").body, "[]");
  EXPECT_EQ(complete({{"lora", Json::array()}}).status, 200);
  EXPECT_EQ(engine.last_request().adapter, "");
}

TEST_F(LlamaCpp, Tokens) {
  EXPECT_EQ(dump_json(post("/tokenize", R"({"content":"hi"})").json()["tokens"]), "[104,105]");
  EXPECT_EQ(
      dump_json(post("/tokenize", R"({"content":"h\u00fc","add_special":true,"with_pieces":true})").json()["tokens"]),
      R"([{"id":257,"piece":"<bos>"},{"id":104,"piece":"h"},{"id":195,"piece":[195]},{"id":188,"piece":[188]}])");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[104,105]})").json()["content"], "hi");
  expect_error(post("/tokenize", R"({"content":"a","prompt":"b"})"), 400, "prompt", "invalid_parameter_combination");
}

TEST_F(LlamaCpp, BiasesAreReported) {
  const Json settings = complete({{"logit_bias", {{104, 2.5}, {105, false}}}}).json()["generation_settings"];
  EXPECT_EQ(dump_json(settings["logit_bias"]), R"([{"token":104,"bias":2.5},{"token":105,"bias":null}])");
}

TEST_F(LlamaCpp, CountsTheTokensOfMessages) {
  const Json answer = post("/chat/completions/input_tokens", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  EXPECT_EQ(answer["object"], "response.input_tokens");
  EXPECT_EQ(answer["input_tokens"], 9);
  EXPECT_EQ(post("/v1/chat/completions/input_tokens", "{}").status, 400);
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
  expect_refused(complete({{"prompt", Json::array()}}), 400, "invalid_request_error", "'prompt'");
  expect_refused(complete({{"prompt", {104, {{"prompt_string", "b"}}}}}), 400, "invalid_request_error", "'prompt[1]'");
  expect_refused(complete({{"prompt", {104, nullptr}}}), 400, "invalid_request_error", "'prompt[1]'");
  expect_refused(complete({{"prompt", {{104, 300}}}}), 400, "invalid_request_error", "'prompt[0][1]'");
  expect_refused(complete({{"n_predict", 0}}), 400, "invalid_request_error", "'n_predict'");
  const std::string longer(5000, 'a');
  expect_refused(complete({{"prompt", longer}}), 400, "exceed_context_size_error", "context");
  expect_refused(complete({{"n_keep", -2}}), 400, "invalid_request_error", "'n_keep'");
  expect_refused(complete({{"lora", {{{"id", 0}, {"scale", 1}}}}}), 400, "invalid_request_error", "'lora[0].id'");
  expect_refused(complete({{"mirostat", 3}}), 400, "invalid_request_error", "'mirostat'");
  expect_refused(complete({{"model", "other"}}), 404, "not_found_error", "`fake`");
  expect_refused(post("/infill", "{}"), 400, "invalid_request_error", "'input_prefix'");
  expect_refused(post("/infill", R"({"input_prefix":"a","input_suffix":"b"})"), 501, "not_supported_error",
                 "<|fim_prefix|>");
  expect_refused(post("/slots/0", "{}"), 404, "not_found_error", "/slots/0");
  EXPECT_EQ(engine.submitted, 0);
  engine.is_overloaded = true;
  expect_refused(complete(Json::object()), 503, "unavailable_error", "overloaded");
}

}  // namespace
}  // namespace sluice::llamacpp_test
