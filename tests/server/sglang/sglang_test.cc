// SGLang's routes: /generate in all its forms, its errors, and what it tells of the model.
#include "server/server_fixture.h"

namespace sluice::sglang_test {
namespace {

class Sglang : public ServerTest {
 protected:
  TestResponse generate(const Json& body) { return post("/generate", dump_json(body)); }
  static void expect_refused(const TestResponse& response, int status, const std::string& part) {
    EXPECT_EQ(response.status, status) << response.body;
    const Json error = response.json().at("error");
    EXPECT_NE(error.at("message").get<std::string>().find(part), std::string::npos) << response.body;
  }
};

TEST_F(Sglang, WholeAnswer) {
  const Json answer = generate({{"text", "hi"}, {"rid", "mine"}, {"sampling_params", {{"max_new_tokens", 3}}}}).json();
  EXPECT_EQ(answer["text"], "hi");
  EXPECT_EQ(dump_json(answer["output_ids"]), "[257,104,105]");
  const Json& meta = answer["meta_info"];
  EXPECT_EQ(meta["id"], "mine");
  EXPECT_EQ(dump_json(meta["finish_reason"]), R"({"type":"length","length":3})");
  EXPECT_EQ(meta["prompt_tokens"], 3);
  EXPECT_EQ(meta["completion_tokens"], 3);
  EXPECT_EQ(meta["cached_tokens"], 3);
  EXPECT_GE(meta["e2e_latency"].get<double>(), 0);
  EXPECT_FALSE(meta.contains("output_token_logprobs"));
  EXPECT_EQ(engine.last_request().sampling.max_tokens, 3);
  const Json end = generate({{"text", "hi"}}).json();
  EXPECT_EQ(dump_json(end["meta_info"]["finish_reason"]), R"({"type":"stop","matched":null})");
  EXPECT_EQ(engine.last_request().sampling.max_tokens, 128);
  const Json stop = generate({{"input_ids", {104, 105}}, {"sampling_params", {{"stop", "i"}}}}).json();
  EXPECT_EQ(stop["text"], "h");
  EXPECT_EQ(stop["meta_info"]["finish_reason"]["matched"], "i");
  const Json token = generate({{"text", "hi"}, {"sampling_params", {{"stop_token_ids", {105}}}}}).json();
  EXPECT_EQ(token["meta_info"]["finish_reason"]["matched"], 105);
}

TEST_F(Sglang, ListsAndChoices) {
  const Json two = generate({{"text", {"ab", "cd"}},
                             {"rid", {"x", "y"}},
                             {"sampling_params", {{{"max_new_tokens", 2}}, {{"max_new_tokens", 3}}}}})
                       .json();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0]["text"], "a");
  EXPECT_EQ(two[1]["text"], "cd");
  EXPECT_EQ(two[1]["meta_info"]["id"], "y");
  EXPECT_EQ(generate({{"text", {"ab"}}}).json().size(), 1u) << "a list is answered by a list";
  const Json ids = generate({{"input_ids", {{97}, {98, 99}}}}).json();
  EXPECT_EQ(ids[1]["text"], "bc");
  const Json choices = generate({{"text", {"a", "b"}}, {"sampling_params", {{"n", 2}}}}).json();
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[1]["text"], "a");
  EXPECT_EQ(choices[2]["text"], "b");
  EXPECT_EQ(generate({{"text", "a"}, {"sampling_params", {{"n", 2}}}}).json().size(), 2u);
}

TEST_F(Sglang, LogProbabilities) {
  const Json body = {
      {"text", "hi"},          {"return_logprob", true},          {"logprob_start_len", 1},
      {"top_logprobs_num", 2}, {"return_text_in_logprobs", true}, {"sampling_params", {{"max_new_tokens", 2}}}};
  const Json meta = generate(body).json()["meta_info"];
  EXPECT_EQ(dump_json(meta["input_token_logprobs"]), R"([[null,104,"h"],[-0.5,105,"i"]])");
  EXPECT_EQ(dump_json(meta["input_top_logprobs"]), R"([null,[[-0.5,105,"i"],[-1.5,106,"j"]]])");
  EXPECT_EQ(dump_json(meta["output_token_logprobs"]), R"([[-0.5,257,"<bos>"],[-0.5,104,"h"]])");
  EXPECT_EQ(meta["output_top_logprobs"].size(), 2u);
  const Json plain = generate({{"text", "hi"}, {"return_logprob", true}}).json()["meta_info"];
  EXPECT_EQ(plain["input_token_logprobs"], Json::array());
  EXPECT_EQ(dump_json(plain["output_token_logprobs"][1]), "[-0.5,104,null]");
  EXPECT_FALSE(plain.contains("output_top_logprobs"));
  const Json mixed = generate({{"text", {"a", "b"}}, {"return_logprob", {true, false}}}).json();
  EXPECT_TRUE(mixed[0]["meta_info"].contains("output_token_logprobs"));
  EXPECT_FALSE(mixed[1]["meta_info"].contains("output_token_logprobs"));
}

// Clients score a prompt by asking for no token.
TEST_F(Sglang, ScoresWithoutAnAnswer) {
  const Json answer = generate({{"text", "hi"},
                                {"return_logprob", true},
                                {"logprob_start_len", 0},
                                {"sampling_params", {{"max_new_tokens", 0}}}})
                          .json();
  EXPECT_EQ(answer["text"], "");
  EXPECT_EQ(answer["output_ids"], Json::array());
  EXPECT_EQ(answer["meta_info"]["completion_tokens"], 0);
  EXPECT_EQ(answer["meta_info"]["input_token_logprobs"].size(), 3u);
  EXPECT_EQ(answer["meta_info"]["output_token_logprobs"], Json::array());
}

TEST_F(Sglang, StreamRepeatsTheTextSoFar) {
  const TestResponse response = generate({{"text", "hey"}, {"stream", true}, {"sampling_params", {{"n", 2}}}});
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  std::vector<std::string> data = sse_data(response.body);
  ASSERT_GT(data.size(), 4u);
  EXPECT_EQ(data.back(), "[DONE]");
  data.pop_back();
  std::map<int, std::string> texts;
  for (const std::string& line : data) {
    const Json event = parse_json(line);
    const std::string text = event["text"];
    std::string& before = texts[event["index"].get<int>()];
    EXPECT_TRUE(text.starts_with(before));
    before = text;
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "hey"}, {1, "hey"}}));
  const std::vector<std::string> one = sse_data(generate({{"text", "hey"}, {"stream", true}}).body);
  EXPECT_TRUE(parse_json(one.front())["meta_info"]["finish_reason"].is_null());
  EXPECT_EQ(parse_json(one[one.size() - 2])["meta_info"]["finish_reason"]["type"], "stop");
}

TEST_F(Sglang, SettingsReachTheEngine) {
  engine.info().default_sampling.temperature = 0.7;
  generate({{"text", "hi"},
            {"sampling_params",
             {{"top_k", 3},
              {"min_p", 0.1},
              {"frequency_penalty", 0.5},
              {"sampling_seed", 4},
              {"ignore_eos", true},
              {"no_stop_trim", true},
              {"logit_bias", {{"5", -3}}},
              {"min_new_tokens", 2},
              {"regex", "a+"},
              {"max_new_tokens", 9}}}});
  const Request request = engine.last_request();
  EXPECT_EQ(request.sampling.temperature, 0.7);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.frequency_penalty, 0.5);
  EXPECT_EQ(request.sampling.seed, 4);
  EXPECT_EQ(request.sampling.min_tokens, 2);
  EXPECT_TRUE(request.sampling.ignore_eos && request.sampling.include_stop_str_in_output);
  EXPECT_EQ(request.sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -3.0f}}));
  EXPECT_EQ(request.grammar.value().kind, "regex");
  generate({{"text", "hi"}, {"sampling_params", {{"ebnf", "root ::= \"a\""}}}});
  EXPECT_EQ(engine.last_request().grammar.value().kind, "gbnf");
  generate({{"text", "hi"}, {"sampling_params", {{"json_schema", R"({"type":"object"})"}}}});
  EXPECT_EQ(engine.last_request().grammar.value().kind, "json_schema_strict");
  const TestResponse unknown = generate({{"text", "hi"}, {"sampling_params", {{"new_field", 1}}}});
  EXPECT_EQ(unknown.headers.at("x-sluice-warning"), "unknown fields ignored: sampling_params.new_field");
}

TEST_F(Sglang, Errors) {
  start();
  expect_refused(generate({{"sampling_params", Json::object()}}), 400, "'text'");
  expect_refused(generate({{"text", "a"}, {"input_ids", {1}}}), 400, "'input_ids'");
  expect_refused(generate({{"text", {"a", "b"}}, {"rid", {"x"}}}), 400, "'rid': it has 1 values for 2 prompts");
  expect_refused(generate({{"input_ids", {{1}, {300}}}}), 400, "'input_ids[1][0]'");
  expect_refused(generate({{"input_ids", {{1}, {}}}}), 400, "'input_ids[1]'");
  expect_refused(generate({{"text", "a"}, {"sampling_params", {{"n", 0}}}}), 400, "'n'");
  expect_refused(generate({{"text", "a"}, {"sampling_params", {{"max_new_tokens", 5000}}}}), 400, "context");
  expect_refused(generate({{"text", "a"}, {"sampling_params", {{"stop_regex", "a"}}}}), 400, "'stop_regex'");
  expect_refused(generate({{"text", "a"}, {"sampling_params", {{"regex", "a"}, {"ebnf", "b"}}}}), 400, "one grammar");
  expect_refused(generate({{"text", "a"}, {"sampling_params", 5}}), 400, "'sampling_params'");
  expect_refused(generate({{"text", "a"}, {"return_logprob", 1}}), 400, "'return_logprob'");
  expect_refused(generate({{"text", "a"}, {"return_logprob", true}, {"logprob_start_len", 2}}), 400,
                 "2 is not in the prompt of 2 tokens");
  expect_refused(generate({{"text", "a"}, {"return_logprob", true}, {"logprob_start_len", 0}, {"stream", true}}), 400,
                 "streamed");
  expect_refused(generate({{"text", "a"}, {"top_logprobs_num", 21}}), 400, "'top_logprobs_num'");
  expect_refused(generate({{"text", "a"}, {"image_data", "x"}}), 400, "'image_data'");
  expect_refused(generate({{"text", "a"}, {"lora_path", "x"}}), 400, "'model'");
  expect_refused(generate({{"text", std::vector<std::string>(2048, "a")}, {"sampling_params", {{"n", 2}}}}), 400,
                 "at most 2048 sequences");
  expect_refused(generate({{"text", "a"}, {"model", "other"}}), 404, "`fake`");
  EXPECT_EQ(engine.submitted, 0);
  EXPECT_EQ(post("/generate", R"({"inputs":"hi"})").json(), Json({{"generated_text", "hi"}})) << "TGI's form";
  EXPECT_EQ(post("/generate", "{}").status, 422) << "as TGI";
  engine.fail_at_token = 0;
  expect_refused(generate({{"text", "a"}}), 500, "error");
}

TEST_F(Sglang, ModelAndHealth) {
  const Json info = get("/get_model_info").json();
  EXPECT_EQ(get("/model_info").json(), info);
  EXPECT_EQ(info["is_generation"], true);
  EXPECT_EQ(get("/health_generate").status, 200);
  EXPECT_EQ(engine.last_request().sampling.max_tokens, 1);
  engine.fail_at_token = 0;
  EXPECT_EQ(get("/health_generate").status, 503);
  engine.fail_at_token = -1;
  engine.info().task = Task::kEmbed;
  EXPECT_EQ(get("/health_generate").status, 200);
  EXPECT_EQ(get("/model_info").json()["is_generation"], false);
  expect_refused(get("/get_model_info?model=x"), 404, "`fake`");
}

TEST_F(Sglang, ServerInfo) {
  const Json info = get("/get_server_info").json();
  EXPECT_EQ(info, get("/server_info").json());
  EXPECT_EQ(info["served_model_name"], "fake");
  EXPECT_EQ(info["context_length"], 4096);
  EXPECT_EQ(info["internal_states"][0]["num_running_reqs"], 0);
  EXPECT_EQ(info["vllm_config"]["model_config"]["max_model_len"], 4096);
}

}  // namespace
}  // namespace sluice::sglang_test
