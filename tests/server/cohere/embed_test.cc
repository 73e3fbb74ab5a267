// Cohere's /v2/embed and /v1/embed: types of vectors, prompts, truncation, errors.
#include "server/server_fixture.h"

namespace sluice::cohere_test {
namespace {

class Cohere : public ServerTest {
 protected:
  Cohere() {
    engine.info().task = Task::kEmbed;
    engine.info().vector_size = 4;
    engine.info().matryoshka = true;
  }
  TestResponse embed(const Json& more, std::string_view path = "/v2/embed") {
    Json body = {{"model", "fake"}, {"texts", {"ab"}}};
    body.update(more);
    return post(std::string(path), dump_json(body));
  }
  std::vector<TokenId> tokens() const { return engine.last_pooling().texts.at(0).tokens; }
  static void expect_refused(const TestResponse& response, const std::string& param, const std::string& part) {
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_EQ(response.json().at("error").at("param"), param.empty() ? Json() : Json(param)) << response.body;
    EXPECT_NE(response.json().at("message").get<std::string>().find(part), std::string::npos) << response.body;
    EXPECT_EQ(response.json()["message"], response.json()["error"]["message"]);
  }
};

TEST_F(Cohere, VectorsByType) {
  const TestResponse response = embed({{"texts", {"ab", "c"}}, {"embedding_types", {"float", "int8", "base64"}}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("embd-"));
  EXPECT_EQ(answer["response_type"], "embeddings_by_type");
  EXPECT_EQ(dump_json(answer["embeddings"]["float"]), "[[3,257,98,0],[2,257,99,0]]");
  EXPECT_EQ(dump_json(answer["embeddings"]["int8"]), "[[1,127,48,0],[1,127,49,0]]");
  EXPECT_EQ(answer["embeddings"]["base64"][0], "AABAQACAgEMAAMRCAAAAAA==");
  EXPECT_EQ(answer["embeddings"].size(), 3u);
  EXPECT_EQ(dump_json(answer["texts"]), R"(["ab","c"])");
  EXPECT_EQ(dump_json(answer["meta"]),
            R"({"api_version":{"version":"2"},"billed_units":{"input_tokens":5,"image_tokens":0}})");
  EXPECT_EQ(dump_json(embed(Json::object()).json()["embeddings"]), R"({"float":[[3,257,98,0]]})");
  EXPECT_EQ(dump_json(embed({{"output_dimension", 2}}).json()["embeddings"]), R"({"float":[[3,257]]})");
}

TEST_F(Cohere, BitsFillBytes) {
  expect_refused(embed({{"embedding_types", {"binary"}}}), "embedding_types", "vectors have 4 dimensions");
  EXPECT_EQ(engine.submitted, 0);
}

TEST_F(Cohere, TheFirstVersionHasListsOfNumbers) {
  const Json answer = embed(Json::object(), "/v1/embed").json();
  EXPECT_EQ(answer["response_type"], "embeddings_floats");
  EXPECT_EQ(dump_json(answer["embeddings"]), "[[3,257,98,0]]");
  EXPECT_EQ(answer["meta"]["api_version"]["version"], "1");
  EXPECT_EQ(dump_json(embed({{"embedding_types", {"uint8"}}}, "/v1/embed").json()["embeddings"]),
            R"({"uint8":[[129,255,176,128]]})");
}

TEST_F(Cohere, KindsOfTextsHavePrompts) {
  EXPECT_EQ(embed({{"input_type", "search_document"}}).status, 200) << "a model without prompts";
  EXPECT_EQ(tokens().size(), 3u);
  engine.info().prompts = {{"query", "q: "}, {"passage", "passage: "}, {"STS", "s: "}};
  engine.info().default_prompt = "STS";
  for (const auto& [type, before] : {std::pair{"search_query", "q: "}, std::pair{"query", "q: "},
                                     std::pair{"search_document", "passage: "}, std::pair{"clustering", ""}}) {
    EXPECT_EQ(embed({{"input_type", type}}).status, 200);
    EXPECT_EQ(tokens(), engine.tokenize(std::string(before) + "ab", true)) << type;
  }
  EXPECT_EQ(embed(Json::object()).status, 200);
  EXPECT_EQ(tokens(), engine.tokenize("s: ab", true));
  expect_refused(embed({{"input_type", "image"}}), "input_type", "Unsupported input_type 'image'");
}

TEST_F(Cohere, LongTextsAreCut) {
  engine.info().max_model_len = 8;
  const Json text = {{"texts", {"abcdefghijk"}}};
  const auto cut = [&](const Json& more) {
    Json body = text;
    body.update(more);
    const TestResponse response = embed(body);
    EXPECT_EQ(response.status, 200) << response.body;
    return tokens();
  };
  EXPECT_EQ(cut(Json::object()), engine.tokenize("abcdefg", true));
  EXPECT_EQ(cut({{"truncate", "END"}, {"max_tokens", 3}}), engine.tokenize("ab", true));
  EXPECT_EQ(cut({{"truncate", "START"}}), engine.tokenize("efghijk", true));
  EXPECT_EQ(cut({{"truncate", "START"}, {"max_tokens", 3}}), engine.tokenize("jk", true));
  EXPECT_EQ(cut({{"texts", {"abc"}}, {"truncate", "START"}}), engine.tokenize("abc", true));
  EXPECT_EQ(embed({{"texts", {"abcdefghijk"}}, {"truncate", "NONE"}}).json()["error"]["code"],
            "context_length_exceeded");
  expect_refused(embed({{"texts", {"a", "abc"}}, {"truncate", "NONE"}, {"max_tokens", 3}}), "texts[1]", "has 4 tokens");
  EXPECT_EQ(embed({{"truncate", "NONE"}, {"max_tokens", 3}}).status, 200);
}

TEST_F(Cohere, InputsOfParts) {
  const auto with_part = [&](Json part) {
    Json inputs = Json::array();
    inputs.push_back({{"content", Json::array({{{"type", "text"}, {"text", "a"}}, std::move(part)})}});
    return post("/v2/embed", dump_json({{"inputs", inputs}}));
  };
  const TestResponse response = with_part({{"type", "text"}, {"text", "b"}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(tokens(), engine.tokenize("ab", true));
  EXPECT_EQ(response.json()["texts"][0], "ab");
  expect_refused(with_part({{"type", "image_url"}, {"image_url", {{"url", "x"}}}}), "inputs[0].content[1]",
                 "reads text");
}

TEST_F(Cohere, Errors) {
  expect_refused(post("/v2/embed", "{}"), "texts", "'texts'");
  expect_refused(embed({{"images", {"data:image/png;base64,"}}}), "images", "reads text");
  expect_refused(embed({{"inputs", Json::array({{{"content", "a"}}})}}), "inputs", "both");
  expect_refused(embed({{"texts", {"a", 5}}}), "texts[1]", "texts[1]");
  expect_refused(embed({{"texts", Json::array({{5, 6}})}}), "texts[0]", "texts[0]");
  expect_refused(embed({{"texts", {""}}}), "texts[0]", "no text");
  expect_refused(embed({{"embedding_types", {"float", "int4"}}}), "embedding_types[1]", "'int4'");
  expect_refused(embed({{"output_dimension", 5}}), "output_dimension", "4 dimensions");
  expect_refused(embed({{"truncate", "MIDDLE"}}), "truncate", "'MIDDLE'");
  expect_refused(post("/v2/embed", "{"), "", "JSON");
  EXPECT_EQ(engine.submitted, 0);
  EXPECT_EQ(get("/v2/embed").status, 405);
  EXPECT_TRUE(get("/v2/embed").json().contains("message"));
  engine.info().task = Task::kGenerate;
  expect_refused(embed(Json::object()), "model", "embeddings");
}

}  // namespace
}  // namespace sluice::cohere_test
