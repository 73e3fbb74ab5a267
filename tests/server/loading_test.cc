// The port is bound while a model loads, and passes to the real server without a gap.
#include "server/loading.h"

#include "server/server_fixture.h"

namespace sluice::loading_test {
namespace {

class LoadingTest : public ServerTest {
 protected:
  TestResponse ask(int to, std::string_view text) {
    TestClient client(to);
    client.send(text);
    return client.read_response();
  }
};

TEST_F(LoadingTest, HealthTellsTheProgress) {
  LoadingServer loading(options);
  for (const double share : {0.0, 0.25, 1.0}) {
    loading.progress(share);
    for (const char* path : {"/health", "/ping"}) {
      const TestResponse response = ask(loading.port(), get_text(path));
      EXPECT_EQ(response.status, 503);
      EXPECT_EQ(response.json(), Json({{"status", "loading"}, {"progress", share}}));
      EXPECT_EQ(response.headers.at("retry-after"), "1");
      EXPECT_EQ(response.headers.at("connection"), "close");
    }
  }
}

TEST_F(LoadingTest, OtherRoutesAreRefusedUntilTheServerTakesOver) {
  LoadingServer loading(options);
  const int bound = loading.port();
  loading.progress(0.5);
  const std::string request = post_text("/v1/completions", R"({"model":"fake","prompt":"abc"})");
  const TestResponse refused = ask(bound, request);
  expect_error(refused, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_NE(refused.body.find("loading (50 %)"), std::string::npos) << refused.body;
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(ask(bound, get_text("/v1/models")).status, 503);

  // A client that connects between the two servers waits and is then served.
  const std::vector<int> listeners = loading.release();
  TestClient early(bound);
  early.send(request);
  server = std::make_unique<Server>(engine, options, listeners);
  EXPECT_EQ(server->port(), bound);
  thread = std::thread([this] { server->run(); });
  EXPECT_EQ(early.read_response().status, 200);
  EXPECT_EQ(ask(bound, get_text("/health")).status, 200);
}

TEST_F(LoadingTest, ClientsThatSendNothingDoNotDelayTheServer) {
  LoadingServer loading(options);
  TestClient silent(loading.port()), partial(loading.port());
  partial.send("POST /v1/completions HTTP/1.1\r\n");
  const auto start = std::chrono::steady_clock::now();
  server = std::make_unique<Server>(engine, options, loading.release());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
}

TEST_F(LoadingTest, AFailedLoadFreesThePort) {
  {
    const LoadingServer loading(options);
    options.port = loading.port();
  }
  const LoadingServer again(options);
  EXPECT_EQ(again.port(), options.port);
}

TEST_F(LoadingTest, WhatCannotBeUsedIsReportedBeforeTheLoad) {
  const LoadingServer first(options);
  options.port = first.port();
  EXPECT_THROW(LoadingServer{options}, Error) << "the port is taken";
  options.port = 0;
  options.ssl_certfile = "/no/such/file";
  EXPECT_THROW(LoadingServer{options}, Error);
}

}  // namespace
}  // namespace sluice::loading_test
