// A server on a free port over a FakeEngine, for one test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/json.h"
#include "fake_engine.h"
#include "http_client.h"
#include "server/server.h"

namespace sluice {

inline bool eventually(const std::function<bool()>& condition, int timeout_ms = 5000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options.port = 0;
    options.shutdown_timeout_ms = 5000;
  }
  ~ServerTest() override { stop(); }

  void start() {
    engine.draining = false;
    server = std::make_unique<Server>(engine, options);
    port = server->port();
    thread = std::thread([this] { server->run(); });
  }
  void stop() {
    if (!server) return;
    server->shutdown();
    join();
    server.reset();
  }
  void join() {
    if (thread.joinable()) thread.join();
  }

  TestResponse send(std::string_view bytes, bool head = false) {
    if (!server) start();
    TestClient client(port);
    client.send(bytes);
    return client.read_response(head);
  }
  TestResponse get(std::string_view path, std::string_view headers = "") { return send(get_text(path, headers)); }
  TestResponse post(std::string_view path, std::string_view body, std::string_view headers = "") {
    return send(post_text(path, body, headers));
  }
  TestResponse chat(const Json& more = Json::object()) {
    Json body = {{"model", "fake"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return post("/v1/chat/completions", dump_json(body));
  }
  TestResponse completion(const Json& more = Json::object()) {
    Json body = {{"model", "fake"}, {"prompt", "hello"}, {"add_special_tokens", false}};
    body.update(more);
    return post("/v1/completions", dump_json(body));
  }

  // The body must be OpenAI's error with exactly these members; "" stands for null.
  static void expect_error(const TestResponse& response, int status, const std::string& param, const std::string& code,
                           const std::string& type = "invalid_request_error") {
    EXPECT_EQ(response.status, status) << response.body;
    ASSERT_EQ(response.headers.at("content-type"), "application/json");
    EXPECT_TRUE(response.headers.contains("x-request-id"));
    const Json body = response.json();
    ASSERT_EQ(body.size(), 1u) << response.body;
    const Json& error = body.at("error");
    ASSERT_EQ(error.size(), 4u) << response.body;
    EXPECT_TRUE(error.at("message").is_string());
    EXPECT_NE(error.at("message"), "");
    EXPECT_EQ(error.at("type"), type) << response.body;
    EXPECT_EQ(error.at("param"), param.empty() ? Json(nullptr) : Json(param)) << response.body;
    EXPECT_EQ(error.at("code"), code.empty() ? Json(nullptr) : Json(code)) << response.body;
  }

  FakeEngine engine;
  ServerOptions options;
  std::unique_ptr<Server> server;
  std::thread thread;
  int port = 0;
};

}  // namespace sluice
