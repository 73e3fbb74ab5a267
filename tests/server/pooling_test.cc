// /v1/embeddings, /rerank and /score: answers, wrong requests, what a model of another task says, clients that leave.
#include <cstring>

#include "server/server_fixture.h"

namespace sluice::pooling_test {
namespace {

class Pooling : public ServerTest {
 protected:
  Pooling() { serve_as(Task::kEmbed); }
  void serve_as(Task task) {
    engine.info().task = task;
    engine.info().vector_size = task == Task::kEmbed ? 4 : 1;
    engine.info().matryoshka = true;
  }
  TestResponse embed(const Json& input, const Json& more = Json::object()) {
    Json body = {{"model", "fake"}, {"input", input}};
    body.update(more);
    return post("/v1/embeddings", dump_json(body));
  }
};

TEST_F(Pooling, Embeddings) {
  const TestResponse response = embed("ab");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.json().at("id").get<std::string>().starts_with("embd-"));
  EXPECT_GT(response.json().at("created"), 1'700'000'000);
  EXPECT_EQ(response.body.substr(response.body.find("\"data\"")),
            R"("data":[{"object":"embedding","index":0,"embedding":[3,257,98,0]}],)"
            R"("model":"fake","usage":{"prompt_tokens":3,"total_tokens":3}})");
  EXPECT_EQ(embed({"ab", "c"}).json()["data"][1]["embedding"], Json({2, 257, 99, 0}));
  EXPECT_EQ(embed({5, 6}).json()["data"][0]["embedding"], Json({2, 5, 6, 0}));
  EXPECT_EQ(embed(Json::array({{5, 6}, {7}})).json()["data"][1]["embedding"], Json({1, 7, 7, 0}));
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  for (const Json& text : {Json({{"prompt_string", "ab"}}), Json({{"content", parts}})}) {
    EXPECT_EQ(embed(text).json()["data"][0]["embedding"], Json({3, 257, 98, 0}));
    EXPECT_EQ(embed(Json::array({"c", text})).json()["data"][1]["embedding"], Json({3, 257, 98, 0}));
  }
  expect_error(embed({{"content", "ab"}}), 400, "input.content", "invalid_type");
  expect_error(embed({{"content", Json::array({{{"type", "image_url"}}})}}), 400, "input.content[0].type",
               "unsupported_parameter");
  expect_error(embed({{"prompt_string", "a"}, {"multimodal_data", {"AAAA"}}}), 400, "input.multimodal_data",
               "unsupported_parameter");
  EXPECT_EQ(embed("ab", {{"dimensions", 2}}).json()["data"][0]["embedding"], Json({3, 257}));
  EXPECT_EQ(embed("abcdef", {{"truncate_prompt_tokens", 3}}).json()["usage"]["prompt_tokens"], 3);
  EXPECT_TRUE(embed("ab", {{"normalize", false}}).status == 200 && engine.last_pooling().normalize == false);
  EXPECT_TRUE(embed("ab", {{"use_activation", false}}).status == 200 && engine.last_pooling().normalize == false);
  EXPECT_EQ(post("/pooling", R"({"input":"ab","use_activation":false})").status, 200);
  EXPECT_EQ(engine.last_pooling().normalize, false);
  expect_error(embed("ab", {{"use_activation", false}, {"normalize", true}}), 400, "use_activation",
               "invalid_parameter_combination");
}

TEST_F(Pooling, AModelThatGeneratesMayGiveVectors) {
  engine.info().task = Task::kGenerate;
  expect_error(embed("ab"), 400, "model", "unsupported_task");
  engine.info().embedding_pooling = "last";
  EXPECT_EQ(embed("ab").json()["data"][0]["embedding"], Json({3, 257, 98, 0}));
  EXPECT_EQ(post("/pooling", R"({"input":"ab"})").json()["data"][0]["data"], Json({3, 257, 98, 0}));
  EXPECT_EQ(post("/v1/score", R"({"text_1":"ab","text_2":"ab"})").json()["data"][0]["score"],
            75662.0);  // vectors of the fake
  EXPECT_EQ(post("/v1/completions", R"({"model":"fake","prompt":"hi"})").status, 200);
}

TEST_F(Pooling, TextsAreCutAtEitherSide) {
  const auto tokens = [&](const Json& input, Json more) {
    more["truncate_prompt_tokens"] = 3;
    EXPECT_EQ(embed(input, more).status, 200);
    return engine.last_pooling().texts.at(0).tokens;
  };
  EXPECT_EQ(tokens("abcd", {{"truncation_side", "right"}}), engine.tokenize("ab", true));
  EXPECT_EQ(tokens("abcd", {{"truncation_side", "left"}}), engine.tokenize("cd", true));
  EXPECT_EQ(tokens("a", {{"truncation_side", "left"}}), engine.tokenize("a", true));
  EXPECT_EQ(tokens({5, 6, 7, 8}, {{"truncation_side", "right"}}), engine.tokenize("\5\6\7\x08", false)) << "ids stay";
}

TEST_F(Pooling, ConversationsAreTexts) {
  const auto ask = [&](Json more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return post("/v1/embeddings", dump_json(body));
  };
  EXPECT_EQ(ask(Json::object()).status, 200);
  EXPECT_EQ(engine.last_pooling().texts.at(0).tokens, engine.tokenize("user:hi|", false));
  EXPECT_EQ(ask({{"add_generation_prompt", true}}).status, 200);
  EXPECT_EQ(engine.last_pooling().texts.at(0).tokens, engine.tokenize("user:hi|>", false));
  EXPECT_EQ(ask({{"truncate_prompt_tokens", 4}}).json()["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(post("/pooling", R"({"messages":[{"role":"user","content":"hi"}]})").status, 200);
  EXPECT_EQ(post("/invocations", R"({"messages":[{"role":"user","content":"hi"}]})").json()["object"], "list");
  expect_error(ask({{"input", "a"}}), 400, "messages", "invalid_parameter_combination");
  expect_error(ask({{"prompt_name", "query"}}), 400, "prompt_name", "invalid_parameter_combination");
  expect_error(post("/v1/embeddings", "{}"), 400, "input", "missing_required_parameter");
}

TEST_F(Pooling, TextsWithoutSpecialTokens) {
  EXPECT_EQ(embed("ab", {{"add_special_tokens", false}}).status, 200);
  EXPECT_EQ(engine.last_pooling().texts.at(0).tokens, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(
      embed("abc", {{"add_special_tokens", false}, {"truncate_prompt_tokens", 2}}).json()["usage"]["prompt_tokens"], 2);
}

TEST_F(Pooling, Base64IsTheBytesOfTheNumbers) {
  EXPECT_EQ(embed("ab", {{"encoding_format", "base64"}}).json()["data"][0]["embedding"], "AABAQACAgEMAAMRCAAAAAA==");
  EXPECT_EQ(embed("ab", {{"encoding_format", "base64"}, {"dimensions", 3}}).json()["data"][0]["embedding"],
            "AABAQACAgEMAAMRC");
  EXPECT_EQ(embed("ab", {{"encoding_format", "base64"}, {"dimensions", 2}}).json()["data"][0]["embedding"],
            "AABAQACAgEM=");
}

TEST_F(Pooling, PromptsGoBeforeTexts) {
  engine.info().prompts = {{"query", "q: "}, {"document", ""}};
  EXPECT_EQ(embed("a").json()["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(embed("a", {{"prompt_name", "query"}}).json()["usage"]["prompt_tokens"], 5);
  engine.info().default_prompt = "query";
  EXPECT_EQ(embed("a").json()["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(embed("a", {{"prompt_name", "document"}}).json()["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(embed("a", {{"prompt_name", ""}}).json()["usage"]["prompt_tokens"], 2);
}

TEST_F(Pooling, DimensionsThatTheModelDoesNotDeclare) {
  engine.info().matryoshka_dimensions = {1, 3};
  expect_error(embed("a", {{"dimensions", 2}}), 400, "dimensions", "invalid_value");
  EXPECT_EQ(embed("a", {{"dimensions", 3}}).status, 200);
  engine.info().matryoshka = false;
  expect_error(embed("a", {{"dimensions", 3}}), 400, "dimensions", "invalid_value");
  EXPECT_EQ(embed("a", {{"dimensions", 4}}).status, 200) << "all of them";
}

TEST_F(Pooling, WrongEmbeddingRequests) {
  expect_error(embed("a", {{"dimensions", 5}}), 400, "dimensions", "invalid_value");
  expect_error(embed("a", {{"dimensions", 0}}), 400, "dimensions", "integer_below_min_value");
  expect_error(embed("a", {{"encoding_format", "int8"}}), 400, "encoding_format", "invalid_value");
  expect_error(embed("a", {{"embed_dtype", "float16"}}), 400, "embed_dtype", "unsupported_parameter");
  expect_error(embed("a", {{"endianness", "big"}}), 400, "endianness", "unsupported_parameter");
  expect_error(embed("a", {{"padding", "max_length"}}), 400, "padding", "unsupported_parameter");
  expect_error(embed("a", {{"truncation_side", "top"}}), 400, "truncation_side", "invalid_value");
  expect_error(embed("a", {{"prompt_name", "x"}}), 400, "prompt_name", "invalid_value");
  expect_error(embed("a", {{"truncate_prompt_tokens", 0}}), 400, "truncate_prompt_tokens", "invalid_value");
  expect_error(embed("a", {{"truncate_prompt_tokens", 5000}}), 400, "truncate_prompt_tokens", "invalid_value");
  expect_error(embed(""), 400, "input", "invalid_value");
  expect_error(embed(Json::array()), 400, "input", "empty_array");
  expect_error(embed({"a", ""}), 400, "input[1]", "invalid_value");
  expect_error(embed({"a", 5}), 400, "input[1]", "invalid_type");
  expect_error(embed(7), 400, "input", "invalid_type");
  expect_error(embed({5, 300}), 400, "input[1]", "invalid_value");
  expect_error(embed({{{"text", "a"}}}), 400, "input[0]", "invalid_type");
  expect_error(embed(std::string(5000, 'a')), 400, "input", "context_length_exceeded");
  expect_error(embed({"a", std::string(100000, 'a')}), 400, "input[1]", "context_length_exceeded");
  expect_error(post("/v1/embeddings", R"({"model":"fake"})"), 400, "input", "missing_required_parameter");
  EXPECT_EQ(engine.submitted, 0);
}

TEST_F(Pooling, RerankSortsByScore) {
  serve_as(Task::kScore);
  const std::string body = R"({"query":"q","documents":["ab",{"text":"abcd"},"x"],"top_n":2})";
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"}) {
    const Json answer = post(path, body).json();
    EXPECT_EQ(dump_json(answer["results"]), R"([{"index":1,"document":{"text":"abcd"},"relevance_score":7.0},)"
                                            R"({"index":0,"document":{"text":"ab"},"relevance_score":5.0}])");
    EXPECT_EQ(answer["usage"]["total_tokens"], 16);
  }
  const TestResponse bare = post("/rerank", R"({"query":"q","documents":["a"],"return_documents":false})");
  EXPECT_EQ(dump_json(bare.json()["results"]), R"([{"index":0,"relevance_score":4.0}])");
  expect_error(post("/rerank", R"({"query":"q","documents":[]})"), 400, "documents", "empty_array");
  expect_error(post("/rerank", R"({"query":"q","documents":["a",5]})"), 400, "documents[1]", "invalid_type");
  expect_error(post("/rerank", R"({"query":"q","documents":[{"x":1}]})"), 400, "documents[0].text",
               "missing_required_parameter");
  expect_error(post("/rerank", R"({"query":["q"],"documents":["a"]})"), 400, "query", "invalid_type");
  expect_error(post("/rerank", R"({"query":"q","documents":["a"],"top_n":0})"), 400, "top_n",
               "integer_below_min_value");
  // Fields of vLLM that would change the scores.
  expect_error(post("/rerank", R"({"query":"q","documents":["a"],"max_tokens_per_doc":10})"), 400, "max_tokens_per_doc",
               "unsupported_parameter");
  EXPECT_EQ(post("/rerank", R"({"query":"q","documents":["a"],"max_tokens_per_doc":0})").status, 200);
}

TEST_F(Pooling, ScoresOfPairs) {
  serve_as(Task::kScore);
  const auto score = [&](const char* body) { return dump_json(post("/score", body).json()["data"]); };
  EXPECT_EQ(score(R"({"text_1":"a","text_2":"b"})"), R"([{"index":0,"object":"score","score":4.0}])");
  EXPECT_EQ(score(R"({"text_1":"a","text_2":["b","cd"]})"),
            R"([{"index":0,"object":"score","score":4.0},{"index":1,"object":"score","score":5.0}])");
  EXPECT_EQ(score(R"({"text_1":["a","bcd"],"text_2":["b","c"]})"),
            R"([{"index":0,"object":"score","score":4.0},{"index":1,"object":"score","score":6.0}])");
  expect_error(post("/v1/score", R"({"text_1":["a","b"],"text_2":["b"]})"), 400, "text_2", "invalid_value");
  expect_error(post("/v1/score", R"({"text_1":"a"})"), 400, "text_2", "missing_required_parameter");
}

// An embedding model scores by the angle between vectors; the query's is computed once.
TEST_F(Pooling, EmbeddingModelsRerank) {
  const Json answer = post("/rerank", R"({"query":"a","documents":["b","c"]})").json();
  EXPECT_EQ(engine.last_pooling().texts.size(), 3u);
  EXPECT_EQ(engine.last_pooling().normalize, true);
  EXPECT_EQ(answer["results"][0]["index"], 1);
  EXPECT_EQ(answer["results"][0]["relevance_score"], 2 * 2 + 257 * 257 + 97 * 99);
}

TEST_F(Pooling, ModelsOfOtherTasksSaySo) {
  const std::string chat_body = R"({"model":"fake","messages":[{"role":"user","content":"hi"}]})";
  expect_error(post("/v1/chat/completions", chat_body), 400, "model", "unsupported_task");
  EXPECT_EQ(get("/v1/models").json()["data"][0]["task"], "embed");
  serve_as(Task::kScore);
  expect_error(embed("a"), 400, "model", "unsupported_task");
  engine.info().vector_size = 3;
  expect_error(post("/rerank", R"({"query":"q","documents":["a"]})"), 400, "model", "unsupported_task");
  serve_as(Task::kGenerate);
  expect_error(embed("a"), 400, "model", "unsupported_task");
  expect_error(post("/score", R"({"text_1":"a","text_2":"b"})"), 400, "model", "unsupported_task");
  EXPECT_EQ(engine.submitted, 0);
}

TEST_F(Pooling, FaultsAndFullQueues) {
  engine.fail_at_token = 0;
  const TestResponse fault = embed("a");
  EXPECT_EQ(fault.status, 500);
  EXPECT_EQ(fault.body.find("0x7f00"), std::string::npos) << fault.body;
  engine.fail_at_token = -1;
  engine.refuse_submit = true;
  EXPECT_EQ(embed("a").status, 503);
}

TEST_F(Pooling, ClientsThatLeaveCancel) {
  engine.stalled = true;
  start();
  {
    TestClient client(port);
    client.send(post_text("/v1/embeddings", R"({"model":"fake","input":"a"})"));
    ASSERT_TRUE(eventually([&] { return engine.submitted == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return engine.cancelled == 1; }));
}

TEST_F(Pooling, ShutdownAnswersWhatIsOpen) {
  engine.stalled = true;
  options.shutdown_timeout_ms = 50;
  start();
  TestClient client(port);
  client.send(post_text("/v1/embeddings", R"({"model":"fake","input":"a"})"));
  ASSERT_TRUE(eventually([&] { return engine.submitted == 1; }));
  server->shutdown();
  EXPECT_EQ(client.read_response().status, 503);
}

}  // namespace
}  // namespace sluice::pooling_test
