// Every sampling parameter reaches the engine from every API that has it, and its range is checked there.
#include <fmt/core.h>

#include "server/server_fixture.h"
#include "sluice/sampling_parameters.h"

namespace sluice::sampling_fields_test {
namespace {

using Row = SamplingParameter;

class SamplingFields : public ServerTest {
 protected:
  // Sends a body with one more field to an API.
  TestResponse send(Row::Dialect dialect, std::string_view name, const Json& value) {
    const Json message = Json::array({{{"role", "user"}, {"content", "hi"}}});
    const std::string key(name);
    switch (dialect) {
      case Row::kLlamaCpp:
        return post("/completion", dump_json({{"prompt", "hi"}, {"n_predict", 2}, {key, value}}));
      case Row::kOllama:
        return post("/api/chat", dump_json({{"model", "fake"},
                                            {"messages", message},
                                            {"stream", false},
                                            {"options", {{"num_predict", 2}, {key, value}}}}));
      case Row::kTgi:
        return post("/generate", dump_json({{"inputs", "hi"}, {"parameters", {{"max_new_tokens", 2}, {key, value}}}}));
      case Row::kAnthropic:
        return post("/v1/messages", dump_json({{"messages", message}, {"max_tokens", 2}, {key, value}}));
      default:
        return post("/v1/chat/completions", dump_json({{"messages", message}, {"max_tokens", 2}, {key, value}}));
    }
  }
};

constexpr Row::Dialect kOpenAi{};
constexpr Row::Dialect kDialects[] = {kOpenAi, Row::kLlamaCpp, Row::kOllama, Row::kTgi, Row::kAnthropic};

TEST_F(SamplingFields, ReachTheEngineFromEveryApi) {
  const SamplingParams defaults;
  for (const Row& row : kSamplingParameters) {
    const double value = row.of(defaults) == row.max ? (row.min + row.max) / 2 : row.max;
    for (const Row::Dialect dialect : kDialects) {
      if (dialect != kOpenAi && (row.dialects & dialect) == 0) continue;
      const std::string_view name = row.name_in(dialect);
      SCOPED_TRACE(fmt::format("{} in API {}", name, static_cast<unsigned>(dialect)));
      const Json json = row.is_integer() ? Json(static_cast<int>(value)) : Json(value);
      const TestResponse response = send(dialect, name, json);
      ASSERT_EQ(response.status, 200) << response.body;
      EXPECT_EQ(row.of(engine.last_request().sampling), value);
      EXPECT_EQ(response.headers.count("x-sluice-warning"), 0u);
      const TestResponse refused = send(dialect, name, row.is_integer() ? Json(row.min - 1) : Json(row.max + 1));
      EXPECT_TRUE(refused.status == 400 || refused.status == 422) << refused.status;
      EXPECT_NE(refused.body.find(name), std::string::npos) << refused.body;
    }
  }
}

TEST_F(SamplingFields, MissingSamplersAreRefusedByEveryApi) {
  for (const MissingSampler& missing : kMissingSamplers) {
    for (const Row::Dialect dialect : kDialects) {
      if (dialect != kOpenAi && (missing.dialects & dialect) == 0) continue;
      SCOPED_TRACE(fmt::format("{} in API {}", missing.name, static_cast<unsigned>(dialect)));
      const TestResponse refused = send(dialect, missing.name, 0.123);
      EXPECT_TRUE(refused.status == 400 || refused.status == 422) << refused.status;
      EXPECT_NE(refused.body.find(missing.name), std::string::npos) << refused.body;
    }
  }
}

TEST_F(SamplingFields, ListsOfTexts) {
  for (const SamplingTexts& row : kSamplingTexts) {
    SCOPED_TRACE(row.name);
    for (const Row::Dialect dialect : kDialects) {
      if (dialect != kOpenAi && (row.dialects & dialect) == 0) continue;
      EXPECT_EQ(send(dialect, row.name, Json::array({"a", "bc"})).status, 200);
      EXPECT_EQ(engine.last_request().sampling.*row.field, (std::vector<std::string>{"a", "bc"}));
      EXPECT_EQ(send(dialect, row.name, Json::array({""})).status, 400);
      EXPECT_EQ(send(dialect, row.name, 5).status, 400);
    }
  }
}

}  // namespace
}  // namespace sluice::sampling_fields_test
