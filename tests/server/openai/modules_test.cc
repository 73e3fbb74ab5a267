// The field prompt_modules: what the engine is asked for, and what is refused.
#include "server/server_fixture.h"

namespace sluice::modules_test {
namespace {

class Modules : public ServerTest {
 protected:
  TestResponse ask(const Json& modules, const Json& more = Json::object(), bool chats = false) {
    Json body = {{"prompt_modules", modules}};
    body.update(more);
    return chats ? chat(body) : completion(body);
  }
};

Json one(const Json& module) { return Json::array({module}); }

constexpr TokenId kBos = FakeEngine::kBos;

TEST_F(Modules, ComeBeforeThePrompt) {
  const Json modules = {{{"prompt", "ab"}}, {{"prompt", {7, 8, 9}}, {"position", 40}}, {{"prompt", "c"}}};
  ASSERT_EQ(ask(modules, {{"prompt", "xy"}}).status, 200);
  const Request request = engine.last_request();
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{kBos, 'a', 'b', 7, 8, 9, kBos, 'c', 'x', 'y'}));
  ASSERT_EQ(request.modules.size(), 3u);
  EXPECT_EQ(request.modules[0].tokens, 3);
  EXPECT_EQ(request.modules[0].position, -1);
  EXPECT_EQ(request.modules[1].tokens, 3);
  EXPECT_EQ(request.modules[1].position, 40);
  EXPECT_EQ(request.modules[2].tokens, 2);
}

TEST_F(Modules, MayHaveNoSpecialTokens) {
  const Json modules = one({{"prompt", "ab"}, {"add_special_tokens", false}, {"position", nullptr}});
  ASSERT_EQ(ask(modules, {{"prompt", "xy"}, {"add_special_tokens", false}}).status, 200);
  EXPECT_EQ(engine.last_request().prompt, (std::vector<TokenId>{'a', 'b', 'x', 'y'}));
}

TEST_F(Modules, ComeBeforeTheRenderedChat) {
  ASSERT_EQ(ask(one({{"prompt", "ab"}}), {{"messages", {{{"role", "user"}, {"content", "q"}}}}}, true).status, 200);
  const Request request = engine.last_request();
  ASSERT_EQ(request.modules.size(), 1u);
  EXPECT_EQ(request.modules[0].tokens, 3);
  EXPECT_EQ(engine.detokenize(request.prompt, false), "<bos>abuser:q|>");
}

TEST_F(Modules, OfSeveralPromptsAreTokenizedOnce) {
  const int before = engine.tokenized;
  ASSERT_EQ(ask(one({{"prompt", "ab"}}), {{"prompt", {"x", "y", "z"}}}).status, 200);
  EXPECT_EQ(engine.tokenized - before, 4);
  EXPECT_EQ(ask(Json::array(), {{"prompt", "x"}}).status, 200);
  EXPECT_TRUE(engine.last_request().modules.empty());
}

TEST_F(Modules, TakePositionsOfTheContext) {
  ASSERT_EQ(ask(one({{"prompt", "a"}, {"position", 4080}}), {{"prompt", "x"}, {"max_tokens", 10}}).status, 200);
  expect_error(ask(one({{"prompt", "a"}, {"position", 4085}}), {{"prompt", "x"}, {"max_tokens", 10}}), 400,
               "max_tokens", "context_length_exceeded");
  expect_error(ask(one({{"prompt", "a"}, {"position", 4096}}), {{"prompt", "x"}}), 400, "prompt",
               "context_length_exceeded");
}

TEST_F(Modules, AreRefusedByName) {
  const std::string field = "prompt_modules";
  expect_error(ask("a"), 400, field, "invalid_type");
  expect_error(ask(one("a")), 400, field + "[0]", "invalid_type");
  expect_error(ask(one(Json::object())), 400, field + "[0].prompt", "missing_required_parameter");
  expect_error(ask(one({{"prompt", 7}})), 400, field + "[0].prompt", "invalid_type");
  expect_error(ask(one({{"prompt", {1, 300}}})), 400, field + "[0].prompt[1]", "invalid_value");
  expect_error(ask(one({{"prompt", ""}, {"add_special_tokens", false}})), 400, field + "[0].prompt", "invalid_value");
  expect_error(ask(one({{"prompt", "a"}, {"position", -1}})), 400, field + "[0].position", "integer_below_min_value");
  expect_error(ask(one({{"prompt", "a"}, {"position", int64_t{1000000000000}}})), 400, field + "[0].position",
               "integer_above_max_value");
  expect_error(ask(one({{"prompt", "a"}, {"name", "b"}})), 400, field + "[0].name", "unsupported_parameter");
  Json many = Json::array();
  for (int i = 0; i < 129; ++i) many.push_back({{"prompt", "a"}});
  expect_error(ask(many), 400, field, "array_above_max_length");
  Json large = Json::array();
  for (int i = 0; i < 100; ++i) large.push_back({{"prompt", std::string(1000, 'a')}});
  expect_error(ask(large), 400, field, "context_length_exceeded");
  const Json module = one({{"prompt", "a"}});
  expect_error(ask(module, {{"prompt", "x"}, {"echo", true}}), 400, "echo", "unsupported_parameter");
  expect_error(ask(module, {{"prompt", "x"}, {"truncate_prompt_tokens", 5}}), 400, "truncate_prompt_tokens",
               "unsupported_parameter");
}

}  // namespace
}  // namespace sluice::modules_test
