// Tests the router in front of stub replicas: passing on, retries, failures, backpressure, cancellation, drain.
#include "route/route_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "server/gate.h"
#include "sluice/error.h"
#include "stub_replica.h"

namespace sluice::route {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Request = StubReplica::Request;

// Answers with its name and what it got.
StubReplica::Answer echo(const std::string& name) {
  return [name](StubReplica&, int fd, const Request& request) {
    return StubReplica::answer(fd, 200, dump_json({{"name", name}, {"head", request.head}, {"body", request.body}}),
                               "X-Extra: 1\r\n");
  };
}

// Closes the connection without a byte.
bool hang_up(StubReplica&, int, const Request&) { return false; }

TEST_F(RouteTest, PassesRequestsAndAnswersOn) {
  add(echo("a"));
  start();
  const TestResponse response = send(post_text("/v1/completions?x=1&y", R"({"prompt": "p"})",
                                               "Authorization: Bearer key\r\nX-Request-Id: my-id\r\nX-Some: thing\r\n"
                                               "Connection: keep-alive, X-Some\r\n"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("x-extra"), "1");
  EXPECT_EQ(response.headers.at("x-request-id"), "my-id");
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const Json got = response.json();
  EXPECT_EQ(got["body"], R"({"prompt": "p"})");
  const std::string head = got["head"];
  EXPECT_THAT(head, HasSubstr("POST /v1/completions?x=1&y HTTP/1.1\r\n"));
  EXPECT_THAT(head, HasSubstr(fmt::format("Host: 127.0.0.1:{}\r\n", replicas[0]->port())));
  EXPECT_THAT(head, HasSubstr("Authorization: Bearer key\r\n"));
  EXPECT_THAT(head, HasSubstr("X-Request-Id: my-id\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 15\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("X-Some")));  // Connection names it
  EXPECT_THAT(head, Not(HasSubstr("keep-alive")));
  EXPECT_EQ(get("/v1/models").json()["body"], "");
}

TEST_F(RouteTest, ReusesConnectionsToReplicas) {
  StubReplica& replica = add(echo("a"));
  options.health_interval_ms = 60'000;
  start();
  const int before = replica.connections;
  TestClient client(port);
  for (int i = 0; i < 10; ++i) {
    client.send(post_text("/v1/completions", "{}"));
    EXPECT_EQ(client.read_response().status, 200);
  }
  EXPECT_EQ(replica.connections, before + 1);
  EXPECT_EQ(metric("sluice:route_idle_connections"), 1);
}

TEST_F(RouteTest, AnIdleConnectionThatTheReplicaClosedIsNoFailure) {
  StubReplica& replica = add([](StubReplica&, int fd, const Request&) {
    StubReplica::answer(fd, 200, "{}");
    return false;
  });
  start();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(post("{}").status, 200);
  EXPECT_EQ(replica.requests, 5);
  EXPECT_EQ(metric("sluice:route_retries_total"), 0);
  EXPECT_EQ(metric("sluice:route_replica_refused_total"), 0);
}

TEST_F(RouteTest, StreamsEventsAsTheyCome) {
  std::promise<void> go_on;
  auto may_go_on = go_on.get_future().share();
  add([may_go_on](StubReplica&, int fd, const Request&) {
    StubReplica::start_events(fd);
    StubReplica::chunk(fd, "data: one\n\n");
    may_go_on.wait();
    StubReplica::chunk(fd, "data: t");
    StubReplica::chunk(fd, "wo\n\ndata: [DONE]\n\n");
    return StubReplica::send(fd, "0\r\n\r\n");
  });
  start();
  TestClient client(port);
  client.send(post_text("/v1/completions", "{}"));
  EXPECT_THAT(client.read_until("data: one\n\n"), HasSubstr("Content-Type: text/event-stream\r\n"));
  go_on.set_value();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("data: [DONE]\n\n"));
  client.send(get_text("/health"));  // the connection stays
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(RouteTest, EventsThatComeInPiecesAreTheSameBytes) {
  add([](StubReplica&, int fd, const Request&) {
    StubReplica::start_events(fd);
    const std::string text = "event: a\r\ndata: one\r\n\r\ndata: two\n\ndata: [DONE]\n\n";
    for (const char c : text) StubReplica::chunk(fd, std::string(1, c));
    return StubReplica::send(fd, "0\r\n\r\n");
  });
  start();
  EXPECT_EQ(post("{}").body, "event: a\r\ndata: one\r\n\r\ndata: two\n\ndata: [DONE]\n\n");
}

// Lines of compressed events cannot be told apart, so nothing is held back.
TEST_F(RouteTest, CompressedEventsPassAtOnce) {
  std::promise<void> go_on;
  auto may_go_on = go_on.get_future().share();
  add([may_go_on](StubReplica&, int fd, const Request&) {
    StubReplica::send(fd,
                      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: br\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n");
    StubReplica::chunk(fd, "no end of a line");
    may_go_on.wait();
    return false;
  });
  start();
  TestClient client(port);
  client.send(post_text("/v1/completions", "{}"));
  EXPECT_THAT(client.read_until("no end of a line"), HasSubstr("Content-Encoding: br\r\n"));
  go_on.set_value();
  EXPECT_THAT(client.read_all(), Not(HasSubstr("error")));
}

TEST_F(RouteTest, HeadHasNoBody) {
  add([](StubReplica&, int fd, const Request& request) {
    EXPECT_TRUE(request.head.starts_with("HEAD "));
    return StubReplica::send(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n");
  });
  start();
  TestClient client(port);
  client.send(get_text("/v1/models", "", "HEAD"));
  EXPECT_EQ(client.read_response(true).status, 200);
  client.send(get_text("/health"));
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(RouteTest, LargeBodiesBothWays) {
  add([](StubReplica&, int fd, const Request& request) { return StubReplica::answer(fd, 200, request.body); });
  options.max_body_bytes = 4 << 20;
  start();
  std::string body(3 << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 1000) body[i] = static_cast<char>('a' + i / 1000 % 26);
  EXPECT_EQ(post(body).body, body);
  EXPECT_EQ(post(std::string(5 << 20, 'x')).status, 413);
}

TEST_F(RouteTest, PrefixesGoToTheirReplica) {
  for (const char* name : {"a", "b", "c"}) add(echo(name));
  start();
  std::set<std::string> homes;
  for (char prompt = 'A'; prompt < 'J'; ++prompt) {
    const std::string body = R"({"prompt": ")" + std::string(1000, prompt) + "\"}";
    const std::string home = post(body).json()["name"];
    homes.insert(home);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(post(body).json()["name"], home);
  }
  EXPECT_GE(homes.size(), 2u);  // ports are random, and so are the scores
  EXPECT_EQ(metric("sluice:route_prefix_hits_total"), 9 * 5);
  EXPECT_EQ(metric("sluice:route_latency_seconds_count"), 9 * 6);
}

TEST_F(RouteTest, SessionsOfHeadersAndBodies) {
  for (const char* name : {"a", "b", "c"}) add(echo(name));
  start();
  std::set<std::string> homes;
  for (int i = 0; i < 12; ++i) {
    const std::string home = post("{}", fmt::format("X-Session-Id: s{}\r\n", i)).json()["name"];
    homes.insert(home);
    for (int n = 0; n < 3; ++n) {
      EXPECT_EQ(post("{}", fmt::format("X-Session-Id: s{}\r\n", i)).json()["name"], home);
    }
  }
  EXPECT_GE(homes.size(), 2u);  // ports are random, and so are the scores
  const std::string home = post(R"({"user": "u"})").json()["name"];
  for (int n = 0; n < 6; ++n) EXPECT_EQ(post(R"({"user": "u", "prompt": "other"})").json()["name"], home);
}

// Failures before the first byte

TEST_F(RouteTest, AReplicaThatHangsUpIsReplacedByAnother) {
  options.policy = "round-robin";
  StubReplica& bad = add(hang_up);
  add(echo("good"));
  start();
  for (int i = 0; i < 6; ++i) {
    const TestResponse response = post(R"({"prompt": "p"})");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.json()["body"], R"({"prompt": "p"})");
  }
  EXPECT_GE(bad.requests, 3);
  EXPECT_EQ(metric("sluice:route_retries_total"), bad.requests);
  EXPECT_EQ(metric("sluice:route_replica_refused_total"), bad.requests);
}

TEST_F(RouteTest, RetriesAreBounded) {
  options.max_retries = 1;
  for (int i = 0; i < 4; ++i) add(hang_up);
  start();
  const TestResponse response = post("{}");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  EXPECT_EQ(response.json()["error"]["code"], "server_is_overloaded");
  int requests = 0;
  for (const auto& replica : replicas) requests += replica->requests;
  EXPECT_EQ(requests, 2);
}

TEST_F(RouteTest, NoRetryAfterAPartOfAHead) {
  options.policy = "round-robin";
  const auto cut = [](StubReplica&, int fd, const Request&) {
    StubReplica::send(fd, "HTTP/1.1 200 OK\r\nContent-");
    return false;
  };
  StubReplica &a = add(cut), &b = add(cut);
  start();
  const TestResponse response = post("{}");
  EXPECT_EQ(response.status, 502);
  EXPECT_EQ(response.json()["error"]["type"], "server_error");
  EXPECT_EQ(a.requests + b.requests, 1);
}

TEST_F(RouteTest, AnswersThatAreNotHttpAre502) {
  add([](StubReplica&, int fd, const Request&) { return StubReplica::send(fd, "hello\r\n\r\n"); });
  start();
  EXPECT_EQ(post("{}").status, 502);
}

TEST_F(RouteTest, A503IsTriedElsewhereAndPassedOnIfAllSaySo) {
  options.policy = "round-robin";
  const auto busy = [](StubReplica&, int fd, const Request&) {
    return StubReplica::answer(fd, 503, R"({"error": "busy"})", "Retry-After: 7\r\n");
  };
  add(busy);
  StubReplica& good = add(echo("good"));
  start();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(post("{}").status, 200);
  good.die();
  ASSERT_TRUE(wait_healthy(1));
  const TestResponse response = post("{}");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.headers.at("retry-after"), "7");
  EXPECT_EQ(response.body, R"({"error": "busy"})");
}

TEST_F(RouteTest, ErrorsOfAReplicaAreNotTriedElsewhere) {
  const auto fails = [](StubReplica&, int fd, const Request&) { return StubReplica::answer(fd, 500, "{}"); };
  StubReplica &a = add(fails), &b = add(fails);
  start();
  EXPECT_EQ(post("{}").status, 500);
  EXPECT_EQ(a.requests + b.requests, 1);
}

TEST_F(RouteTest, ASilentReplicaIsATimeout) {
  options.replica_timeout_ms = 200;
  add([](StubReplica& replica, int fd, const Request&) {
    replica.wait_for_client_to_leave(fd);
    return false;
  });
  start();
  EXPECT_EQ(post("{}").status, 504);
  EXPECT_TRUE(eventually([&] { return replicas[0]->left == 1; }));
}

// Failures after the first byte

TEST_F(RouteTest, AStreamOfALostReplicaEndsWithAnErrorEvent) {
  add([](StubReplica&, int fd, const Request&) {
    StubReplica::start_events(fd);
    StubReplica::chunk(fd, "data: {\"text\": \"one\"}\n\ndata: {\"text\": \"tw");
    return false;
  });
  options.policy = "round-robin";
  StubReplica& other = add([](StubReplica&, int fd, const Request&) { return StubReplica::answer(fd, 200, "{}"); });
  start();
  for (int i = 0; i < 4; ++i) {
    const TestResponse response = post("{}");
    if (response.body == "{}") continue;
    const auto events = sse_data(response.body);
    ASSERT_EQ(events.size(), 2u) << response.body;
    EXPECT_EQ(events[0], R"({"text": "one"})");
    const Json error = parse_json(events[1])["error"];
    EXPECT_EQ(error["type"], "server_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("lost"));
    EXPECT_EQ(response.headers.at("transfer-encoding"), "chunked");
  }
  EXPECT_EQ(other.requests, 2);  // none was sent again
  EXPECT_EQ(metric("sluice:route_replica_broken_total"), 2);
  EXPECT_EQ(metric("sluice:route_retries_total"), 0);
}

// A session's turns, its end and its prefetch go to one replica, which has its cached tokens, whatever the prompts are.
TEST_F(RouteTest, ASessionStaysWithItsReplica) {
  for (const char* name : {"a", "b", "c"}) add(echo(name));
  start();
  std::set<std::string> homes;
  for (int i = 0; i < 16; ++i) {
    const std::string id = fmt::format("agent {}", i);
    const auto turn = [&](char prompt) {
      const Json body = {{"session_id", id}, {"prompt", std::string(1000, prompt)}};
      return post(dump_json(body)).json()["name"].get<std::string>();
    };
    const std::string home = turn('x');
    homes.insert(home);
    EXPECT_EQ(turn('y'), home);
    const std::string path = fmt::format("/v1/sessions/agent%20{}", i);
    EXPECT_EQ(send(post_text(path + "/prefetch", "")).json()["name"], home);
    EXPECT_EQ(send("DELETE " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").json()["name"], home);
  }
  EXPECT_GE(homes.size(), 2u);  // ports are random, and so are the scores
}

TEST_F(RouteTest, ErrorEventsHaveTheFormOfTheApi) {
  add([](StubReplica&, int fd, const Request&) {
    StubReplica::start_events(fd);
    StubReplica::chunk(fd, "event: a\ndata: {}\n");
    return false;
  });
  start();
  EXPECT_THAT(send(post_text("/v1/messages", "{}")).body,
              HasSubstr("event: a\ndata: {}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{"));
  EXPECT_THAT(send(post_text("/v1/responses", "{}")).body, HasSubstr("\n\nevent: error\ndata: {\"type\":\"error\","));
}

TEST_F(RouteTest, AnotherAnswerOfALostReplicaIsCut) {
  add([](StubReplica&, int fd, const Request&) {
    StubReplica::send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
    return false;
  });
  start();
  TestClient client(port);
  client.send(post_text("/v1/completions", "{}"));
  EXPECT_THAT(client.read_all(), Not(HasSubstr("\r\n0\r\n")));
}

TEST_F(RouteTest, ADeadReplicaLeavesAndComesBack) {
  StubReplica& first = add(echo("a"));
  add(echo("b"));
  const int first_port = first.port();
  start();
  const std::string body = R"({"prompt": ")" + std::string(600, 'x') + "\"}";
  first.die();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(post(body).status, 200);
  ASSERT_TRUE(wait_healthy(1));
  EXPECT_GE(metric("sluice:route_replica_left_total"), 1);
  EXPECT_EQ(metric("sluice:route_replica_healthy"), 1);
  StubReplica again(echo("a"), first_port);
  ASSERT_TRUE(wait_healthy(2));
  // It has lost its cache: its prefixes stay where they went.
  for (int i = 0; i < 4; ++i) EXPECT_EQ(post(body).json()["name"], "b");
  again.die();
}

TEST_F(RouteTest, A503OfHealthLeavesTheRotation) {
  StubReplica& draining = add(echo("a"));
  add(echo("b"));
  start();
  draining.health = 503;
  ASSERT_TRUE(wait_healthy(1));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(post("{}").json()["name"], "b");
  draining.health = 404;  // a server without /health is taken for healthy
  ASSERT_TRUE(wait_healthy(2));
}

TEST_F(RouteTest, WithoutAHealthyReplica) {
  StubReplica& replica = add(echo("a"));
  replica.health = 503;
  start(0);
  const TestResponse response = post("{}");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  EXPECT_EQ(response.json()["error"]["type"], "service_unavailable_error");
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(replica.requests, 0);
}

// A frozen process keeps its connections open: only its silence shows.
TEST_F(RouteTest, ALostReplicaEndsItsRequests) {
  options.health_timeout_ms = 50;
  StubReplica& replica = add([](StubReplica& stub, int fd, const Request&) {
    stub.wait_for_client_to_leave(fd);
    return false;
  });
  start();
  TestClient client(port);
  client.send(post_text("/v1/completions", "{}"));
  ASSERT_TRUE(eventually([&] { return replica.requests == 1; }));
  replica.silent = true;
  EXPECT_EQ(client.read_response().status, 503);
  EXPECT_TRUE(eventually([&] { return replica.left == 1; }));
  replica.silent = false;
  EXPECT_TRUE(wait_healthy(1));
}

// Clients

TEST_F(RouteTest, AClientThatLeavesCancelsItsRequest) {
  add([](StubReplica& replica, int fd, const Request& request) {
    if (request.path() == "/v1/completions") {
      StubReplica::start_events(fd);
      StubReplica::chunk(fd, "data: one\n\n");
    }
    replica.wait_for_client_to_leave(fd);
    return false;
  });
  start();
  for (const char* path : {"/v1/completions", "/wait"}) {
    TestClient client(port);
    client.send(post_text(path, "{}"));
    ASSERT_TRUE(eventually([&] { return metric("sluice:route_requests_in_flight") == 1; }));
    const int before = replicas[0]->left;
    client.close();
    EXPECT_TRUE(eventually([&] { return replicas[0]->left == before + 1; })) << path;
    EXPECT_TRUE(eventually([&] { return metric("sluice:route_requests_in_flight") == 0; }));
  }
}

TEST_F(RouteTest, ASlowClientSlowsTheReplicaDown) {
  constexpr size_t kPieces = 1024, kPiece = 64 << 10;  // far more than all buffers together
  std::atomic<size_t> sent{0};
  add([&](StubReplica&, int fd, const Request&) {
    StubReplica::start_events(fd);
    const std::string piece = "data: " + std::string(kPiece - 8, 'x') + "\n\n";
    while (sent < kPieces && StubReplica::chunk(fd, piece)) ++sent;
    return StubReplica::send(fd, "0\r\n\r\n");
  });
  start();
  TestClient client(port, 64 << 10);
  client.send(post_text("/v1/completions", "{}"));
  size_t last = 0;
  do {  // until nothing moves any more
    last = sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } while (sent != last);
  EXPECT_LT(sent, kPieces / 2);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(client.read_response().body.size(), kPieces * kPiece);
  EXPECT_EQ(sent, kPieces);
}

TEST_F(RouteTest, ForeignHostsAreRefusedOnLoopback) {
  add(echo("a"));
  start();
  const std::string evil = "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n";
  EXPECT_EQ(send(evil).status, 403);
  stop();
  options.allowed_hosts = {"evil.example"};
  start();
  EXPECT_EQ(send(evil).status, 200);
}

// The end

TEST_F(RouteTest, DrainsRunningRequests) {
  std::promise<void> go_on;
  auto may_go_on = go_on.get_future().share();
  add([may_go_on](StubReplica&, int fd, const Request&) {
    may_go_on.wait();
    return StubReplica::answer(fd, 200, "{}");
  });
  start();
  TestClient client(port), idle(port);
  client.send(post_text("/v1/completions", "{}"));
  ASSERT_TRUE(eventually([&] { return metric("sluice:route_requests_in_flight") == 1; }));
  router->shutdown();
  TestClient late(port);
  late.send(get_text("/health"));
  const TestResponse health = late.read_response();
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "draining");
  EXPECT_EQ(post("{}").status, 503);
  EXPECT_TRUE(idle.closed_by_server());
  go_on.set_value();
  EXPECT_EQ(client.read_response().status, 200);
  join();
}

TEST_F(RouteTest, AbortsWhatDoesNotFinishInTime) {
  options.shutdown_timeout_ms = 100;
  add([](StubReplica& replica, int fd, const Request& request) {
    if (request.path() == "/v1/completions") {
      StubReplica::start_events(fd);
      StubReplica::chunk(fd, "data: one\n\n");
    }
    replica.wait_for_client_to_leave(fd);
    return false;
  });
  start();
  TestClient stream(port), waiting(port);
  stream.send(post_text("/v1/completions", "{}"));
  stream.read_until("data: one\n\n");
  waiting.send(post_text("/wait", "{}"));
  ASSERT_TRUE(eventually([&] { return metric("sluice:route_requests_in_flight") == 2; }));
  router->shutdown();
  EXPECT_THAT(stream.read_all(), HasSubstr("data: {\"error\":{\"message\":\"The server is shutting down.\""));
  EXPECT_EQ(waiting.read_response().status, 503);
  join();
}

TEST_F(RouteTest, EndsWithOpenRequestsAndConnections) {
  add([](StubReplica& replica, int fd, const Request&) {
    replica.wait_for_client_to_leave(fd);
    return false;
  });
  options.shutdown_timeout_ms = 0;
  start();
  TestClient client(port);
  client.send(post_text("/v1/completions", "{}"));
  ASSERT_TRUE(eventually([&] { return metric("sluice:route_requests_in_flight") == 1; }));
  stop();
}

TEST(RouteOptionsTest, AreChecked) {
  const auto param_of = [](auto change) -> std::string {
    RouteOptions options{.port = 0, .replica = {"http://127.0.0.1:1"}};
    change(options);
    try {
      RouteServer server(options);
    } catch (const Error& e) {
      return e.param;
    }
    return "none";
  };
  EXPECT_EQ(param_of([](RouteOptions&) {}), "none");
  EXPECT_EQ(param_of([](RouteOptions& o) { o.replica = {}; }), "replica");
  EXPECT_EQ(param_of([](RouteOptions& o) { o.policy = "x"; }), "policy");
  EXPECT_EQ(param_of([](RouteOptions& o) { o.max_retries = -1; }), "max-retries");
  EXPECT_EQ(param_of([](RouteOptions& o) { o.ssl_certfile = "x"; }), "ssl-certfile");
  EXPECT_EQ(param_of([](RouteOptions& o) { o.allowed_hosts = {"a b"}; }), "allowed-hosts");
}

}  // namespace
}  // namespace sluice::route
