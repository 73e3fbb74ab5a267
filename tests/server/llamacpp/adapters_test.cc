// Scales of adapters: of a request, and of all that choose none.
#include <fmt/core.h>

#include "server/server_fixture.h"

namespace sluice::llamacpp_adapters_test {
namespace {

class LlamaAdapters : public ServerTest {
 protected:
  LlamaAdapters() {
    engine.loaded_adapters = {{.name = "pirate", .folder = "/adapters/pirate"},
                              {.name = "table", .folder = "/adapters/table", .unscalable = "model.embed_tokens"}};
  }

  TestResponse complete(const std::string& more) {
    return post("/completion", R"({"prompt":"hi","n_predict":1)" + more + "}");
  }
  // The adapter and the scale of the last request.
  std::string used() const {
    return fmt::format("{} {}", engine.last_request().adapter, engine.last_request().adapter_scale);
  }
  std::string used_by(const std::string& more) {
    EXPECT_EQ(complete(more).status, 200) << more;
    return used();
  }
  std::string scales(const std::string& query = "") {
    std::string out;
    for (const Json& row : get("/lora-adapters" + query).json())
      out += fmt::format("{} ", row.at("scale").get<double>());
    return out;
  }
  static void expect_refused(const TestResponse& response, const std::string& part) {
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_NE(response.body.find(part), std::string::npos) << response.body;
  }
};

// Bodies of requests, as the value of a field or alone, and what the error says.
constexpr std::pair<std::string_view, std::string_view> kHostile[] = {
    {R"([{"id":0,"scale":"0.5"}])", "Invalid type for 'lora[0].scale': expected a number"},
    {R"([{"id":0,"scale":[1]}])", "Invalid type for 'lora[0].scale': expected a number"},
    {R"([{"id":0,"scale":true}])", "Invalid type for 'lora[0].scale': expected a number"},
    {R"([{"id":0,"scale":null}])", "'lora[0].scale'"},
    {R"([{"id":0}])", "'lora[0].scale'"},
    {R"([{"id":0,"scale":NaN}])", "We could not parse the JSON body"},
    {R"([{"id":0,"scale":Infinity}])", "We could not parse the JSON body"},
    {R"([{"id":0,"scale":1e999}])", "We could not parse the JSON body"},
    {R"([{"id":0,"scale":1e39}])", "Invalid 'lora[0].scale': expected a number of single precision"},
    {R"([{"id":0,"scale":-1e300}])", "Invalid 'lora[0].scale': expected a number of single precision"},
    {R"([{"id":1,"scale":0.5}])",
     "Invalid 'lora[0].scale': expected 0 or 1, but got 0.5. The adapter's module 'model.embed_tokens'"},
    {R"([{"scale":1}])", "'lora[0].id'"},
    {R"([{"id":"pirate","scale":1}])", "Invalid type for 'lora[0].id': expected an integer"},
    {R"([{"id":-1,"scale":1}])", "'lora[0].id'"},
    {R"([{"id":0.5,"scale":1}])", "Invalid type for 'lora[0].id': expected an integer"},
    {R"([{"id":2,"scale":1}])", "Invalid 'lora[0].id': the model has 2 adapters."},
    {R"([{"id":99999999999999999999,"scale":1}])", "'lora[0].id'"},
    {R"([{"id":0,"scale":1},{"id":0,"scale":0}])", "Invalid 'lora[1].id': 0 is there twice."},
    {R"([{"id":0,"scale":1},{"id":1,"scale":1}])", "Invalid 'lora[1].scale': expected 0. A request has one adapter"},
    {R"([5])", "Invalid type for 'lora[0]': expected an object"},
    {R"([[]])", "Invalid type for 'lora[0]': expected an object"},
};

TEST_F(LlamaAdapters, ARequestChoosesAScale) {
  EXPECT_EQ(used_by(""), " 1");
  EXPECT_EQ(used_by(R"(,"lora":[{"id":0,"scale":0.5}])"), "pirate 0.5");
  EXPECT_EQ(used_by(R"(,"lora":[{"id":0,"scale":-3},{"id":1,"scale":0}])"), "pirate -3");
  EXPECT_EQ(used_by(R"(,"lora":[{"id":1,"scale":1}])"), "table 1");
  EXPECT_EQ(used_by(R"(,"lora":[{"id":1,"scale":0.0}])"), " 1");
  EXPECT_EQ(used_by(R"(,"model":"pirate")"), "pirate 1");
  EXPECT_EQ(used_by(R"(,"model":"pirate","lora":[])"), " 1");
  EXPECT_EQ(used_by(R"(,"model":"table","lora":[{"id":0,"scale":2}])"), "pirate 2");
  for (const auto& [body, part] : kHostile) {
    expect_refused(complete(fmt::format(R"(,"lora":{})", body)), std::string(part));
  }
  EXPECT_EQ(scales(), "0 0 ") << "requests change nothing for others";
}

TEST_F(LlamaAdapters, ScalesOfThoseThatChooseNone) {
  EXPECT_EQ(scales(), "0 0 ");
  const TestResponse set = post("/lora-adapters", R"([{"id":0,"scale":0.25},{"id":1,"scale":0}])");
  EXPECT_EQ(set.status, 200);
  EXPECT_EQ(set.body, R"({"success":true})");
  EXPECT_EQ(scales(), "0.25 0 ");
  EXPECT_EQ(scales("?model=pirate"), "1 0 ") << "its own name stands for it";
  EXPECT_EQ(used_by(""), "pirate 0.25");
  EXPECT_EQ(used_by(R"(,"lora":[])"), " 1");
  EXPECT_EQ(used_by(R"(,"lora":[{"id":1,"scale":1}])"), "table 1");
  EXPECT_EQ(used_by(R"(,"model":"pirate")"), "pirate 1");
  EXPECT_EQ(used_by(R"(,"model":"table")"), "table 1");
  EXPECT_EQ(chat().status, 200);
  EXPECT_EQ(used(), "pirate 0.25");
  EXPECT_EQ(post("/api/generate", R"({"model":"fake","prompt":"hi","stream":false})").status, 200);
  EXPECT_EQ(used(), "pirate 0.25");
  EXPECT_EQ(post("/lora-adapters?model=pirate", R"({"lora":[{"id":1,"scale":1}]})").status, 200);
  EXPECT_EQ(scales(), "0 1 ");
  EXPECT_EQ(used_by(""), "table 1");
  EXPECT_EQ(post("/lora-adapters", "[]").status, 200);
  EXPECT_EQ(scales(), "0 0 ");
  EXPECT_EQ(used_by(""), " 1");
}

TEST_F(LlamaAdapters, WhatIsRefusedLeavesTheScales) {
  EXPECT_EQ(post("/lora-adapters", R"([{"id":0,"scale":0.25}])").status, 200);
  for (const auto& [body, part] : kHostile) expect_refused(post("/lora-adapters", body), std::string(part));
  for (const char* body : {"", "5", "null", "\"x\"", "{}", R"({"lora":5})", R"({"lora":{"id":0,"scale":1}})"}) {
    expect_refused(post("/lora-adapters", body), "");
  }
  EXPECT_EQ(post("/lora-adapters?model=other", "[]").status, 404);
  EXPECT_EQ(scales(), "0.25 0 ");
}

TEST_F(LlamaAdapters, AnUnloadedOneIsNoLongerTheDefault) {
  EXPECT_EQ(post("/lora-adapters", R"([{"id":0,"scale":0.25}])").status, 200);
  EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"pirate"})").status, 200);
  EXPECT_EQ(used_by(""), " 1");
}

TEST_F(LlamaAdapters, AreSetWithAKeyOnly) {
  options.api_key = {"secret"};
  EXPECT_EQ(post("/lora-adapters", "[]").status, 401);
  EXPECT_EQ(post("/lora-adapters", "[]", "Authorization: Bearer secret\r\n").status, 200);
}

}  // namespace
}  // namespace sluice::llamacpp_adapters_test
