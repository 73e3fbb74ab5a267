// TEI's routes: vectors, labels, ranks, tokens, and errors.
#include "server/server_fixture.h"

namespace sluice::tei_test {
namespace {

class Tei : public ServerTest {
 protected:
  Tei() { serve_as(Task::kEmbed); }
  void serve_as(Task task) {
    engine.info().task = task;
    engine.info().vector_size = task == Task::kEmbed ? 4 : 3;
    engine.info().matryoshka = true;
    if (task == Task::kScore) engine.info().labels = {"bad", "fair", "good"};
  }
  static void expect_refused(const TestResponse& response, int status, const std::string& part,
                             const std::string& type = "Validation") {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_EQ(response.json().at("error_type"), type);
    EXPECT_NE(response.json().at("error").get<std::string>().find(part), std::string::npos) << response.body;
  }
};

TEST_F(Tei, Embed) {
  EXPECT_EQ(post("/embed", R"({"inputs":"ab"})").body, "[[3,257,98,0]]");
  EXPECT_EQ(post("/embed", R"({"inputs":["ab","c"]})").body, "[[3,257,98,0],[2,257,99,0]]");
  EXPECT_EQ(post("/embed", R"({"inputs":[[5,6],[7]]})").body, "[[2,5,6,0],[1,7,7,0]]");
  EXPECT_EQ(post("/embed", R"({"inputs":"ab","dimensions":2})").body, "[[3,257]]");
  EXPECT_EQ(engine.last_pooling().normalize, true);
  post("/embed", R"({"inputs":"ab","normalize":false})");
  EXPECT_EQ(engine.last_pooling().normalize, false);
  const std::string text(5000, 'a');
  expect_refused(post("/embed", dump_json({{"inputs", text}})), 413, "maximum context length");
  EXPECT_EQ(post("/embed", dump_json({{"inputs", text}, {"truncate", true}})).status, 200);
  EXPECT_EQ(engine.last_pooling().texts[0].tokens.size(), 4096u);
  const Json left = {{"inputs", text + "b"}, {"truncate", true}, {"truncation_direction", "Left"}};
  EXPECT_EQ(post("/embed", dump_json(left)).body, "[[4096,257,98,0]]");
  engine.info().prompts = {{"query", "q: "}};
  EXPECT_EQ(post("/embed", R"({"inputs":"a","prompt_name":"query"})").body, "[[5,257,97,0]]");
}

TEST_F(Tei, Similarity) {
  const TestResponse response = post(
      "/similarity", R"({"inputs":{"source_sentence":"a","sentences":["b","cd"]},"parameters":{"truncate":true}})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json().size(), 2u);
  EXPECT_EQ(engine.last_pooling().texts.size(), 3u);
  EXPECT_EQ(engine.last_pooling().normalize, true);
  expect_refused(post("/similarity", "{}"), 422, "'inputs'");
  expect_refused(post("/similarity", R"({"inputs":{"sentences":["a"]}})"), 422, "'inputs.source_sentence'");
  expect_refused(post("/similarity", R"({"inputs":{"source_sentence":"a","sentences":[]}})"), 422,
                 "'inputs.sentences'");
  expect_refused(post("/similarity", R"({"inputs":{"source_sentence":"a","sentences":[5]}})"), 422,
                 "'inputs.sentences[0]'");
  serve_as(Task::kScore);
  expect_refused(post("/similarity", R"({"inputs":{"source_sentence":"a","sentences":["b"]}})"), 422, "task");
}

TEST_F(Tei, Predict) {
  serve_as(Task::kScore);
  EXPECT_EQ(post("/predict", R"({"inputs":"ab"})").body,
            R"([{"score":98.0,"label":"fair"},{"score":3.0,"label":"bad"},{"score":0.0,"label":"good"}])");
  EXPECT_EQ(post("/predict", R"({"inputs":["ab","c"]})").json().size(), 3u) << "a pair";
  EXPECT_EQ(engine.last_pooling().texts[0].types.back(), 1);
  EXPECT_EQ(post("/predict", R"({"inputs":[["ab","c"],["d"]]})").json().size(), 2u);
  EXPECT_FALSE(engine.last_pooling().activate);
  post("/predict", R"({"inputs":"ab","raw_scores":true})");
  EXPECT_EQ(engine.last_pooling().activate, false);
  expect_refused(post("/predict", R"({"inputs":["a","b","c"]})"), 413, "'inputs'");
  expect_refused(post("/predict", R"({"inputs":[["a"],[5]]})"), 422, "'inputs[1][0]'");
}

TEST_F(Tei, RerankTellsItsOwnBodies) {
  EXPECT_EQ(post("/rerank", R"({"query":"a","texts":["b","cd"],"return_text":true})").json().size(), 2u);
  const Json bare = post("/rerank", R"({"query":"a","texts":["b"]})").json();
  EXPECT_FALSE(bare[0].contains("text"));
  EXPECT_EQ(bare[0]["index"], 0);
  EXPECT_TRUE(post("/rerank", R"({"query":"a","documents":["b"]})").json().contains("results")) << "Cohere's form";
  EXPECT_EQ(post("/rerank", R"({"query":"a","texts":["b","c","d"],"top_n":2})").json().size(), 2u);
  expect_refused(post("/rerank", R"({"query":"a","texts":[5]})"), 422, "'texts[0]'");
  expect_error(post("/rerank", R"({"query":"a"})"), 400, "documents", "missing_required_parameter");
}

TEST_F(Tei, TokenizeAndDecode) {
  EXPECT_EQ(post("/tokenize", R"({"inputs":"hü"})").body,
            R"([[{"id":257,"text":"<bos>","special":true,"start":null,"stop":null},)"
            R"({"id":104,"text":"h","special":false,"start":0,"stop":1},)"
            R"({"id":195,"text":"�","special":false,"start":1,"stop":2},)"
            R"({"id":188,"text":"�","special":false,"start":2,"stop":2}]])");
  EXPECT_EQ(post("/tokenize", R"({"inputs":["a","b"],"add_special_tokens":false})").json().size(), 2u);
  EXPECT_EQ(post("/tokenize", R"({"prompt":"a"})").json()["count"], 2) << "vLLM's form";
  EXPECT_EQ(post("/decode", R"({"ids":[257,104,105]})").body, R"(["hi"])");
  EXPECT_EQ(post("/decode", R"({"ids":[[257,104],[105]],"skip_special_tokens":false})").body, R"(["<bos>h","i"])");
  expect_refused(post("/decode", R"({"ids":[300]})"), 422, "'ids[0]'");
  expect_refused(post("/decode", R"({"ids":[]})"), 422, "'ids'");
}

TEST_F(Tei, Errors) {
  expect_refused(post("/embed", "{}"), 422, "'inputs'");
  expect_refused(post("/embed", R"({"inputs":"a","truncation_direction":"Up"})"), 422, "Up");
  expect_refused(post("/predict", R"({"inputs":"a"})"), 422, "task");
  engine.fail_at_token = 0;
  expect_refused(post("/embed", R"({"inputs":"a"})"), 424, "", "Backend");
  engine.is_overloaded = true;
  expect_refused(post("/embed", R"({"inputs":"a"})"), 429, "", "Overloaded");
}

}  // namespace
}  // namespace sluice::tei_test
