// Every wrong request has one exact answer: status, type, param and code, over real HTTP; the server lives on after
// each.
#include "server/server_fixture.h"

namespace sluice::bad_requests_test {
namespace {

struct Row {
  std::string body;
  std::string param;  // "" for null
  std::string code;
  int status = 400;
};

class BadRequests : public ServerTest {
 protected:
  void expect_rows(std::string_view path, const std::vector<Row>& rows) {
    start();
    TestClient client(port);
    for (const Row& row : rows) {
      SCOPED_TRACE(std::string(path) + " " + row.body.substr(0, 300));
      client.send(post_text(path, row.body));
      expect_error(client.read_response(), row.status, row.param, row.code);
    }
    EXPECT_EQ(engine.submitted, 0);
    client.send(get_text("/health"));
    EXPECT_EQ(client.read_response().status, 200);
  }

  static std::string repeated(std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  }
  static std::string chat_body(std::string_view more) {
    return R"({"model":"fake","messages":[{"role":"user","content":"hi"}],)" + std::string(more) + "}";
  }
  static std::string completion_body(std::string_view more) {
    return R"({"model":"fake","prompt":"hi",)" + std::string(more) + "}";
  }
  static std::string messages_body(std::string_view messages) {
    return R"({"model":"fake","messages":)" + std::string(messages) + "}";
  }
  static std::string prompt_body(std::string_view prompt) {
    return R"({"model":"fake","prompt":)" + std::string(prompt) + "}";
  }
};

TEST_F(BadRequests, NotJson) {
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  expect_rows("/v1/chat/completions", {{"", "", ""},
                                       {"{", "", ""},
                                       {"[]", "", ""},
                                       {"\"x\"", "", ""},
                                       {"null", "", ""},
                                       {"5", "", ""},
                                       {"{\"a\":NaN}", "", ""},
                                       {"{\"a\":1e400}", "", ""},
                                       {"{\"a\":\"\xff\"}", "", ""},
                                       {"{\"a\":\"\\ud800\"}", "", ""},
                                       {"{\"a\":1} x", "", ""},
                                       {"{'a':1}", "", ""},
                                       {"{\"a\":1,}", "", ""},
                                       {"{\"model\":\"fake\",\"model\":\"fake\"}", "", ""},
                                       {"\xef\xbb\xbf[]", "", ""},
                                       {deep, "", ""},
                                       {"{\"a\":" + deep + "}", "", ""},
                                       {std::string(1'000'000, '['), "", ""},
                                       {std::string(100'000, '{'), "", ""}});
}

TEST_F(BadRequests, Chat) {
  expect_rows(
      "/v1/chat/completions",
      {{R"({})", "messages", "missing_required_parameter"},
       {R"({"model":"fake"})", "messages", "missing_required_parameter"},
       {R"({"model":"other","messages":[{"role":"user","content":"hi"}]})", "", "model_not_found", 404},
       {R"({"model":5,"messages":[]})", "model", "invalid_type"},
       {messages_body("[]"), "messages", "empty_array"},
       {messages_body("\"hi\""), "messages", "invalid_type"},
       {messages_body("[5]"), "messages[0]", "invalid_type"},
       {messages_body("[{}]"), "messages[0].role", "missing_required_parameter"},
       {messages_body(R"([{"role":"user"}])"), "messages[0].content", "missing_required_parameter"},
       {messages_body(R"([{"role":"","content":"x"}])"), "messages[0].role", "invalid_value"},
       {messages_body(R"([{"role":"bot"}])"), "messages[0].content", "missing_required_parameter"},
       {messages_body(R"([{"role":5,"content":"x"}])"), "messages[0].role", "invalid_type"},
       {messages_body(R"([{"role":"user","content":5}])"), "messages[0].content", "invalid_type"},
       {messages_body(R"([{"role":"user","content":[]}])"), "messages[0].content", "empty_array"},
       {messages_body(R"([{"role":"user","content":"a"},{"role":"user","content":"a"},
                  {"role":"user","content":[{}]}])"),
        "messages[2].content[0].type", "missing_required_parameter"},
       {messages_body(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text",
        "missing_required_parameter"},
       {messages_body(R"([{"role":"user","content":[{"type":"text","text":5}]}])"), "messages[0].content[0].text",
        "invalid_type"},
       {messages_body(R"([{"role":"user","content":[{"type":"poem","text":"x"}]}])"), "messages[0].content[0].type",
        "invalid_value"},
       {messages_body(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}])"),
        "messages[0].content[0]", "unsupported_parameter"},
       {messages_body(R"([{"role":"user","content":"x","name":5}])"), "messages[0].name", "invalid_type"},
       {messages_body(R"([{"role":"tool","content":"x"}])"), "messages[0].tool_call_id", "missing_required_parameter"},
       {messages_body(R"([{"role":"assistant"}])"), "messages[0].content", "missing_required_parameter"},
       {messages_body(R"([{"role":"assistant","tool_calls":[{"id":"a","type":"function"}]}])"),
        "messages[0].tool_calls[0].function", "missing_required_parameter"},
       {messages_body(R"([{"role":"assistant","tool_calls":[{"id":"a","type":"function",
                  "function":{"name":"f","arguments":{"a":1}}}]}])"),
        "messages[0].tool_calls[0].function.arguments", "invalid_type"},
       {messages_body(R"([{"role":"assistant","tool_calls":[{"id":"a","type":"function",
                  "function":{"name":"f","arguments":"{"}}]}])"),
        "messages[0].tool_calls[0].function.arguments", "invalid_value"},
       {messages_body(R"([{"role":"user","content":"raise"}])"), "messages", ""},
       {chat_body(R"("best_of":2)"), "best_of", "unsupported_parameter"},
       {chat_body(R"("logprob_token_ids":[42])"), "logprob_token_ids", "unsupported_parameter"},
       {chat_body(R"("truncation_side":"middle")"), "truncation_side", "invalid_value"},
       {chat_body(R"("n_predict":0)"), "n_predict", "invalid_value"},
       {chat_body(R"("n_predict":-2)"), "n_predict", "integer_below_min_value"},
       {chat_body(R"("n_predict":5,"max_tokens":5)"), "n_predict", "invalid_parameter_combination"},
       {chat_body(R"("n_predict":5,"max_completion_tokens":5)"), "n_predict", "invalid_parameter_combination"},
       {chat_body(R"("tools":[{"type":"function"}])"), "tools[0].function", "missing_required_parameter"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":""}}])"), "tools[0].function.name",
        "invalid_value"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])"),
        "tools[0].function.parameters", "invalid_type"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":"f","strict":1}}])"), "tools[0].function.strict",
        "invalid_type"},
       {chat_body(R"("tools":[{"type":"retrieval"}])"), "tools[0].type", "invalid_value"},
       {chat_body("\"tools\":[" +
                  [] {
                    std::string items;
                    for (int i = 0; i < 129; ++i) items += "{},";
                    return items + "{}";
                  }() +
                  "]"),
        "tools", "array_above_max_length"},
       {chat_body(R"("tools":[],"tool_choice":"required")"), "tool_choice", "invalid_value"},
       {chat_body(R"("tools":[],"tool_choice":{"type":"function","function":{"name":"f"}})"), "tool_choice",
        "invalid_value"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")"), "tool_choice",
        "unsupported_parameter"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])"), "tools",
        "unsupported_parameter"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false)"),
        "parallel_tool_calls", "unsupported_parameter"},
       {chat_body(R"("parallel_tool_calls":false)"), "parallel_tool_calls", "invalid_value"},
       {chat_body(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function",
                   "function":{"name":"g"}})"),
        "tool_choice.function.name", "invalid_value"},
       {chat_body(R"("tools":[],"tool_choice":"any")"), "tool_choice", "invalid_value"},
       {chat_body(R"("tool_choice":"auto")"), "tool_choice", "invalid_value"},
       {chat_body(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema",
        "missing_required_parameter"},
       {chat_body(R"("response_format":{"type":"json_schema","json_schema":{}})"), "response_format.json_schema.schema",
        "missing_required_parameter"},
       {chat_body(R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":1}})"),
        "response_format.json_schema.strict", "invalid_type"},
       {chat_body(R"("response_format":{"type":"object"})"), "response_format.type", "invalid_value"},
       {chat_body(R"("response_format":{})"), "response_format.type", "missing_required_parameter"},
       {chat_body(R"("response_format":"text")"), "response_format", "invalid_type"},
       {chat_body(R"("logprobs":1)"), "logprobs", "invalid_type"},
       {chat_body(R"("top_logprobs":21,"logprobs":true)"), "top_logprobs", "integer_above_max_value"},
       {chat_body(R"("top_logprobs":2)"), "top_logprobs", "invalid_value"},
       {chat_body(R"("max_completion_tokens":0)"), "max_completion_tokens", "integer_below_min_value"},
       {chat_body(R"("max_tokens":5,"max_completion_tokens":5)"), "max_tokens", "invalid_parameter_combination"},
       {chat_body(R"("chat_template":"{{ 1 }}")"), "chat_template", "unsupported_parameter"},
       {chat_body(R"("chat_template_kwargs":{"chat_template":"x"})"), "chat_template_kwargs.chat_template",
        "unsupported_parameter"},
       {chat_body(R"("chat_template_kwargs":{"a":[{"chat_template":"x"}]})"), "chat_template_kwargs.a[0].chat_template",
        "unsupported_parameter"},
       {chat_body(R"("chat_template_kwargs":{"tokenize":true})"), "chat_template_kwargs.tokenize",
        "unsupported_parameter"},
       {chat_body(R"("chat_template_kwargs":{"add_generation_prompt":true})"),
        "chat_template_kwargs.add_generation_prompt", "unsupported_parameter"},
       {chat_body(R"("max_tokens":4096)"), "max_tokens", "context_length_exceeded"},
       {messages_body("[{\"role\":\"user\",\"content\":\"" + std::string(4100, 'a') + "\"}]"), "messages",
        "context_length_exceeded"},
       {messages_body("[{\"role\":\"user\",\"content\":\"" + std::string(100000, 'a') + "\"}]"), "messages",
        "context_length_exceeded"}});
}

TEST_F(BadRequests, Completions) {
  expect_rows("/v1/completions",
              {{R"({"model":"fake"})", "prompt", "missing_required_parameter"},
               {prompt_body("5"), "prompt", "invalid_type"},
               {prompt_body("{}"), "prompt", "invalid_type"},
               {prompt_body("[]"), "prompt", "empty_array"},
               {prompt_body("[\"a\",5]"), "prompt[1]", "invalid_type"},
               {prompt_body("[[1],[]]"), "prompt[1]", "empty_array"},
               {prompt_body("[[1],2]"), "prompt[1]", "invalid_type"},
               {prompt_body("[null]"), "prompt[0]", "invalid_type"},
               {prompt_body("[1,300]"), "prompt[1]", "invalid_value"},
               {prompt_body("[1,-1]"), "prompt[1]", "invalid_value"},
               {prompt_body("[1,2147483648]"), "prompt[1]", "invalid_value"},
               {prompt_body("[1,18446744073709551615]"), "prompt[1]", "invalid_value"},
               {prompt_body("[1,1.5]"), "prompt[1]", "invalid_type"},
               {prompt_body("[1,\"a\"]"), "prompt[1]", "invalid_type"},
               {prompt_body("[[1],[2,300]]"), "prompt[1][1]", "invalid_value"},
               {R"({"model":"fake","prompt":"","add_special_tokens":false})", "prompt", "invalid_value"},
               {completion_body(R"("max_tokens":0)"), "max_tokens", "integer_below_min_value"},
               {completion_body(R"("max_tokens":4096)"), "max_tokens", "context_length_exceeded"},
               {completion_body(R"("logprobs":true)"), "logprobs", "invalid_type"},
               {completion_body(R"("logprobs":21)"), "logprobs", "integer_above_max_value"},
               {completion_body(R"("logprobs":-1)"), "logprobs", "integer_below_min_value"},
               {completion_body(R"("suffix":"x")"), "suffix", "unsupported_parameter"},
               {completion_body(R"("best_of":1,"n":2)"), "best_of", "invalid_value"},
               {completion_body(R"("best_of":2,"stream":true)"), "best_of", "invalid_value"},
               {completion_body(R"("prompt_logprobs":1,"stream":true)"), "prompt_logprobs", "invalid_value"},
               {completion_body(R"("prompt_embeds":7)"), "prompt_embeds", "invalid_type"},
               {completion_body(R"("prompt_embeds":["AAAA",7])"), "prompt_embeds[1]", "invalid_type"},
               {completion_body(R"("prompt_embeds":"AAAA")"), "prompt_embeds", "unsupported_parameter"}});
}

TEST_F(BadRequests, PromptsOfVectors) {
  engine.info().prompt_vector_width = 4;
  expect_rows("/v1/completions",
              {{completion_body(R"("prompt_embeds":"AAA")"), "prompt_embeds", "invalid_value"},
               {completion_body(R"("prompt_embeds":["AA A"])"), "prompt_embeds[0]", "invalid_value"},
               {completion_body(R"("prompt_embeds":"AAAA","echo":true)"), "echo", "unsupported_parameter"},
               {R"({"model":"fake","prompt_embeds":[]})", "prompt", "missing_required_parameter"},
               {R"({"model":"fake","prompt":7,"prompt_embeds":"AAAA"})", "prompt", "invalid_type"}});
}

TEST_F(BadRequests, FieldsOfBothRoutes) {
  const std::vector<Row> fields = {
      {R"("n":129)", "n", "integer_above_max_value"},
      {R"("n":0)", "n", "integer_below_min_value"},
      {R"("n":-9223372036854775808)", "n", "integer_below_min_value"},
      {R"("n":9223372036854775808)", "n", "integer_above_max_value"},
      {R"("n":1e308)", "n", "invalid_type"},
      {R"("n":1.5)", "n", "invalid_type"},
      {R"("n":"1")", "n", "invalid_type"},
      {R"("n":true)", "n", "invalid_type"},
      {R"("n":[])", "n", "invalid_type"},
      {R"("temperature":3)", "temperature", "decimal_above_max_value"},
      {R"("temperature":-0.1)", "temperature", "decimal_below_min_value"},
      {R"("temperature":"hot")", "temperature", "invalid_type"},
      {R"("temperature":1e308)", "temperature", "decimal_above_max_value"},
      {R"("top_p":-1)", "top_p", "decimal_below_min_value"},
      {R"("top_p":0)", "top_p", "decimal_below_min_value"},
      {R"("top_p":1.01)", "top_p", "decimal_above_max_value"},
      {R"("min_p":1.5)", "min_p", "decimal_above_max_value"},
      {R"("top_k":-2)", "top_k", "integer_below_min_value"},
      {R"("top_k":2147483648)", "top_k", "integer_above_max_value"},
      {R"("presence_penalty":2.1)", "presence_penalty", "decimal_above_max_value"},
      {R"("frequency_penalty":-2.1)", "frequency_penalty", "decimal_below_min_value"},
      {R"("repetition_penalty":0)", "repetition_penalty", "decimal_below_min_value"},
      {R"("max_tokens":-1)", "max_tokens", "integer_below_min_value"},
      {R"("max_tokens":2147483648)", "max_tokens", "integer_above_max_value"},
      {R"("min_tokens":-1)", "min_tokens", "integer_below_min_value"},
      {R"("seed":9223372036854775808)", "seed", "integer_above_max_value"},
      {R"("seed":0.5)", "seed", "invalid_type"},
      {"\"stop\":[\"a\"" + repeated(",\"a\"", 1024) + "]", "stop", "array_above_max_length"},
      {"\"stop\":\"" + std::string(65537, 'a') + "\"", "stop", "string_above_max_length"},
      {"\"stop\":[\"" + std::string(65536, 'a') + "\",\"a\"]", "stop", "array_above_max_size"},
      {R"("stop":5)", "stop", "invalid_type"},
      {R"("stop":["a",5])", "stop[1]", "invalid_type"},
      {R"("stop":"")", "stop", "empty_string"},
      {R"("stop":["a",""])", "stop[1]", "empty_string"},
      {R"("stop_token_ids":[300])", "stop_token_ids[0]", "invalid_value"},
      {R"("stop_token_ids":[-1])", "stop_token_ids[0]", "invalid_value"},
      {R"("stop_token_ids":["a"])", "stop_token_ids[0]", "invalid_type"},
      {R"("allowed_token_ids":[])", "allowed_token_ids", "empty_array"},
      {R"("allowed_token_ids":[1,2,2147483648])", "allowed_token_ids[2]", "invalid_value"},
      {"\"allowed_token_ids\":[1" + repeated(",1", 300) + "]", "allowed_token_ids", "array_above_max_length"},
      {R"("logit_bias":{"300":1})", "logit_bias.300", "invalid_value"},
      {R"("logit_bias":{"-1":1})", "logit_bias.-1", "invalid_value"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias.99999999999", "invalid_value"},
      {R"("logit_bias":{"a":1})", "logit_bias.a", "invalid_value"},
      {R"("logit_bias":{"1 ":1})", "logit_bias.1 ", "invalid_value"},
      {R"("logit_bias":{"1":101})", "logit_bias.1", "decimal_above_max_value"},
      {R"("logit_bias":{"1":"x"})", "logit_bias.1", "invalid_type"},
      {R"("logit_bias":[1])", "logit_bias", "invalid_type"},
      {R"("stream":"yes")", "stream", "invalid_type"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "invalid_value"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage", "invalid_type"},
      {R"("stream":true,"stream_options":{"x":1})", "stream_options.x", "unsupported_parameter"},
      {R"("prompt_logprobs":21)", "prompt_logprobs", "integer_above_max_value"},
      {R"("prompt_logprobs":-1)", "prompt_logprobs", "invalid_value"},
      {R"("priority":"high")", "priority", "invalid_type"},
      {R"("cache_salt":5)", "cache_salt", "invalid_type"},
      {R"("session_id":5)", "session_id", "invalid_type"},
      {R"("session_id":"")", "session_id", "invalid_value"},
      {R"("session_id":"a","session_ttl":0)", "session_ttl", "integer_below_min_value"},
      {R"("session_ttl":5)", "session_ttl", "invalid_value"},
      {R"("user":5)", "user", "invalid_type"},
      {R"("ignore_eos":1)", "ignore_eos", "invalid_type"},
      {R"("service_tier":"flex")", "service_tier", "unsupported_parameter"},
      {R"("guided_json":5)", "guided_json", "invalid_type"},
      {R"("guided_regex":["a"])", "guided_regex", "invalid_type"},
      {R"("guided_choice":"a")", "guided_choice", "invalid_type"},
      {R"("guided_choice":[])", "guided_choice", "empty_array"},
      {R"("guided_choice":["a",1])", "guided_choice[1]", "invalid_type"},
      {R"("guided_regex":"a","guided_choice":["a"])", "guided_choice", "invalid_parameter_combination"},
      {R"("guided_regex":"a","response_format":{"type":"json_object"})", "response_format",
       "invalid_parameter_combination"},
      {R"("guided_whitespace_pattern":" ")", "guided_whitespace_pattern", "unsupported_parameter"},
      {R"("structured_outputs":{})", "structured_outputs", "invalid_value"},
      {R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs.choice",
       "invalid_parameter_combination"},
      {R"("structured_outputs":{"regexp":"a"})", "structured_outputs.regexp", "unsupported_parameter"},
      {R"("num_beams":65)", "num_beams", "integer_above_max_value"},
      {R"("length_penalty":2)", "length_penalty", "invalid_value"},
      {R"("early_stopping":true)", "early_stopping", "invalid_value"},
      {R"("num_beams":2,"early_stopping":"always")", "early_stopping", "invalid_value"},
      {R"("num_beam_groups":2)", "num_beam_groups", "invalid_value"},
      {R"("diversity_penalty":0.5)", "diversity_penalty", "invalid_value"},
      {R"("num_beams":4,"num_beam_groups":0)", "num_beam_groups", "integer_below_min_value"},
      {R"("num_beams":4,"num_beam_groups":2,"diversity_penalty":-1)", "diversity_penalty", "decimal_below_min_value"},
      {R"("penalty_alpha":-0.1,"top_k":4)", "penalty_alpha", "decimal_below_min_value"},
      {R"("penalty_alpha":1.1,"top_k":4)", "penalty_alpha", "decimal_above_max_value"},
      {R"("penalty_alpha":"0.6","top_k":4)", "penalty_alpha", "invalid_type"},
      {R"("n_keep":-2)", "n_keep", "integer_below_min_value"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens", "invalid_value"},
      {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens", "integer_below_min_value"},
      {R"("cache_salt":"")", "cache_salt", "invalid_value"},
      {R"("user":")" + std::string(1025, 'a') + "\"", "user", "string_above_max_length"},
      {"\"metadata\":{\"a\":\"" + std::string(65536, 'a') + "\"}", "metadata", "object_above_max_size"}};
  start();
  TestClient client(port);
  for (const Row& row : fields) {
    for (const bool chat : {true, false}) {
      for (const bool stream : {false, true}) {
        if (stream && row.body.find("stream") != std::string::npos) continue;
        const std::string more = stream ? "\"stream\":true," + row.body : row.body;
        SCOPED_TRACE(more);
        client.send(chat ? post_text("/v1/chat/completions", chat_body(more))
                         : post_text("/v1/completions", completion_body(more)));
        expect_error(client.read_response(), 400, row.param, row.code);
      }
    }
  }
  EXPECT_EQ(engine.submitted, 0);
}

// What other servers constrain or sample by is never ignored.
TEST_F(BadRequests, FieldsOfOtherServersAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"logprob_token_ids", "[1]"},  {"stop_regex", R"("a+")"},       {"mirostat_mode", "2"},
      {"timings_per_token", "true"}, {"dynamic_temperature", "true"}, {"min_keep", "3"},
      {"lora_request", "{}"},        {"lora_path", R"("a")"},         {"logits_processors", R"(["a"])"},
      {"max_new_tokens", "5"},       {"repeat_penalty", "1.1"},       {"options", R"({"a":1})"},
      {"format", R"("json")"},       {"sampling_seed", "5"},          {"tfs_z", "0.5"}};
  start();
  TestClient client(port);
  for (const auto& [name, value] : fields) {
    SCOPED_TRACE(name);
    for (const bool chat : {true, false}) {
      const std::string more = fmt::format("\"{}\":{}", name, value);
      client.send(chat ? post_text("/v1/chat/completions", chat_body(more))
                       : post_text("/v1/completions", completion_body(more)));
      const TestResponse response = client.read_response();
      expect_error(response, 400, name, "unsupported_parameter");
      EXPECT_NE(response.body.find("Accepted: null"), std::string::npos) << response.body;
    }
  }
  EXPECT_EQ(engine.submitted, 0);
  client.send(post_text(
      "/v1/chat/completions",
      chat_body(R"("grammar":"","json_schema":null,"typical_p":1,"top_n_sigma":-1,"top_a":0,"dry_multiplier":0.0,
                   "dry_base":1.75,"dry_allowed_length":2,"dry_sequence_breakers":["\n"],"xtc_probability":0,
                   "xtc_threshold":0.1,"mirostat":0,"mirostat_tau":5,"mirostat_eta":0.1,"dynatemp_range":0,
                   "dynatemp_exponent":1,"repeat_penalty":1.0,"repeat_last_n":64,"lora":[],"options":{},"n_probs":0)")));
  const TestResponse neutral = client.read_response();
  EXPECT_EQ(neutral.status, 200) << neutral.body;
  EXPECT_FALSE(neutral.headers.contains("x-sluice-warning"));
}

TEST_F(BadRequests, RefusalsSayWhatIsAccepted) {
  const auto message = [this](std::string_view more) {
    return post("/v1/chat/completions", chat_body(more)).json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(R"("tfs_z":0.5)"), "Unsupported parameter: 'tfs_z' is not supported. Accepted: null or 1.");
  EXPECT_EQ(message(R"("max_new_tokens":5)"),
            "Unsupported parameter: 'max_new_tokens' is not supported. Accepted: null. Use 'max_tokens'.");
}

TEST_F(BadRequests, LargeFieldsAreRefusedEarly) {
  expect_rows("/v1/chat/completions",
              {{chat_body("\"chat_template_kwargs\":{\"a\":[0" + repeated(",0", 40000) + "]}"), "chat_template_kwargs",
                "object_above_max_size"},
               {chat_body("\"chat_template_kwargs\":{\"a\":[[]" + repeated(",[]", 40000) + "]}"),
                "chat_template_kwargs", "object_above_max_size"},
               {chat_body(R"("tools":[{"type":"function","function":{"name":"f","description":")" +
                          std::string(1 << 20, 'a') + "\"}}]"),
                "tools", "array_above_max_size"},
               {chat_body("\"a0\":0" +
                          [] {
                            std::string fields;
                            for (int i = 1; i < 1100; ++i) fields += fmt::format(",\"a{}\":0", i);
                            return fields;
                          }()),
                "", "object_above_max_length"},
               {"{\"a\":[0" + repeated(",0", 2 << 20) + "]}", "", ""}});
}

TEST_F(BadRequests, PromptsTimesChoicesAreLimited) {
  const std::string prompts = "[\"a\"" + repeated(",\"a\"", 1023) + "]";
  expect_rows("/v1/completions", {{R"({"model":"fake","n":3,"prompt":)" + prompts + "}", "n", "too_many_sequences"},
                                  {R"({"model":"fake","n":128,"prompt":)" + prompts + "}", "n", "too_many_sequences"}});
  const TestResponse response = post("/v1/completions", R"({"model":"fake","n":3,"prompt":)" + prompts + "}");
  EXPECT_EQ(response.json()["error"]["message"],
            "Invalid 'n': 1024 prompts with 3 choices each are 3072 sequences. Expected at most 2048 sequences in a "
            "request.");
}

TEST_F(BadRequests, NumbersBeyondFp64HaveTheirOwnMessage) {
  EXPECT_EQ(
      post("/v1/chat/completions", "{\"a\":1e400}").json()["error"]["message"],
      "We could not parse the JSON body of your request. (HINT: number beyond the range of 64-bit floats (byte 10))");
}

TEST_F(BadRequests, RefusedChatFields) {
  start();
  for (const auto* more :
       {R"("audio":{"voice":"x"})", R"("modalities":["text","audio"])", R"("prediction":{})",
        R"("web_search_options":{})", R"("reasoning_effort":"low")", R"("verbosity":"low")", R"("documents":[])"}) {
    const std::string text = more;
    const std::string name = text.substr(1, text.find('"', 1) - 1);
    expect_error(post("/v1/chat/completions", chat_body(more)), 400, name, "unsupported_parameter");
  }
}

TEST_F(BadRequests, NeutralValuesAskForNothing) {
  const TestResponse response = post(
      "/v1/chat/completions",
      chat_body(R"("audio":null,"modalities":["text"],"functions":[],"function_call":"none","parallel_tool_calls":true,
                   "store":false,"service_tier":"auto","use_beam_search":false,"length_penalty":1.0,"n":null,
                   "stop":null,"response_format":{"type":"text"},"metadata":{"a":"b"},"user":"me","guided_json":null,
                   "verbosity":"medium","tools":[],"tool_choice":"none","logit_bias":{},"stream":false)"));
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_FALSE(response.headers.contains("x-sluice-warning"));
}

TEST_F(BadRequests, TokenizeAndDetokenize) {
  start();
  expect_error(post("/tokenize", "{}"), 400, "prompt", "missing_required_parameter");
  expect_error(post("/tokenize", R"({"prompt":5})"), 400, "prompt", "invalid_type");
  expect_error(post("/tokenize", R"({"prompt":"a","model":"x"})"), 404, "", "model_not_found");
  expect_error(post("/tokenize", R"({"messages":[{"role":"","content":""}]})"), 400, "messages[0].role",
               "invalid_value");
  expect_error(post("/tokenize", R"({"prompt":"a","messages":[{"role":"user","content":""}]})"), 400, "prompt",
               "invalid_parameter_combination");
  // Texts longer than the context may be counted, up to a limit.
  EXPECT_EQ(post("/tokenize", R"({"prompt":")" + std::string(1 << 20, 'a') + "\"}").status, 200);
  expect_error(post("/tokenize", R"({"prompt":")" + std::string((1 << 20) + 1, 'a') + "\"}"), 400, "prompt",
               "context_length_exceeded");
  expect_error(post("/detokenize", "{}"), 400, "tokens", "missing_required_parameter");
  expect_error(post("/detokenize", R"({"tokens":[300]})"), 400, "tokens[0]", "invalid_value");
  expect_error(post("/detokenize", R"({"tokens":"a"})"), 400, "tokens", "invalid_type");
}

TEST_F(BadRequests, UnknownFieldsWarnUnlessStrict) {
  const TestResponse warned = chat({{"thinking", true}, {"x\r\nSet-Cookie: a", 1}});
  EXPECT_EQ(warned.status, 200) << warned.body;
  EXPECT_EQ(warned.headers.at("x-sluice-warning"), "unknown fields ignored: x??Set-Cookie??a, thinking");
  EXPECT_FALSE(warned.headers.contains("set-cookie"));
  const TestResponse nested =
      post("/v1/chat/completions", messages_body(R"([{"role":"user","content":"x","mood":"y"}])"));
  EXPECT_EQ(nested.headers.at("x-sluice-warning"), "unknown fields ignored: messages[0].mood");
  stop();
  options.strict = true;
  const TestResponse refused = chat({{"thinking", true}});
  expect_error(refused, 400, "", "");
  EXPECT_EQ(refused.json()["error"]["message"], "Unrecognized request argument supplied: thinking");
}

TEST_F(BadRequests, WordingsAreOpenAis) {
  const auto message = [this](std::string_view more) {
    return post("/v1/chat/completions", chat_body(more)).json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(R"("n":130)"),
            "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 130 instead.");
  EXPECT_EQ(message(R"("temperature":"a")"),
            "Invalid type for 'temperature': expected a decimal, but got a string instead.");
  EXPECT_EQ(
      message(R"("max_tokens":4090)"),
      "This model's maximum context length is 4096 tokens. However, you requested 4099 tokens (9 in the messages, "
      "4090 in the completion). Please reduce the length of the messages or completion.");
  EXPECT_EQ(
      post("/v1/chat/completions",
           messages_body("[{\"role\":\"user\",\"content\":\"" + std::string(4287, 'a') + "\"}]"))
          .json()["error"]["message"],
      "This model's maximum context length is 4096 tokens. However, your messages resulted in 4294 tokens. Please "
      "reduce the length of the messages.");
  EXPECT_EQ(post("/v1/chat/completions", R"({"model":"x\u001b","messages":[{"role":"user","content":"a"}]})")
                .json()["error"]["message"],
            "The model `x?` does not exist or you do not have access to it. Served: `fake`.");
}

}  // namespace
}  // namespace sluice::bad_requests_test
