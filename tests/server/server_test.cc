// The server as a whole: authentication, hosts, limits, timeouts, cancellation, overload and the way down.
#include "server/server.h"

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "server/api.h"
#include "server/errors.h"
#include "server/server_fixture.h"
#include "sluice/version.h"

namespace sluice::server_test {
namespace {

constexpr std::string_view kKey = "sk-Test-Key-1";

std::string bearer(std::string_view key) { return fmt::format("Authorization: Bearer {}\r\n", key); }

std::string chat_text(std::string_view more = "", std::string_view headers = "") {
  return post_text("/v1/chat/completions",
                   fmt::format(R"({{"model":"fake","messages":[{{"role":"user","content":"hi"}}]{}}})", more), headers);
}
// A generation that goes on until the context is full.
std::string endless_text(bool stream, std::string_view headers = "") {
  return chat_text(stream ? R"(,"ignore_eos":true,"stream":true)" : R"(,"ignore_eos":true)", headers);
}

// Routes and methods

TEST_F(ServerTest, OwnRoutes) {
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/ping").json()["status"], "ok");
  EXPECT_EQ(get("/version").json()["version"], kVersion);
  EXPECT_EQ(get("/load").json()["server_load"], 0);
  const Json index = get("/routes").json();
  EXPECT_GE(index["routes"].size(), 11u);
  engine.alive = false;
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").json()["status"], "stalled");
  engine.alive = true;
  engine.errors_in_a_row = kFailingAfter - 1;
  EXPECT_EQ(get("/health").status, 200);
  engine.errors_in_a_row = kFailingAfter;
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").json()["status"], "failing");
}

TEST(ServerFault, NamesALostProcessOnlyToRequestsThatItEnded) {
  using server::server_fault;
  const std::string lost = "rank 1 of 2 was lost: its process ended";
  Health health{.alive = true, .failure = "replica 1: " + lost};
  EXPECT_EQ(server_fault(health, "NaN").message, server_fault().message);
  EXPECT_EQ(server_fault(health, lost).message, health.failure);
  health.failed = true;  // no replica is left
  EXPECT_EQ(server_fault(health, "the engine has stopped").message, health.failure);
}

TEST_F(ServerTest, VersionIsTheBuilds) {
  std::ifstream file(SLUICE_SOURCE_DIR "/CMakeLists.txt");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find(fmt::format("VERSION {} ", kVersion)), std::string::npos);
}

TEST_F(ServerTest, UnknownRoutesAndMethods) {
  expect_error(get("/nothing"), 404, "", "unknown_url");
  expect_error(get("//v1/models"), 404, "", "unknown_url");
  expect_error(get("/v1/../health"), 404, "", "unknown_url");
  expect_error(get("/%761/models"), 404, "", "unknown_url");
  expect_error(get("/v1/nothing/"), 404, "", "unknown_url");
  expect_error(get("ftp://localhost/v1/models"), 404, "", "unknown_url");
  const TestResponse wrong = get("/v1/completions");
  expect_error(wrong, 405, "", "method_not_supported");
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(post("/health", "{}").headers.at("allow"), "GET, HEAD, OPTIONS");
  expect_error(send(get_text("/health", "", "BREW")), 405, "", "method_not_supported");
  EXPECT_EQ(get("/health?probe=1").status, 200);
}

TEST_F(ServerTest, TargetsInAbsoluteForm) {
  EXPECT_EQ(get("http://localhost/health").status, 200);
  EXPECT_EQ(get("HTTP://127.0.0.1:8000/health?probe=1").status, 200);
  EXPECT_EQ(get("https://localhost").headers.at("etag"), get("/").headers.at("etag"));
  EXPECT_EQ(get("http://localhost?x").headers.at("etag"), get("/").headers.at("etag"));
  EXPECT_EQ(send("GET http://localhost/health HTTP/1.0\r\n\r\n").status, 200);
  // The target's host counts, not the Host header's.
  expect_error(get("http://evil.example/health"), 403, "", "");
  EXPECT_EQ(send("GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 200);
  expect_error(send("GET http://evil.example/health HTTP/1.0\r\n\r\n"), 403, "", "");
  for (const auto* target : {"http:///health", "http://user@localhost/health", "http://localhost:x/health"}) {
    EXPECT_EQ(get(target).status, 400) << target;
  }
}

TEST_F(ServerTest, HeadAndOptions) {
  start();
  TestClient client(port);
  client.send(get_text("/v1/models", "", "HEAD"));
  const TestResponse head = client.read_response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), std::to_string(get("/v1/models").body.size()));
  client.send(get_text("/v1/models", "", "OPTIONS"));
  const TestResponse options_answer = client.read_response();
  EXPECT_EQ(options_answer.status, 204);
  EXPECT_EQ(options_answer.headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_FALSE(options_answer.headers.contains("content-length"));
  client.send(get_text("/health"));
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(ServerTest, ContentTypes) {
  const auto with_type = [this](std::string_view header) {
    return send(fmt::format(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: 14\r\n\r\n{{\"prompt\":\"a\"}}", header));
  };
  EXPECT_EQ(with_type("Content-Type: application/json\r\n").status, 200);
  EXPECT_EQ(with_type("Content-Type: Application/JSON; charset=utf-8\r\n").status, 200);
  for (const auto* header : {"", "Content-Type: text/plain\r\n", "Content-Type: application/jsonx\r\n",
                             "Content-Type: application/json\r\nContent-Type: application/json\r\n",
                             "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"}) {
    expect_error(with_type(header), 415, "", "unsupported_media_type");
  }
}

TEST_F(ServerTest, RequestIds) {
  EXPECT_EQ(get("/health", "X-Request-Id: a.B-9_\r\n").headers.at("x-request-id"), "a.B-9_");
  EXPECT_EQ(get("/health", fmt::format("X-Request-Id: {}\r\n", std::string(128, 'a'))).headers.at("x-request-id"),
            std::string(128, 'a'));
  for (const std::string& bad :
       {std::string("a b"), std::string("\xe2\x80\xa8"), std::string(129, 'a'), std::string("<x>")}) {
    const std::string id = get("/health", fmt::format("X-Request-Id: {}\r\n", bad)).headers.at("x-request-id");
    EXPECT_EQ(id.size(), 32u);
  }
  EXPECT_NE(get("/health").headers.at("x-request-id"), get("/health").headers.at("x-request-id"));
}

// Authentication

TEST_F(ServerTest, EveryRouteNeedsAKeyButThePublicOnes) {
  options.api_key = {std::string(kKey), "other"};
  start();
  const Json index = get("/routes", bearer(kKey)).json();
  ASSERT_GE(index["routes"].size(), 11u);
  for (const Json& route : index["routes"]) {
    std::string path = route["path"];
    if (path.ends_with("*")) path.replace(path.size() - 1, 1, "fake");
    const bool is_public = path == "/health" || path == "/ping" || (path == "/" && route["method"] == "GET") ||
                           path == "/dashboard" || path.starts_with("/ui/") || path.starts_with("/docs") ||
                           path == "/openapi.json";
    const bool endless = path == "/events";
    const auto ask = [&](std::string_view headers) {
      const std::string all = std::string(headers) + (endless ? "X-Request-Timeout: 0.01\r\n" : "");
      return route["method"] == "POST" ? post(path, "{}", all) : get(path, all);
    };
    SCOPED_TRACE(path);
    EXPECT_NE(ask(bearer(kKey)).status, 401);
    EXPECT_NE(ask(bearer("other")).status, 401);
    EXPECT_NE(ask("authorization: bearer other\r\n").status, 401);
    if (is_public) {
      EXPECT_EQ(ask("").status, 200);
      continue;
    }
    EXPECT_NE(ask("X-Api-Key: other\r\n").status, 401);
    const TestResponse none = ask("");
    EXPECT_EQ(none.headers.at("www-authenticate"), "Bearer");
    const std::string twice = bearer(kKey) + bearer(kKey);
    for (const std::string& wrong :
         {std::string(), bearer("sk-test-key-1"), bearer(""), bearer("sk-Test-Key-"),
          std::string("Authorization: Basic other\r\n"), twice, std::string("X-Api-Key: oth\r\n")}) {
      EXPECT_EQ(ask(wrong).status, 401) << wrong;
    }
    if (path.starts_with("/v1/chat")) {
      expect_error(none, 401, "", "");
      expect_error(ask(bearer("sk-test-key-1")), 401, "", "invalid_api_key");
    }
    if (path != "/") {  // GET and HEAD of it are the page
      EXPECT_EQ(send(get_text(path, "", "HEAD"), true).status, 401);
    }
    EXPECT_EQ(send(get_text(path, "", "OPTIONS")).status, 401);
    EXPECT_EQ(send(fmt::format("GET {} HTTP/1.1\r\nHost: a/health?\r\n\r\n", path)).status, 400);
  }
  // Nothing is said about unknown paths either.
  for (const auto* path : {"//v1/models", "/v1/../health", "/%761/models", "/nothing", "http://localhost/v1/models",
                           "/health//", "/Health"}) {
    EXPECT_EQ(get(path).status, 401) << path;
  }
  EXPECT_EQ(get("/wrong", bearer(kKey)).status, 404);
}

TEST_F(ServerTest, KeysFromFileAndEnvironment) {
  const std::string file = ::testing::TempDir() + "/sluice_keys";
  std::ofstream(file) << "# keys\nfrom-file \r\n\nsecond\n";
  options.api_key_file = file;
  ::setenv("SLUICE_API_KEY", "from,env", 1);
  start();
  ::unsetenv("SLUICE_API_KEY");
  for (const auto* key : {"from-file", "second", "from,env"})
    EXPECT_EQ(get("/v1/models", bearer(key)).status, 200) << key;
  for (const auto* key : {"from", "env"}) EXPECT_EQ(get("/v1/models", bearer(key)).status, 401) << key;
  EXPECT_EQ(get("/v1/models", bearer("# keys")).status, 401);
  EXPECT_EQ(get("/v1/models").status, 401);
  stop();
  options.api_key_file = file + ".missing";
  EXPECT_THROW(Server(engine, options), Error);
  std::remove(file.c_str());
}

TEST_F(ServerTest, CacheSaltFollowsTheKey) {
  options.api_key = {"a", "b"};
  const auto salt = [this](std::string_view key, std::string_view more) {
    send(chat_text(more, bearer(key)));
    return engine.last_request().cache_salt;
  };
  const std::string of_a = salt("a", "");
  EXPECT_EQ(of_a.size(), 64u);
  EXPECT_EQ(salt("a", ""), of_a);
  EXPECT_NE(salt("b", ""), of_a);
  EXPECT_NE(salt("a", R"(,"cache_salt":"x")"), of_a);
  EXPECT_NE(salt("a", R"(,"cache_salt":"x")"), salt("b", R"(,"cache_salt":"x")"));
}

// Hosts and origins

TEST_F(ServerTest, ForeignHostsOnLoopback) {
  const auto with_host = [this](std::string_view host) {
    return send(fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", host));
  };
  for (const auto* host : {"localhost", "LOCALHOST:80", "127.0.0.1", "127.8.9.1:8000", "[::1]", "[::1]:1"}) {
    EXPECT_EQ(with_host(host).status, 200) << host;
  }
  for (const auto* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]"}) {
    const TestResponse refused = with_host(host);
    expect_error(refused, 403, "", "");
    EXPECT_NE(refused.body.find("--allowed-hosts"), std::string::npos);
  }
  for (const auto* host : {"a/health?", "a b", "", "user@localhost", "localhost:x", "[::1", "localhost:999999",
                           "127.0.0.1:99999", "localhost:65536"}) {
    const TestResponse response = with_host(host);
    expect_error(response, 400, "", "");
    EXPECT_EQ(response.headers.at("connection"), "close") << host;
  }
}

TEST_F(ServerTest, AllowedHosts) {
  const auto with_host = [this](std::string_view host) {
    return send(fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", host)).status;
  };
  options.allowed_hosts = {"Models.example:443", "other.example"};
  for (const auto* host : {"localhost", "models.example", "MODELS.example:8000", "other.example"}) {
    EXPECT_EQ(with_host(host), 200) << host;
  }
  EXPECT_EQ(with_host("models.example.evil"), 403);
  stop();
  options.allowed_hosts = {"*"};
  EXPECT_EQ(with_host("evil.example"), 200);
  EXPECT_EQ(with_host("a b"), 400);
  stop();
  options.host = "0.0.0.0";
  options.allowed_hosts = {};
  EXPECT_EQ(with_host("evil.example"), 200);
  stop();
  options.allowed_hosts = {"models.example"};
  EXPECT_EQ(with_host("models.example"), 200);
  EXPECT_EQ(with_host("evil.example"), 403);
}

TEST_F(ServerTest, CorsOnlyForAllowedOrigins) {
  const std::string preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n";
  for (const auto* origin : {"null", "https://app.example"}) {
    EXPECT_FALSE(get("/health", fmt::format("Origin: {}\r\n", origin)).headers.contains("access-control-allow-origin"));
  }
  stop();
  options.allowed_origins = {"https://app.example"};
  options.api_key = {"a"};
  const TestResponse allowed = send(get_text("/v1/models", preflight, "OPTIONS"));
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(allowed.headers.at("vary"), "Origin");
  EXPECT_EQ(get("/health", "Origin: https://app.example\r\n").headers.at("access-control-allow-origin"),
            "https://app.example");
  for (const auto* origin : {"null", "http://app.example", "https://app.example.evil", "https://APP.example"}) {
    const TestResponse refused = send(get_text(
        "/v1/models", fmt::format("Origin: {}\r\nAccess-Control-Request-Method: POST\r\n", origin), "OPTIONS"));
    EXPECT_EQ(refused.status, 401);
    EXPECT_FALSE(refused.headers.contains("access-control-allow-origin"));
  }
}

TEST_F(ServerTest, CorsForSeveralAndForAllOrigins) {
  const auto allowed = [this](std::string_view origin) {
    const TestResponse response = get("/health", fmt::format("Origin: {}\r\n", origin));
    const auto found = response.headers.find("access-control-allow-origin");
    return found == response.headers.end() ? "" : found->second;
  };
  options.allowed_origins = {"https://a.example", "http://b.example:8080"};
  for (const auto* origin : {"https://a.example", "http://b.example:8080"}) EXPECT_EQ(allowed(origin), origin);
  EXPECT_EQ(allowed("https://c.example"), "");
  stop();
  options.allowed_origins = {"localhost"};
  for (const auto* origin : {"http://localhost", "http://localhost:3000", "https://127.0.0.1:1", "http://[::1]:80"}) {
    EXPECT_EQ(allowed(origin), origin);
  }
  for (const auto* origin : {"http://localhost.evil.example", "http://evil.example", "null", "http://127.0.0.10"}) {
    EXPECT_EQ(allowed(origin), "");
  }
  stop();
  options.allowed_origins = {"*"};
  EXPECT_EQ(allowed("https://c.example"), "*");
  const TestResponse preflight = send(
      get_text("/v1/chat/completions",
               "Origin: https://c.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
               "authorization, content-type,x-stainless-lang,X-Stainless-Retry-Count, "
               "openai-organization,anthropic-version,x-evil\r\n",
               "OPTIONS"));
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"),
            "authorization, content-type, x-request-id, x-request-timeout, x-api-key, x-stainless-lang, "
            "x-stainless-retry-count, openai-organization, anthropic-version");
}

// Messages and limits

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  TestClient client(port);
  client.send(chat_text() + get_text("/health") + chat_text(R"(,"stream":true)") + get_text("/nothing") +
              get_text("/ping"));
  EXPECT_EQ(client.read_response().json()["object"], "chat.completion");
  EXPECT_EQ(client.read_response().json()["status"], "ok");
  EXPECT_EQ(sse_data(client.read_response().body).back(), "[DONE]");
  EXPECT_EQ(client.read_response().status, 404);
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(ServerTest, RefusedMessagesEndTheConnection) {
  start();
  const std::string canary = get_text("/v1/models");
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  struct Case {
    std::string text;
    int status;
    std::string code;
  };
  for (const Case& c :
       std::vector<Case>{{head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, ""},
                         {head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, ""},
                         {head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}X", 400, ""},
                         {"GET /health HTTP/1.1\r\n\r\n", 400, ""},
                         {"GET /health HTTP/1.1\nHost: localhost\n\n", 400, ""},
                         {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n", 414, "request_too_large"},
                         {"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(70000, 'a') + "\r\n\r\n", 431,
                          "request_too_large"},
                         {head + "Content-Length: 40000000\r\n\r\n", 413, "request_too_large"},
                         {head + "Expect: 100-continue\r\nContent-Length: 40000000\r\n\r\n", 413, "request_too_large"},
                         {"\x16\x03\x01\x02", 0, ""}}) {
    SCOPED_TRACE(c.text.substr(0, 200));
    TestClient client(port);
    client.send(c.text + canary);
    if (c.status == 0) {
      EXPECT_EQ(client.read_response().status, 400);
      continue;
    }
    const TestResponse response = client.read_response();
    expect_error(response, c.status, "", c.code);
    EXPECT_EQ(response.headers.at("connection"), "close");
    client.finish_writing();
    EXPECT_EQ(client.read_all(), "");  // the canary was not answered
  }
}

TEST_F(ServerTest, BodyLimitCountsChunkedBodiesToo) {
  options.max_body_bytes = 1000;
  start();
  const std::string body = R"({"prompt":")" + std::string(980, 'a') + "\"}";
  EXPECT_EQ(post("/tokenize", body).status, 200);
  expect_error(post("/tokenize", body + std::string(100, ' ')), 413, "", "request_too_large");
  TestClient client(port);
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n");
  for (int i = 0; i < 100; ++i) {
    if (!client.send("64\r\n" + std::string(100, ' ') + "\r\n")) break;
  }
  expect_error(client.read_response(), 413, "", "request_too_large");
}

TEST_F(ServerTest, ExpectContinue) {
  start();
  TestClient client(port);
  const std::string head =
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\nExpect: "
      "100-continue\r\n\r\n";
  client.send(fmt::format(fmt::runtime(head), "/tokenize"));
  EXPECT_EQ(client.read_response().status, 100);
  client.send(R"({"prompt":"a"})");
  EXPECT_EQ(client.read_response().status, 200);
  client.send(fmt::format(fmt::runtime(head), "/nothing"));
  const TestResponse refused = client.read_response();
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.headers.at("connection"), "close");
}

TEST_F(ServerTest, Http10) {
  start();
  TestClient client(port);
  client.send("GET /health HTTP/1.0\r\n\r\n");
  const TestResponse response = client.read_response();
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
  TestClient stream(port);
  const std::string body = R"({"model":"fake","prompt":"abc","stream":true})";
  stream.send(
      fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
  const TestResponse streamed = stream.read_response();
  EXPECT_FALSE(streamed.headers.contains("transfer-encoding"));
  EXPECT_EQ(sse_data(streamed.body).back(), "[DONE]");
}

TEST_F(ServerTest, HealthIsAnsweredWhenConnectionsAreFull) {
  options.max_connections = 2;
  engine.step_us = 1000;
  start();
  TestClient a(port), b(port);
  a.send(endless_text(true));
  b.send(endless_text(true));
  ASSERT_TRUE(eventually([&] { return engine.running() == 2; }));
  for (const auto* path : {"/health", "/ping", "/metrics"}) {
    const TestResponse answer = get(path);
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_EQ(answer.headers.at("connection"), "close");
  }
  const TestResponse refused = get("/v1/models");
  expect_error(refused, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  expect_error(chat(), 503, "", "server_is_overloaded", "service_unavailable_error");
  a.close();
  EXPECT_TRUE(eventually([&] { return get("/v1/models").status == 200; }));
}

TEST_F(ServerTest, TheLimitOnAllBodies) {
  options.max_body_bytes = 60'000;
  options.max_total_body_bytes = 100'000;
  start();
  const std::string body = R"({"prompt":")" + std::string(50'000, 'a') + "\"}";
  EXPECT_EQ(post("/tokenize", body).status, 200);
  const std::string text = post_text("/tokenize", body);
  const auto held = [this](size_t bytes) {
    return eventually([&] {
      return get("/metrics").body.find(fmt::format("\nhttp_request_body_bytes {}\n", bytes)) != std::string::npos;
    });
  };
  EXPECT_TRUE(held(0));
  TestClient a(port), b(port);
  a.send(text.substr(0, text.size() - 1));
  EXPECT_TRUE(held(body.size() - 1));
  b.send(text.substr(0, text.size() - body.size() + 40'000));
  EXPECT_TRUE(held(body.size() - 1 + 40'000));
  const TestResponse refused = post("/tokenize", body);
  expect_error(refused, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  a.send(text.substr(text.size() - 1));
  EXPECT_EQ(a.read_response().status, 200);
  b.close();
  EXPECT_TRUE(eventually([&] { return post("/tokenize", body).status == 200; }));
}

// Slow clients

TEST_F(ServerTest, SlowHeadersAndBodies) {
  options.header_timeout_ms = 150;
  options.body_timeout_ms = 150;
  options.keep_alive_timeout_ms = 100;
  start();
  TestClient header(port), body(port), silent(port), idle(port);
  header.send("GET /health HTTP/1.1\r\nHost: loc");
  body.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "14\r\n\r\n{\"pro");
  idle.send(get_text("/health"));
  EXPECT_EQ(idle.read_response().status, 200);
  expect_error(header.read_response(), 408, "", "timeout");
  expect_error(body.read_response(), 408, "", "timeout");
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_EQ(idle.read_all(), "");
  // A body that makes progress may take longer than the timeout.
  TestClient slow(port);
  slow.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n");
  for (const char c : std::string(R"({"prompt":"a"})")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    slow.send(std::string(1, c));
  }
  EXPECT_EQ(slow.read_response().status, 200);
}

TEST_F(ServerTest, AStreamNobodyReadsIsAbandoned) {
  options.body_timeout_ms = 300;
  engine.info().max_model_len = 10'000'000;
  start();
  TestClient client(port, 4096);
  client.send(endless_text(true));
  EXPECT_TRUE(eventually([&] { return engine.submitted == 1; }));
  EXPECT_TRUE(eventually([&] { return engine.cancelled == 1; }, 20'000));
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(ServerTest, SlowTemplatesDoNotHoldStreamsUp) {
  engine.step_us = 1000;
  start();
  TestClient stream(port);
  stream.send(endless_text(true));
  stream.read_until("\n\n");
  engine.render_ms = 400;
  TestClient slow(port);
  slow.send(chat_text());
  double worst = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  auto last = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < end) {
    stream.read_until("\n\n");
    const auto now = std::chrono::steady_clock::now();
    worst = std::max(worst, std::chrono::duration<double, std::milli>(now - last).count());
    last = now;
  }
  EXPECT_LT(worst, 200);
  EXPECT_EQ(get("/health").status, 200);
  stream.close();
  EXPECT_EQ(slow.read_response().status, 200);
}

// Cancellation and deadlines

TEST_F(ServerTest, ClientsThatLeaveCancel) {
  engine.step_us = 1000;
  start();
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      const int before = engine.cancelled;
      TestClient client(port);
      client.send(endless_text(stream));
      ASSERT_TRUE(eventually([&] { return engine.running() == 1; }));
      if (stream) client.read_until("\n\n");
      reset ? client.reset() : client.close();
      EXPECT_TRUE(eventually([&] { return engine.cancelled == before + 1 && engine.running() == 0; }))
          << stream << reset;
    }
  }
  // Bytes of a next request are no reason to cancel; the end behind them is.
  const int before = engine.cancelled;
  TestClient client(port);
  client.send(endless_text(false) + get_text("/health"));
  ASSERT_TRUE(eventually([&] { return engine.running() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(engine.cancelled, before);
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
  EXPECT_NE(get("/metrics").body.find("status=\"499\""), std::string::npos);
}

TEST_F(ServerTest, LongPromptsBehindAStreamAreAnswered) {
  engine.info().max_model_len = 100'000;
  start();
  TestClient client(port);
  const std::string prompt = post_text(
      "/v1/completions", fmt::format(R"({{"model":"fake","prompt":"{}","max_tokens":1}})", std::string(60'000, 'a')));
  engine.step_us = 1000;
  client.send(chat_text(R"(,"ignore_eos":true,"stream":true,"max_tokens":100)") + prompt + prompt);
  EXPECT_TRUE(client.read_response().body.ends_with("data: [DONE]\n\n"));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.read_response().json()["usage"]["prompt_tokens"], 60'001);
}

TEST_F(ServerTest, LeavingBehindManyPipelinedBytesCancels) {
  engine.step_us = 1000;
  start();
  TestClient client(port);
  client.send(endless_text(false) + std::string(80'000, '\n'));
  ASSERT_TRUE(eventually([&] { return engine.running() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.cancelled == 1 && engine.running() == 0; }));
}

TEST_F(ServerTest, LeavingWhileTheTemplateRuns) {
  engine.render_ms = 100;
  engine.step_us = 1000;
  start();
  TestClient client(port);
  client.send(endless_text(false));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.submitted == 1 && engine.running() == 0; }));
}

TEST_F(ServerTest, Deadlines) {
  engine.step_us = 1000;
  const TestResponse late = send(endless_text(false, "X-Request-Timeout: 0.05\r\n"));
  expect_error(late, 504, "", "deadline_exceeded", "server_error");
  const TestResponse streamed = send(endless_text(true, "X-Request-Timeout: 0.05\r\n"));
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(parse_json(sse_data(streamed.body).back())["error"]["code"], "deadline_exceeded");
  for (const auto* bad : {"0", "-1", "x", "1 2", "nan", "", "1e300"}) {
    expect_error(send(chat_text("", fmt::format("X-Request-Timeout: {}\r\n", bad))), 400, "", "");
  }
  stop();
  options.request_timeout_ms = 50;
  expect_error(send(endless_text(false, "X-Request-Timeout: 100\r\n")), 504, "", "deadline_exceeded", "server_error");
}

// Overload and the way down

TEST_F(ServerTest, OverloadIsRefusedBeforeAnyWork) {
  engine.is_overloaded = true;
  const TestResponse refused = chat();
  expect_error(refused, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(engine.tokenized, 0);
  EXPECT_EQ(get("/v1/models").status, 200);
  engine.is_overloaded = false;
  engine.refuse_submit = true;  // filled up in between
  expect_error(chat(), 503, "", "server_is_overloaded", "service_unavailable_error");
  expect_error(chat({{"stream", true}}), 503, "", "server_is_overloaded", "service_unavailable_error");
  engine.refuse_submit = false;
  EXPECT_EQ(chat().status, 200);
}

TEST_F(ServerTest, DrainFinishesWhatRuns) {
  engine.step_us = 2000;
  start();
  TestClient running(port), idle(port), waiting(port);
  idle.send(get_text("/health"));
  idle.read_response();
  waiting.send("GET /hea");
  running.send(chat_text(R"(,"stream":true,"ignore_eos":true,"max_tokens":200)"));
  running.read_until("\n\n");
  server->shutdown();
  EXPECT_TRUE(idle.closed_by_server());
  const TestResponse health = get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "draining");
  const TestResponse refused = chat();
  expect_error(refused, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_NE(running.read_until("data: [DONE]\n\n").find("[DONE]"), std::string::npos);
  join();
}

TEST_F(ServerTest, EndsWhenTheEngineFailed) {
  start();
  TestClient watcher(port);
  engine.failed = true;
  watcher.send(get_text("/health"));
  const TestResponse health = watcher.read_response();
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "failed");
  join();  // without a signal
}

TEST_F(ServerTest, DrainTimeoutAbortsWithAnError) {
  engine.step_us = 2000;
  options.shutdown_timeout_ms = 100;
  start();
  TestClient stream(port), whole(port);
  stream.send(endless_text(true));
  whole.send(endless_text(false));
  stream.read_until("\n\n");
  ASSERT_TRUE(eventually([&] { return engine.running() == 2; }));
  server->shutdown();
  const std::string rest = stream.read_all();
  EXPECT_NE(rest.find(R"(data: {"error":{"message":"The server is shutting down.")"), std::string::npos);
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
  expect_error(whole.read_response(), 503, "", "server_is_overloaded", "service_unavailable_error");
  join();
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

TEST_F(ServerTest, SignalsDrainThenAbort) {
  engine.step_us = 2000;
  options.shutdown_timeout_ms = 60'000;
  start();
  TestClient stream(port);
  stream.send(endless_text(true));
  stream.read_until("\n\n");
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return get("/health").status == 503; }));
  EXPECT_EQ(engine.running(), 1);
  ::kill(::getpid(), SIGTERM);
  EXPECT_NE(stream.read_all().find("\"error\""), std::string::npos);
  join();
}

TEST_F(ServerTest, HangupDrains) {
  EXPECT_EQ(get("/health").status, 200);  // signals are handled from now on
  ::kill(::getpid(), SIGHUP);
  join();
}

TEST_F(ServerTest, HangupIsIgnoredUnderNohup) {
  const auto before = ::signal(SIGHUP, SIG_IGN);
  EXPECT_EQ(get("/health").status, 200);
  ::kill(::getpid(), SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(get("/health").status, 200);
  ::signal(SIGHUP, before);
}

TEST_F(ServerTest, AStalledEngineDoesNotKeepTheServer) {
  engine.stalled = true;
  options.shutdown_timeout_ms = 50;
  start();
  TestClient client(port);
  client.send(endless_text(false));
  ASSERT_TRUE(eventually([&] { return engine.running() == 1; }));
  EXPECT_EQ(get("/health").status, 200);
  const auto begin = std::chrono::steady_clock::now();
  stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
}

// Load

TEST_F(ServerTest, ManyStreamsWithHostileNeighbours) {
  options.io_threads = 2;
  options.header_timeout_ms = 500;
  engine.step_us = 100;
  start();
  std::atomic<int> good{0}, bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        TestClient client(port);
        const int kind = (t + i) % 4;
        if (kind == 0) {  // leaves in the middle
          client.send(endless_text(true));
          client.read_until("\n\n");
          i % 2 == 0 ? client.reset() : client.close();
        } else if (kind == 1) {  // nonsense
          client.send(std::string(static_cast<size_t>(i * 37 % 300), static_cast<char>(i)) + "\r\n\r\n");
        } else {
          client.send(chat_text(kind == 2 ? R"(,"stream":true)" : ""));
          const TestResponse response = client.read_response();
          const bool whole =
              kind == 2 ? response.body.ends_with("data: [DONE]\n\n") && sse_data(response.body).size() == 12
                        : response.status == 200 && response.json()["choices"][0]["message"]["content"] == "user:hi|>";
          ++(whole ? good : bad);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(good, 160);
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

TEST_F(ServerTest, OptionsThatDoNotDo) {
  const auto fails = [this](auto change) {
    ServerOptions wrong = options;
    change(wrong);
    try {
      Server(engine, wrong);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(fails([](ServerOptions& o) { o.ssl_certfile = "a"; }).find("--ssl-keyfile"), std::string::npos);
  EXPECT_NE(fails([](ServerOptions& o) { o.ssl_certfile = o.ssl_keyfile = "/nowhere"; }).find("/nowhere"),
            std::string::npos);
  EXPECT_NE(fails([](ServerOptions& o) { o.port = 70000; }).find("--port"), std::string::npos);
  EXPECT_NE(fails([](ServerOptions& o) { o.io_threads = 0; }).find("--io-threads"), std::string::npos);
  EXPECT_NE(fails([](ServerOptions& o) { o.api_key = {""}; }).find("--api-key"), std::string::npos);
  EXPECT_EQ(fails([](ServerOptions& o) { o.io_threads = 100'000; }),
            "--io-threads: 100000 is out of range (expected 1 to 256)");
  EXPECT_EQ(fails([](ServerOptions& o) { o.worker_threads = -3; }),
            "--worker-threads: -3 is out of range (expected 0 to 256)");
  EXPECT_NE(fails([](ServerOptions& o) { o.max_total_body_bytes = 1000; }).find("--max-total-body-bytes: 1000 is less"),
            std::string::npos);
  EXPECT_EQ(fails([](ServerOptions& o) { o.allowed_hosts = {"a b"}; }),
            "--allowed-hosts: 'a b' is not a host name (expected HOST or '*')");
  EXPECT_EQ(fails([](ServerOptions& o) { o.allowed_origins = {"https://a/"}; }),
            "--allowed-origins: 'https://a/' is not an origin (expected SCHEME://HOST[:PORT], 'localhost' or '*')");
  start();
  EXPECT_NE(fails([this](ServerOptions& o) { o.port = port; }).find("cannot listen"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server_test
