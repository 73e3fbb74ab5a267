// Tests the OpenAPI document and its page against the routes and the rows of parameters.
#include "server/openapi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/endpoint.h"
#include "server_fixture.h"

namespace sluice::server::openapi_test {
namespace {

using ::testing::HasSubstr;

class OpenApiTest : public ServerTest {
 protected:
  Json document() { return get("/openapi.json").json(); }
};

TEST_F(OpenApiTest, HasEveryEndpointAndItsFields) {
  start();
  const Json paths = document().at("paths");
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    for (const std::string_view path : endpoint->paths) {
      std::string name(path);
      if (name.ends_with("/*")) name.replace(name.size() - 1, 1, "{name}");
      std::string method(endpoint->method);
      for (char& c : method) c = static_cast<char>(std::tolower(c));
      ASSERT_TRUE(paths.contains(name) && paths[name].contains(method)) << method << " " << path;
      const Json& operation = paths[name][method];
      ASSERT_EQ(operation.contains("requestBody"), !endpoint->parameters.empty()) << path;
      if (endpoint->parameters.empty()) continue;
      const Json& schema = operation["requestBody"]["content"]["application/json"]["schema"];
      for (const std::span<const Parameter> group : endpoint->parameters) {
        for (const Parameter& row : group) EXPECT_TRUE(schema["properties"].contains(row.name)) << path << row.name;
      }
    }
  }
}

TEST_F(OpenApiTest, SaysWhichBodiesMayBeArrays) {
  start();
  const Json operation = document().at("paths").at("/lora-adapters").at("post");
  const Json& schema = operation["requestBody"]["content"]["application/json"]["schema"];
  EXPECT_EQ(schema["type"], Json::array({"array", "object"}));
  EXPECT_EQ(schema["description"], "An array stands for the field `lora`.");
}

TEST_F(OpenApiTest, OperationsHaveNamesOfTheirOwn) {
  start();
  std::set<std::string> ids;
  const Json paths = document().at("paths");
  for (const auto& [path, methods] : paths.items()) {
    for (const auto& [method, operation] : methods.items()) {
      EXPECT_TRUE(ids.insert(operation.at("operationId").get<std::string>()).second) << method << " " << path;
    }
  }
  EXPECT_GT(ids.size(), 30u);
}

TEST_F(OpenApiTest, SaysWhichRoutesNeedNoKey) {
  start();
  const Json paths = document().at("paths");
  EXPECT_EQ(paths.at("/health").at("get").at("security"), Json::array());
  EXPECT_FALSE(paths.at("/v1/models").at("get").contains("security"));
}

TEST_F(OpenApiTest, ThePageNeedsNeitherKeyNorScriptNorOtherPlaces) {
  options.api_key = {"key"};
  start();
  const TestResponse page = get("/docs");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.headers.at("content-security-policy"), HasSubstr("default-src 'none'; style-src 'self'"));
  EXPECT_EQ(page.body.find("<script"), std::string::npos);
  EXPECT_EQ(page.body.find("http"), std::string::npos);
  EXPECT_THAT(page.body, HasSubstr("/v1/chat/completions"));
  EXPECT_THAT(page.body, HasSubstr("<code>temperature</code>"));
  EXPECT_EQ(get("/openapi.json").status, 200);
  EXPECT_EQ(get("/docs.css").status, 200);
  EXPECT_EQ(get("/v1/models").status, 401);
}

TEST_F(OpenApiTest, CanBeTurnedOff) {
  options.api_docs = false;
  start();
  for (const char* path : {"/openapi.json", "/docs", "/docs.css"}) EXPECT_EQ(get(path).status, 404) << path;
}

}  // namespace
}  // namespace sluice::server::openapi_test
