// Answers of the OpenAI API: shapes of both routes, streamed and whole, and the way without HTTP.
#include "server/api.h"
#include "server/server_fixture.h"

namespace sluice::openai_test {
namespace {

using OpenAi = ServerTest;

std::vector<Json> events(const TestResponse& response) {
  std::vector<Json> out;
  for (const std::string& data : sse_data(response.body)) {
    if (data != "[DONE]") out.push_back(parse_json(data));
  }
  return out;
}

TEST_F(OpenAi, ChatCompletion) {
  const TestResponse response = chat();
  ASSERT_EQ(response.status, 200) << response.body;
  const Json body = response.json();
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "fake");
  EXPECT_TRUE(body["created"].is_number_integer());
  EXPECT_TRUE(body["system_fingerprint"].get<std::string>().starts_with("fp_"));
  EXPECT_EQ(dump_json(body["choices"]),
            R"([{"index":0,"message":{"role":"assistant","content":"user:hi|>","refusal":null},"logprobs":null,)"
            R"("finish_reason":"stop","stop_reason":null,"matched_stop":256,"token_ids":null}])");
  EXPECT_EQ(dump_json(body["usage"]), R"({"prompt_tokens":9,"total_tokens":19,"completion_tokens":10,)"
                                      R"("prompt_tokens_details":{"cached_tokens":3}})");
}

TEST_F(OpenAi, ChatStreamEqualsWhole) {
  const TestResponse response =
      chat({{"stream", true}, {"messages", {{{"role", "user"}, {"content", "h\u00fc\u20ac\U0001F600"}}}}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  const std::vector<Json> chunks = events(response);
  EXPECT_EQ(dump_json(chunks.front()["choices"]),
            R"([{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}])");
  EXPECT_EQ(dump_json(chunks.back()["choices"]),
            R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"matched_stop":256}])");
  std::string text;
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_FALSE(chunk.contains("usage"));
    text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "user:h\u00fc\u20ac\U0001F600|>");
}

// Whatever the parser of the engine finds in an answer has its place in the message and in chunks.
TEST_F(OpenAi, ReasoningAndToolCalls) {
  engine.answer_with({ReasoningDelta{"why"}, TextDelta{"a"}, ToolCallBegin{0, "call-1", "f"},
                      ToolCallArguments{0, "{\"x\":"}, ToolCallArguments{0, "1}"}, ToolCallBegin{1, "call-2", "g"},
                      TextDelta{"b"}});
  const Json choice = chat().json()["choices"][0];
  EXPECT_EQ(
      dump_json(choice["message"]),
      R"({"role":"assistant","content":"ab","refusal":null,"reasoning_content":"why","reasoning":"why","tool_calls":[)"
      R"({"id":"call-1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},)"
      R"({"id":"call-2","type":"function","function":{"name":"g","arguments":""}}]})");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  std::string deltas;
  const std::vector<Json> chunks = events(chat({{"stream", true}}));
  for (const Json& chunk : chunks) deltas += dump_json(chunk["choices"][0]["delta"]) + "\n";
  EXPECT_EQ(deltas,
            R"({"role":"assistant","content":""}
{"reasoning":"why","reasoning_content":"why"}
{"content":"a"}
{"tool_calls":[{"index":0,"id":"call-1","type":"function","function":{"name":"f","arguments":""}}]}
{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}}]}
{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}
{"tool_calls":[{"index":1,"id":"call-2","type":"function","function":{"name":"g","arguments":""}}]}
{"content":"b"}
{}
)");
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
  engine.answer_with({ToolCallBegin{0, "call-1", "f"}});
  EXPECT_TRUE(chat().json()["choices"][0]["message"]["content"].is_null());
}

TEST_F(OpenAi, StreamUsage) {
  const auto last = chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  std::vector<Json> chunks = events(last);
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["total_tokens"], 19);
  chunks.pop_back();
  for (const Json& chunk : chunks) EXPECT_TRUE(chunk.at("usage").is_null());

  const auto all =
      chat({{"stream", true}, {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  for (const Json& chunk : events(all)) EXPECT_EQ(chunk.at("usage").at("prompt_tokens"), 9);
  // The first chunk has the role and no token yet.
  EXPECT_EQ(events(all)[0]["usage"]["completion_tokens"], 0);
  EXPECT_EQ(events(all)[0]["usage"]["total_tokens"], 9);
  EXPECT_EQ(events(all)[1]["usage"]["completion_tokens"], 1);

  const auto none =
      chat({{"stream", true}, {"stream_options", {{"include_usage", false}, {"continuous_usage_stats", true}}}});
  for (const Json& chunk : events(none)) EXPECT_FALSE(chunk.contains("usage"));
}

TEST_F(OpenAi, ChatLogprobs) {
  const Json body = chat({{"logprobs", true}, {"top_logprobs", 2}, {"max_tokens", 2}}).json();
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(
      dump_json(body["choices"][0]["logprobs"]),
      R"({"content":[{"token":"u","logprob":-0.5,"bytes":[117],"top_logprobs":[{"token":"u","logprob":-0.5,"bytes":[117]},)"
      R"({"token":"v","logprob":-1.5,"bytes":[118]}]},{"token":"s","logprob":-0.5,"bytes":[115],)"
      R"("top_logprobs":[{"token":"s","logprob":-0.5,"bytes":[115]},{"token":"t","logprob":-1.5,"bytes":[116]}]}],"refusal":null})");
  // Without top_logprobs the list is there and empty; the end token has no entry.
  const Json plain = chat({{"logprobs", true}}).json();
  EXPECT_EQ(plain["choices"][0]["logprobs"]["content"].size(), 9u);
  EXPECT_EQ(plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"], Json::array());
  // A stream has the same entries, those of tokens that complete no character included.
  const auto streamed =
      chat({{"logprobs", true}, {"stream", true}, {"messages", {{{"role", "user"}, {"content", "\u20ac"}}}}});
  size_t entries = 0;
  for (const Json& chunk : events(streamed)) {
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    if (!logprobs.is_null()) entries += logprobs["content"].size();
  }
  EXPECT_EQ(entries, std::string("user:\u20ac|>").size());
}

TEST_F(OpenAi, ChoicesAndUsage) {
  const Json body = chat({{"n", 3}}).json();
  ASSERT_EQ(body["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(body["choices"][static_cast<size_t>(i)]["index"], i);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(body["usage"]["completion_tokens"], 30);
  std::map<int, std::string> texts;
  for (const Json& chunk : events(chat({{"n", 3}, {"stream", true}}))) {
    texts[chunk["choices"][0]["index"].get<int>()] += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "user:hi|>"}, {1, "user:hi|>"}, {2, "user:hi|>"}}));
}

TEST_F(OpenAi, StopReasons) {
  const Json by_string = completion({{"stop", "lo"}}).json()["choices"][0];
  EXPECT_EQ(by_string["text"], "hel");
  EXPECT_EQ(by_string["finish_reason"], "stop");
  EXPECT_EQ(by_string["stop_reason"], "lo");
  EXPECT_EQ(by_string["matched_stop"], "lo");
  const Json by_token = completion({{"stop_token_ids", {'l'}}}).json()["choices"][0];
  EXPECT_EQ(by_token["text"], "he");
  EXPECT_EQ(by_token["stop_reason"], 'l');
  EXPECT_EQ(by_token["matched_stop"], 'l');
  EXPECT_EQ(completion({{"stop", {"lo"}}, {"include_stop_str_in_output", true}}).json()["choices"][0]["text"], "hello");
}

// Evaluation harnesses send more stop strings than OpenAI allows; all prompts and choices share them.
TEST_F(OpenAi, ManyStopStrings) {
  const Json choice = completion({{"stop", {"x", "y", "z", "q", "lo"}}}).json()["choices"][0];
  EXPECT_EQ(choice["text"], "hel");
  EXPECT_EQ(choice["stop_reason"], "lo");
  EXPECT_EQ(completion({{"stop", std::vector<std::string>(1024, "never")}}).status, 200);
  EXPECT_EQ(completion({{"allowed_token_ids", {7, 5, 7, 5}}}).status, 200);
  EXPECT_EQ(engine.last_request().sampling.allowed_token_ids, (std::vector<TokenId>{5, 7}));
}

TEST_F(OpenAi, CompletionPromptForms) {
  EXPECT_EQ(completion().json()["choices"][0]["text"], "hello");
  EXPECT_EQ(completion({{"prompt", {104, 105}}}).json()["choices"][0]["text"], "hi");
  const Json texts = completion({{"prompt", {"ab", "cd"}}, {"n", 2}}).json();
  std::vector<std::string> all;
  for (const Json& choice : texts["choices"]) all.push_back(choice["text"]);
  EXPECT_EQ(all, (std::vector<std::string>{"ab", "ab", "cd", "cd"}));
  EXPECT_EQ(texts["choices"][3]["index"], 3);
  EXPECT_EQ(texts["usage"]["prompt_tokens"], 4);
  const Json tokens = completion({{"prompt", Json::array({Json::array({104, 105}), Json::array({111})})}}).json();
  EXPECT_EQ(tokens["choices"][0]["text"], "hi");
  EXPECT_EQ(tokens["choices"][1]["text"], "o");
  EXPECT_EQ(tokens["object"], "text_completion");
  EXPECT_TRUE(tokens["id"].get<std::string>().starts_with("cmpl-"));
  // max_tokens is 16 unless said otherwise.
  EXPECT_EQ(completion({{"prompt", std::string(50, 'x')}}).json()["choices"][0]["text"], std::string(16, 'x'));
}

TEST_F(OpenAi, CompletionLogprobs) {
  const Json choice = completion({{"prompt", "a\u20ac"}, {"logprobs", 1}, {"max_tokens", 3}}).json()["choices"][0];
  EXPECT_EQ(dump_json(choice["logprobs"]),
            R"({"tokens":["a","bytes:\\xe2","bytes:\\x82"],"token_logprobs":[-0.5,-0.5,-0.5],)"
            R"("top_logprobs":[{"a":-0.5},{"bytes:\\xe2":-0.5},{"bytes:\\x82":-0.5}],"text_offset":[0,1,2]})");
}

TEST_F(OpenAi, EchoScoresThePrompt) {
  for (const bool stream : {false, true}) {
    const TestResponse response = completion(
        {{"prompt", {"ab", "c"}}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 1}, {"n", 2}, {"stream", stream}});
    ASSERT_EQ(response.status, 200) << response.body;
    std::map<int, std::string> text;
    std::map<int, Json> tokens, logprobs, offsets;
    const std::vector<Json> parts = stream ? events(response) : std::vector<Json>{response.json()};
    for (const Json& part : parts) {
      for (const Json& choice : part["choices"]) {
        const int i = choice["index"];
        text[i] += choice["text"].get<std::string>();
        if (choice["logprobs"].is_null()) continue;
        for (const Json& v : choice["logprobs"]["tokens"]) tokens[i].push_back(v);
        for (const Json& v : choice["logprobs"]["token_logprobs"]) logprobs[i].push_back(v);
        for (const Json& v : choice["logprobs"]["text_offset"]) offsets[i].push_back(v);
      }
    }
    for (const int i : {0, 1}) {
      EXPECT_EQ(text[i], "aba") << stream;
      EXPECT_EQ(dump_json(tokens[i]), R"(["a","b","a"])");
      EXPECT_EQ(dump_json(logprobs[i]), "[null,-0.5,-0.5]");
      EXPECT_EQ(dump_json(offsets[i]), "[0,1,2]");
      EXPECT_EQ(text[i + 2], "cc") << stream << response.body;
    }
  }
}

TEST_F(OpenAi, EchoWithoutOutput) {
  const Json body = completion({{"echo", true}, {"logprobs", 0}, {"max_tokens", 0}}).json();
  EXPECT_EQ(body["choices"][0]["text"], "hello");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 5u);
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

TEST_F(OpenAi, TokenIds) {
  const Json whole = chat({{"return_token_ids", true}}).json();
  const std::vector<int> prompt = {'u', 's', 'e', 'r', ':', 'h', 'i', '|', '>'};
  std::vector<int> answer = prompt;
  answer.push_back(FakeEngine::kEos);
  EXPECT_EQ(whole["prompt_token_ids"], Json(prompt));
  EXPECT_EQ(whole["choices"][0]["token_ids"], Json(answer));
  EXPECT_TRUE(chat().json().at("prompt_token_ids").is_null());
  EXPECT_TRUE(chat().json()["choices"][0].at("token_ids").is_null());
  const Json plain = completion(Json::object()).json()["choices"][0];
  EXPECT_TRUE(plain.at("prompt_token_ids").is_null());
  EXPECT_TRUE(plain.at("token_ids").is_null());

  const std::vector<Json> chunks = events(chat({{"return_token_ids", true}, {"stream", true}}));
  Json streamed = Json::array();
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i].contains("prompt_token_ids"), i == 0);
    const Json& choice = chunks[i]["choices"][0];
    if (choice.contains("token_ids"))
      streamed.insert(streamed.end(), choice["token_ids"].begin(), choice["token_ids"].end());
  }
  EXPECT_EQ(chunks[0]["prompt_token_ids"], Json(prompt));
  EXPECT_EQ(streamed, Json(answer));

  for (const bool stream : {false, true}) {
    const TestResponse response = completion(
        {{"prompt", {"ab", "c\u20ac"}}, {"return_token_ids", true}, {"n", 2}, {"max_tokens", 3}, {"stream", stream}});
    std::map<int, Json> prompts, tokens;
    for (const Json& part : stream ? events(response) : std::vector<Json>{response.json()}) {
      for (const Json& choice : part["choices"]) {
        const int i = choice["index"];
        if (choice.contains("prompt_token_ids")) prompts[i].push_back(choice["prompt_token_ids"]);
        for (const Json& id : choice.value("token_ids", Json::array())) tokens[i].push_back(id);
      }
    }
    for (const int i : {0, 1}) {
      EXPECT_EQ(dump_json(prompts[i]), "[[97,98]]") << stream;  // once
      EXPECT_EQ(dump_json(tokens[i]), fmt::format("[97,98,{}]", FakeEngine::kEos)) << stream;
      EXPECT_EQ(dump_json(prompts[i + 2]), "[[99,226,130,172]]") << stream;
      EXPECT_EQ(dump_json(tokens[i + 2]), "[99,226,130]") << stream;  // the last two are no character yet
    }
  }
}

TEST_F(OpenAi, TokensNamedByTheirIds) {
  const Json body =
      chat({{"logprobs", true}, {"top_logprobs", 1}, {"max_tokens", 1}, {"return_tokens_as_token_ids", true}}).json();
  const Json& token = body["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "token_id:117");
  EXPECT_EQ(token["top_logprobs"][0]["token"], "token_id:117");
  const Json text = completion({{"logprobs", 1}, {"max_tokens", 1}, {"return_tokens_as_token_ids", true}}).json();
  EXPECT_EQ(dump_json(text["choices"][0]["logprobs"]["tokens"]), R"(["token_id:104"])");
  EXPECT_EQ(dump_json(text["choices"][0]["logprobs"]["top_logprobs"]), R"([{"token_id:104":-0.5}])");
}

TEST_F(OpenAi, PromptsAreTruncated) {
  const auto text = [&](const Json& fields) { return completion(fields).json()["choices"][0]["text"]; };
  EXPECT_EQ(text({{"prompt", "hello"}, {"truncate_prompt_tokens", 2}}), "lo");
  EXPECT_EQ(text({{"prompt", "hello"}, {"truncate_prompt_tokens", 2}, {"truncation_side", "right"}}), "he");
  EXPECT_EQ(text({{"prompt", "hello"}, {"truncate_prompt_tokens", 2}, {"truncation_side", "left"}}), "lo");
  EXPECT_EQ(text({{"prompt", "hello"}, {"truncate_prompt_tokens", 9}}), "hello");
  EXPECT_EQ(text({{"prompt", "hello"}, {"truncate_prompt_tokens", 2}, {"echo", true}}), "lolo");
  const int context = engine.info().max_model_len;
  const std::string prompt = std::string(static_cast<size_t>(context), 'a') + "bc";
  EXPECT_EQ(completion({{"prompt", prompt}}).status, 400);
  const Json fitted = completion({{"prompt", prompt}, {"truncate_prompt_tokens", -1}, {"max_tokens", 8}}).json();
  EXPECT_EQ(fitted["usage"]["prompt_tokens"], context - 8);
  EXPECT_EQ(chat({{"truncate_prompt_tokens", 3}}).json()["choices"][0]["message"]["content"], "i|>");
  const TestResponse zero = completion({{"truncate_prompt_tokens", 0}});
  EXPECT_EQ(zero.status, 400);
  EXPECT_EQ(zero.json()["error"]["param"], "truncate_prompt_tokens");
}

TEST_F(OpenAi, TheLengthHasLlamaCppsNameToo) {
  const auto text = [&](int length) {
    return completion({{"prompt", std::string(40, 'a')}, {"n_predict", length}}).json()["choices"][0]["text"];
  };
  EXPECT_EQ(text(5), "aaaaa");
  EXPECT_EQ(text(-1), std::string(40, 'a')) << "not the 16 tokens of OpenAI's default";
  EXPECT_EQ(chat({{"n_predict", 3}}).json()["usage"]["completion_tokens"], 3);
  chat({{"n_predict", -1}});
  EXPECT_TRUE(engine.last_request().max_tokens_is_default);
}

TEST_F(OpenAi, GoesOnWithTheLastMessage) {
  const Json messages = {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "I"}}};
  const Json continued = {{"messages", messages}, {"continue_final_message", true}};
  const auto with = [&](const Json& more) {
    Json fields = continued;
    fields.update(more);
    return chat(fields);
  };
  EXPECT_EQ(with(Json::object()).json()["choices"][0]["message"]["content"], "user:hi|assistant:I");
  EXPECT_EQ(with({{"add_generation_prompt", false}, {"echo", true}}).json()["choices"][0]["message"]["content"],
            "Iuser:hi|assistant:I");
  std::string streamed;
  for (const Json& chunk : events(with({{"echo", true}, {"stream", true}}))) {
    streamed += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, "Iuser:hi|assistant:I");
  EXPECT_EQ(chat({{"messages", messages}, {"echo", true}}).json()["choices"][0]["message"]["content"],
            "user:hi|assistant:I|>");
}

// Templates know more roles than OpenAI's API.
TEST_F(OpenAi, RolesOfTheTemplate) {
  const Json messages = {{{"role", "ipython"}, {"content", "1"}}, {{"role", "user"}, {"content", "hi"}}};
  EXPECT_EQ(chat({{"messages", messages}}).json()["choices"][0]["message"]["content"], "ipython:1|user:hi|>");
  for (const std::string& role : {std::string(), std::string(65, 'x')}) {
    const TestResponse refused = chat({{"messages", {{{"role", role}, {"content", "1"}}}}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.json()["error"]["param"], "messages[0].role");
  }
}

TEST_F(OpenAi, WholeDecimalsAreIntegers) {
  EXPECT_EQ(completion({{"max_tokens", 2.0}, {"seed", 1.0}}).json()["choices"][0]["text"], "he");
  for (const Json& wrong : {Json(2.5), Json(1e300), Json(9007199254740994.0), Json("2")}) {
    const TestResponse refused = completion({{"max_tokens", wrong}});
    EXPECT_EQ(refused.status, 400) << wrong;
    EXPECT_EQ(refused.json()["error"]["param"], "max_tokens");
  }
}

TEST_F(OpenAi, ASlashAtTheEndOfAPathIsIgnored) {
  EXPECT_EQ(get("/v1/models/").status, 200);
  EXPECT_EQ(get("/health//").status, 404);
  EXPECT_EQ(get("/nothing/").status, 404);
}

TEST_F(OpenAi, PromptLogprobs) {
  const Json body = completion({{"prompt", "ab"}, {"prompt_logprobs", 1}}).json();
  EXPECT_EQ(dump_json(body["choices"][0]["prompt_logprobs"]),
            R"([null,{"98":{"logprob":-0.5,"rank":1,"decoded_token":"b"}}])");
  EXPECT_EQ(chat({{"prompt_logprobs", 0}}).json()["prompt_logprobs"].size(), 9u);
}

TEST_F(OpenAi, ParametersReachTheEngine) {
  engine.info().default_sampling.temperature = 0.6;
  engine.info().default_sampling.top_k = 20;
  chat();
  EXPECT_EQ(engine.last_request().sampling.temperature, 0.6);
  EXPECT_EQ(engine.last_request().sampling.top_k, 20);
  EXPECT_FALSE(engine.last_request().sampling.max_tokens);
  EXPECT_FALSE(engine.last_request().deadline);
  EXPECT_EQ(engine.last_request().cache_salt, "");
  EXPECT_EQ(engine.last_request().prompt_param, "messages");
  const TestResponse response = chat({{"temperature", 0},
                                      {"top_k", -1},
                                      {"top_p", 0.5},
                                      {"min_p", 0.1},
                                      {"repetition_penalty", 1.1},
                                      {"presence_penalty", 1},
                                      {"frequency_penalty", -1},
                                      {"logit_bias", {{"5", -100}, {"7", 1.5}}},
                                      {"seed", -3},
                                      {"stop", {"a", "b"}},
                                      {"stop_token_ids", {1, 2}},
                                      {"include_stop_str_in_output", true},
                                      {"min_tokens", 2},
                                      {"ignore_eos", true},
                                      {"max_completion_tokens", 7},
                                      {"skip_special_tokens", false},
                                      {"allowed_token_ids", {3}},
                                      {"priority", -4},
                                      {"cache_salt", "s"},
                                      {"session_id", "conversation"},
                                      {"session_ttl", 30},
                                      {"n", 2}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Request r = engine.last_request();
  const SamplingParams& s = r.sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_k, -1);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -100.0f}, {7, 1.5f}}));
  EXPECT_EQ(s.seed, -3);
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_TRUE(s.include_stop_str_in_output);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.max_tokens, 7);
  EXPECT_FALSE(s.skip_special_tokens);
  EXPECT_EQ(s.allowed_token_ids, std::vector<TokenId>{3});
  EXPECT_EQ(r.priority, -4);
  EXPECT_EQ(r.n, 2);
  EXPECT_EQ(r.cache_salt.size(), 64u);
  EXPECT_EQ(r.session, "conversation");
  EXPECT_EQ(r.session_ttl, std::chrono::seconds(30));
}

TEST_F(OpenAi, SessionsEnd) {
  expect_error(chat({{"session_ttl", 30}}), 400, "session_ttl", "invalid_value");
  const TestResponse ended = send(get_text("/v1/sessions/agent%2017", "", "DELETE"));
  EXPECT_EQ(ended.status, 200);
  EXPECT_EQ(ended.body, R"({"id":"agent 17","object":"session.deleted","deleted":true})");
  EXPECT_EQ(engine.ended_sessions, std::vector<std::string>{"agent 17"});
  EXPECT_EQ(get("/v1/sessions/agent").status, 405);
}

TEST_F(OpenAi, SessionsArePrefetched) {
  const TestResponse begun = send(get_text("/v1/sessions/agent%2017/prefetch", "", "POST"));
  EXPECT_EQ(begun.status, 200) << begun.body;
  EXPECT_EQ(begun.body, R"({"id":"agent 17","object":"session.prefetch"})");
  EXPECT_EQ(engine.prefetched_sessions, std::vector<std::string>{"agent 17"});
  EXPECT_EQ(send(get_text("/v1/sessions/agent", "", "POST")).status, 404);
}

TEST_F(OpenAi, BeamSearch) {
  chat({{"n", 3}, {"use_beam_search", true}});
  ASSERT_TRUE(engine.last_request().beams);
  EXPECT_EQ(engine.last_request().beams->width, 3) << "vLLM has as many beams as choices";
  EXPECT_EQ(engine.last_request().beams->length_penalty, 1);
  EXPECT_EQ(engine.last_request().beams->early_stopping, EarlyStopping::kNo);
  completion({{"prompt", "a"}, {"num_beams", 5}, {"length_penalty", -0.5}, {"early_stopping", "never"}});
  ASSERT_TRUE(engine.last_request().beams);
  EXPECT_EQ(engine.last_request().beams->width, 5);
  EXPECT_EQ(engine.last_request().n, 1);
  EXPECT_EQ(engine.last_request().beams->length_penalty, -0.5);
  EXPECT_EQ(engine.last_request().beams->early_stopping, EarlyStopping::kNever);
  chat({{"num_beams", 2}, {"early_stopping", true}});
  EXPECT_EQ(engine.last_request().beams->early_stopping, EarlyStopping::kYes);
  EXPECT_EQ(engine.last_request().beams->groups, 1);
  EXPECT_EQ(engine.last_request().beams->diversity_penalty, 0);
  chat({{"num_beams", 6}, {"num_beam_groups", 3}, {"diversity_penalty", 0.5}});
  EXPECT_EQ(engine.last_request().beams->groups, 3);
  EXPECT_EQ(engine.last_request().beams->diversity_penalty, 0.5);
  chat({{"num_beams", 1}, {"use_beam_search", false}, {"length_penalty", 1}, {"early_stopping", false}});
  EXPECT_FALSE(engine.last_request().beams);
}

// max_tokens may then go beyond the context. A default gives way to it.
TEST_F(OpenAi, ContextShift) {
  const int context = engine.model().max_model_len;
  expect_error(completion({{"prompt", "a"}, {"max_tokens", context + 1}}), 400, "max_tokens",
               "context_length_exceeded");
  completion({{"prompt", "a"}, {"max_tokens", context + 1}, {"context_shift", true}, {"n_keep", 2}});
  EXPECT_EQ(engine.last_request().context_shift, true);
  EXPECT_EQ(engine.last_request().context_keep, 2);
  engine.info().context_shift = true;
  completion({{"prompt", "a"}, {"max_tokens", context + 1}});
  EXPECT_EQ(engine.last_request().context_shift, true);
  EXPECT_EQ(engine.last_request().context_keep, std::nullopt);
  EXPECT_EQ(engine.last_request().sampling.max_tokens, context + 1);
  expect_error(completion({{"prompt", "a"}, {"max_tokens", context + 1}, {"context_shift", false}}), 400, "max_tokens",
               "context_length_exceeded");
  expect_error(completion({{"prompt", "a"}, {"max_tokens", context + 1}, {"num_beams", 2}}), 400, "max_tokens",
               "context_length_exceeded");
  expect_error(completion({{"prompt", std::string(context, 'a')}, {"max_tokens", 1}}), 400, "prompt",
               "context_length_exceeded");
  completion({{"prompt", std::string(context, 'a')}, {"max_tokens", context + 1}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(static_cast<int>(engine.last_request().prompt.size()), context - 1);
}

TEST_F(OpenAi, DefaultLengthsGiveWayToTheContext) {
  engine.info().default_sampling.max_tokens = 1000;
  EXPECT_EQ(chat({{"messages", {{{"role", "user"}, {"content", std::string(4000, 'a')}}}}}).status, 200);
  EXPECT_EQ(engine.last_request().sampling.max_tokens, 4096 - 4007);
  EXPECT_EQ(chat().status, 200);
  EXPECT_EQ(engine.last_request().sampling.max_tokens, 1000);
  EXPECT_EQ(completion({{"prompt", std::string(4090, 'a')}}).json()["usage"]["completion_tokens"], 6);
}

TEST_F(OpenAi, MessagesBecomeTheTemplates) {
  const auto render = [this](const Json& messages, const Json& more = Json::object()) {
    return chat([&] {
             Json body = {{"messages", messages}};
             body.update(more);
             return body;
           }())
        .json()["choices"][0]["message"]["content"]
        .get<std::string>();
  };
  EXPECT_EQ(
      render({{{"role", "developer"}, {"content", "d"}},
              {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}}),
      "system:d|user:ab|>");
  const Json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{\"x\": 1}"}}}};
  EXPECT_EQ(render({{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                    {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "7"}}}),
            R"(assistant:|[{"id":"c","type":"function","function":{"name":"f","arguments":{"x":1}}}]tool:7|>)");
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const Json hi = {{{"role", "user"}, {"content", "q"}}};
  EXPECT_EQ(render(hi, {{"tools", tools}}), R"(user:q|[{"type":"function","function":{"name":"f"}}]>)");
  EXPECT_EQ(render(hi, {{"tools", tools}, {"tool_choice", "none"}}), "user:q|>");
  EXPECT_EQ(render(hi, {{"chat_template_kwargs", {{"enable_thinking", false}}}}),
            R"(user:q|{"enable_thinking":false}>)");
  EXPECT_EQ(render(hi, {{"add_generation_prompt", false}}), "user:q|");
}

TEST_F(OpenAi, Tokenize) {
  EXPECT_EQ(post("/tokenize", R"({"prompt":"ab"})").body,
            R"({"count":3,"max_model_len":4096,"tokens":[257,97,98],"token_strs":null})");
  EXPECT_EQ(
      post("/tokenize", R"({"model":"fake","prompt":"a","add_special_tokens":false,"return_token_strs":true})").body,
      R"({"count":1,"max_model_len":4096,"tokens":[97],"token_strs":["<61>"]})");
  EXPECT_EQ(post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").json()["count"], 8);
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  Json asked = {{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})}, {"tools", Json::array({tool})}};
  EXPECT_GT(post("/tokenize", dump_json(asked)).json()["count"], 8);
  asked["tool_choice"] = "none";
  EXPECT_EQ(post("/tokenize", dump_json(asked)).json()["count"], 8);
  EXPECT_EQ(post("/tokenize", R"({"prompt":["ab",""],"add_special_tokens":false,"return_token_strs":true})").body,
            R"({"count":[2,0],"max_model_len":4096,"tokens":[[97,98],[]],"token_strs":[["<61>","<62>"],[]]})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[104,105]})").body, R"({"prompt":"hi","content":"hi","text":"hi"})");
  EXPECT_EQ(post("/v1/detokenize", R"({"tokens":[104,105]})").status, 200);
}

TEST_F(OpenAi, Models) {
  options.served_model_name = {"org/one", "two"};
  const Json list = get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "org/one");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(get("/v1/models/org/one").json()["id"], "org/one");
  EXPECT_EQ(get("/v1/models/org%2Fone").json()["id"], "org/one");
  expect_error(get("/v1/models/fake"), 404, "", "model_not_found");
  EXPECT_EQ(completion({{"model", "two"}}).json()["model"], "two");
}

TEST_F(OpenAi, FaultsBecomeErrors) {
  engine.fail_at_token = 0;
  expect_error(chat(), 500, "", "", "server_error");
  expect_error(chat({{"stream", true}}), 500, "", "", "server_error");
  engine.fail_at_token = 2;
  expect_error(chat(), 500, "", "", "server_error");
  const TestResponse streamed = chat({{"stream", true}});
  EXPECT_EQ(streamed.status, 200);
  const auto data = sse_data(streamed.body);
  ASSERT_FALSE(data.empty());
  EXPECT_EQ(parse_json(data.back())["error"]["type"], "server_error");
  EXPECT_EQ(streamed.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(streamed.body.find("0x7f00"), std::string::npos);
  engine.fail_at_token = -1;
  engine.throw_in_tokenize = true;
  const TestResponse thrown = chat();
  expect_error(thrown, 500, "", "", "server_error");
  EXPECT_EQ(thrown.body.find("/home"), std::string::npos);
}

TEST_F(OpenAi, WithoutHttp) {
  server::Api api(server::Models::single(engine, {"m"}), {});
  const Json messages = {{{"role", "user"}, {"content", "hi"}}};
  const server::ApiResult good = api.complete("/v1/chat/completions", {{"model", "m"}, {"messages", messages}});
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.body["choices"][0]["message"]["content"], "user:hi|>");
  EXPECT_EQ(api.complete("/v1/completions", {{"model", "x"}, {"prompt", "a"}}).status, 404);
  EXPECT_EQ(api.complete("/v1/nothing", {{"model", "m"}}).body["error"]["code"], "unknown_url");
  EXPECT_EQ(api.complete("/v1/completions", Json::array()).status, 400);
  EXPECT_EQ(api.complete("/v1/completions", {{"model", "m"}, {"prompt", "a"}, {"stream", true}}).body["error"]["param"],
            "stream");
  std::atomic<int> done{0};
  for (int i = 0; i < 50; ++i) {
    api.complete("/v1/completions", {{"model", "m"}, {"prompt", {"ab", "cd"}}},
                 [&](server::ApiResult r) { done += r.status; });
  }
  EXPECT_TRUE(eventually([&] { return done == 50 * 200; }));
}

}  // namespace
}  // namespace sluice::openai_test
