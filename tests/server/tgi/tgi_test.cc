// TGI's routes: whole answers, streams, and errors.
#include "server/server_fixture.h"

namespace sluice::tgi_test {
namespace {

class Tgi : public ServerTest {
 protected:
  TestResponse generate(const Json& parameters, std::string_view path = "/generate") {
    return post(path, dump_json({{"inputs", "hi"}, {"parameters", parameters}}));
  }
  static void expect_refused(const TestResponse& response, int status, const std::string& type,
                             const std::string& part) {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_EQ(response.json().at("error_type"), type);
    EXPECT_NE(response.json().at("error").get<std::string>().find(part), std::string::npos) << response.body;
  }
};

TEST_F(Tgi, WholeAnswer) {
  EXPECT_EQ(generate(nullptr).body, R"({"generated_text":"hi"})");
  EXPECT_EQ(engine.last_request().sampling.temperature, 0);
  EXPECT_EQ(engine.last_request().sampling.max_tokens, 100);
  const Json answer =
      generate({{"details", true}, {"max_new_tokens", 3}, {"return_full_text", true}, {"seed", 5}}).json();
  EXPECT_EQ(answer["generated_text"], "hihi");
  EXPECT_EQ(answer["details"]["finish_reason"], "length");
  EXPECT_EQ(answer["details"]["generated_tokens"], 3);
  EXPECT_EQ(answer["details"]["seed"], 5);
  EXPECT_EQ(dump_json(answer["details"]["tokens"][1]), R"({"id":104,"text":"h","logprob":-0.5,"special":false})");
  EXPECT_EQ(generate({{"details", true}, {"stop", Json::array({"i"})}}).json()["details"]["finish_reason"],
            "stop_sequence");
  EXPECT_EQ(generate({{"details", true}}).json()["details"]["finish_reason"], "eos_token");
}

// TGI's own client posts there.
TEST_F(Tgi, RootAnswersWithAListOfOne) {
  EXPECT_EQ(generate(nullptr, "/").body, R"([{"generated_text":"hi"}])");
  EXPECT_EQ(post("/", R"({"inputs":"hi","stream":true,"parameters":{"max_new_tokens":3}})").body,
            generate({{"max_new_tokens", 3}}, "/generate_stream").body);
  expect_refused(post("/", "{}"), 422, "validation", "inputs");
}

TEST_F(Tgi, PrefillHasTheTokensOfThePrompt) {
  const Json answer = generate({{"decoder_input_details", true}}).json();
  EXPECT_EQ(dump_json(answer["details"]["prefill"][0]), R"({"id":257,"text":"<bos>","logprob":null})");
  EXPECT_EQ(dump_json(answer["details"]["prefill"][1]), R"({"id":104,"text":"h","logprob":-0.5})");
  EXPECT_EQ(answer["details"]["prefill"].size(), 3u);
  expect_refused(generate({{"decoder_input_details", true}}, "/generate_stream"), 422, "validation",
                 "it cannot be streamed");
}

TEST_F(Tgi, Stream) {
  const TestResponse response = generate({{"max_new_tokens", 3}}, "/generate_stream");
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  std::vector<Json> all;
  for (size_t at = 0; at < response.body.size();) {
    const size_t end = response.body.find("\n\n", at);
    EXPECT_EQ(response.body.substr(at, 5), "data:");
    all.push_back(parse_json(response.body.substr(at + 5, end - at - 5)));
    at = end + 2;
  }
  ASSERT_EQ(all.size(), 3u);
  std::string text;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["index"], i + 1);
    text += all[i]["token"]["text"];
    EXPECT_EQ(all[i]["generated_text"].is_null(), i + 1 < all.size());
  }
  EXPECT_EQ(text, "hi");
  EXPECT_EQ(all.back()["generated_text"], "hi");
  EXPECT_EQ(all.back()["details"]["finish_reason"], "length");
  EXPECT_EQ(all.back()["details"]["input_length"], 3);
  EXPECT_EQ(post("/generate", R"({"inputs":"hi","stream":true,"parameters":{"max_new_tokens":3}})").body,
            response.body);
}

TEST_F(Tgi, ParametersReachTheEngine) {
  generate({{"temperature", 0.5}, {"top_k", 3}, {"repetition_penalty", 1.5}, {"truncate", 2}});
  EXPECT_EQ(engine.last_request().sampling.temperature, 0.5);
  EXPECT_EQ(engine.last_request().sampling.top_k, 3);
  EXPECT_EQ(engine.last_request().sampling.repetition_penalty, 1.5);
  EXPECT_EQ(engine.last_request().prompt, (std::vector<TokenId>{'h', 'i'}));
  engine.info().default_sampling.temperature = 0.7;
  generate({{"do_sample", true}});
  EXPECT_EQ(engine.last_request().sampling.temperature, 0.7);
  generate({{"grammar", {{"type", "regex"}, {"value", "a+"}}}});
  EXPECT_EQ(engine.last_request().grammar.value().text, "a+");
  generate({{"grammar", {{"type", "json"}, {"value", {{"type", "object"}}}}}});
  EXPECT_EQ(engine.last_request().grammar.value().kind, "json_schema_strict");
  const TestResponse unknown = generate({{"new_field", 1}});
  EXPECT_EQ(unknown.headers.at("x-sluice-warning"), "unknown fields ignored: parameters.new_field");
}

TEST_F(Tgi, Tokens) {
  EXPECT_EQ(post("/tokenize", R"({"inputs":"h i"})").body,
            R"([{"id":257,"text":"<bos>","start":0,"stop":0},{"id":104,"text":"h","start":0,"stop":1},)"
            R"({"id":32,"text":" ","start":1,"stop":2},{"id":105,"text":"i","start":2,"stop":3}])");
  const Json chat = post("/chat_tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  EXPECT_EQ(chat["templated_text"], "user:hi|>");
  EXPECT_EQ(chat["tokenize_response"].size(), 9u);
  EXPECT_EQ(dump_json(chat["tokenize_response"][5]), R"({"id":104,"text":"h","start":5,"stop":6})");
  expect_refused(post("/chat_tokenize", "{}"), 422, "validation", "'messages'");
  expect_refused(post("/tokenize", R"({"inputs":5})"), 422, "validation", "'inputs'");
}

TEST_F(Tgi, InfoAndErrors) {
  const Json info = get("/info").json();
  EXPECT_EQ(info["model_id"], "fake");
  EXPECT_EQ(info["max_total_tokens"], 4096);
  expect_refused(post("/generate", "{}"), 422, "validation", "'inputs'");
  expect_refused(generate({{"max_new_tokens", 0}}), 422, "validation", "'max_new_tokens'");
  expect_refused(generate({{"best_of", 2}}), 422, "validation", "'best_of'");
  expect_refused(generate({{"grammar", {{"type", "xml"}, {"value", ""}}}}), 422, "validation", "'xml'");
  engine.fail_at_token = 0;
  expect_refused(generate(nullptr), 424, "generation", "");
  engine.is_overloaded = true;
  expect_refused(generate(nullptr), 429, "overloaded", "");
}

}  // namespace
}  // namespace sluice::tgi_test
