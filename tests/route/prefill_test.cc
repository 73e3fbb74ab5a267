// Servers that compute prompts beside those that answer: both get the request, and none is lost with either.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "route/replica.h"
#include "route/route_server.h"
#include "sluice/error.h"
#include "stub_replica.h"

namespace sluice::route::prefill_test {
namespace {

using ::testing::HasSubstr;
using Request = StubReplica::Request;

class PrefillRoute : public RouteTest {
 protected:
  PrefillRoute() { options.prefill_min_bytes = 0; }

  StubReplica& add_prefill(StubReplica::Answer answer) {
    StubReplica& replica = add_to(options.prefill, std::move(answer));
    replica.health_body = R"({"status":"ok","kv_transfer":{"host":"10.0.0.7","port":5600}})";
    return replica;
  }
  StubReplica& add_decode(StubReplica::Answer answer) { return add_to(options.decode, std::move(answer)); }
};

StubReplica::Answer ok(std::string body = "{}") {
  return [body](StubReplica&, int fd, const Request&) { return StubReplica::answer(fd, 200, body); };
}

// Answers with what it got.
StubReplica::Answer repeat() {
  return [](StubReplica&, int fd, const Request& request) { return StubReplica::answer(fd, 200, request.body); };
}

TEST_F(PrefillRoute, BothServersGetTheRequest) {
  std::promise<Json> computed;
  add_prefill([&](StubReplica&, int fd, const Request& request) {
    EXPECT_THAT(request.head, HasSubstr("Authorization: Bearer key\r\n"));
    computed.set_value(parse_json(request.body));
    return StubReplica::answer(fd, 200, "{}");
  });
  add_decode(repeat());
  start();
  const Json decode = post(R"({"prompt":"p","max_tokens":9})", "Authorization: Bearer key\r\n").json();
  const Json prefill = computed.get_future().get();
  EXPECT_EQ(decode["prompt"], "p");
  EXPECT_EQ(decode["max_tokens"], 9);
  EXPECT_EQ(prefill["prompt"], "p");
  EXPECT_EQ(prefill["max_tokens"], 1);
  const Json& fetches = decode["kv_transfer_params"];
  EXPECT_EQ(fetches["remote_host"], "10.0.0.7");
  EXPECT_EQ(fetches["remote_port"], 5600);
  EXPECT_EQ(fetches["do_remote_prefill"], true);
  EXPECT_EQ(prefill["kv_transfer_params"]["do_remote_decode"], true);
  EXPECT_EQ(fetches["transfer_id"], prefill["kv_transfer_params"]["transfer_id"]);
  EXPECT_EQ(metric("sluice:route_prefill_total"), 1);
  EXPECT_EQ(metric("sluice:route_prefill_failed_total"), 0);
}

TEST_F(PrefillRoute, OtherRequestsGoToADecodeServerAlone) {
  StubReplica& prefill = add_prefill(ok());
  add_decode(repeat());
  options.prefill_min_bytes = 40;
  start();
  EXPECT_EQ(post(R"({"prompt":"short"})").body, R"({"prompt":"short"})");
  const std::string named = R"({"prompt":"of a client that knows","kv_transfer_params":{}})";
  EXPECT_EQ(post(named).body, named);
  EXPECT_EQ(send(post_text("/v1/embeddings", named)).body, named);
  EXPECT_EQ(get("/v1/models").status, 200);
  EXPECT_EQ(prefill.requests, 0);
}

TEST_F(PrefillRoute, WithoutAPrefillServerTheOtherOneComputes) {
  StubReplica& prefill = add_prefill(ok());
  add_decode(repeat());
  start();
  prefill.die();
  ASSERT_TRUE(wait_healthy(1));
  EXPECT_EQ(post(R"({"prompt":"p"})").body, R"({"prompt":"p"})");
}

// The decode server waits for keys and values that never come; it gets the request again, without them.
TEST_F(PrefillRoute, AFailedPrefillSendsTheRequestAnew) {
  for (const int status : {0, 400, 503}) {
    options.prefill.clear();
    options.decode.clear();
    add_prefill([status](StubReplica&, int fd, const Request&) {
      return status != 0 && StubReplica::answer(fd, status, "{}");
    });
    StubReplica& decode = add_decode([](StubReplica& self, int fd, const Request& request) {
      if (!parse_json(request.body).contains("kv_transfer_params")) return StubReplica::answer(fd, 200, request.body);
      self.wait_for_client_to_leave(fd);
      return false;
    });
    start();
    EXPECT_EQ(post(R"({"prompt":"p"})").body, R"({"prompt":"p"})");
    EXPECT_TRUE(eventually([&] { return decode.left == 1; }));
    EXPECT_EQ(metric("sluice:route_prefill_failed_total"), 1);
    EXPECT_EQ(metric("sluice:route_retries_total"), 0);
    stop();
    replicas.clear();
  }
}

TEST_F(PrefillRoute, AnAnswerThatHasBegunIsNotDisturbed) {
  std::promise<void> begun;
  auto has_begun = begun.get_future().share();
  add_prefill([has_begun](StubReplica&, int, const Request&) {
    has_begun.wait();
    return false;
  });
  StubReplica& decode = add_decode([&](StubReplica&, int fd, const Request&) {
    StubReplica::start_events(fd);
    StubReplica::chunk(fd, "data: one\n\n");
    begun.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    StubReplica::chunk(fd, "data: [DONE]\n\n");
    return StubReplica::send(fd, "0\r\n\r\n");
  });
  start();
  EXPECT_EQ(post(R"({"prompt":"p","stream":true})").body, "data: one\n\ndata: [DONE]\n\n");
  EXPECT_EQ(decode.requests, 1);
  EXPECT_TRUE(eventually([&] { return metric("sluice:route_prefill_failed_total") == 1; }));
}

TEST_F(PrefillRoute, ALostDecodeServerIsReplaced) {
  add_prefill(ok());
  add_decode([](StubReplica&, int, const Request&) { return false; });
  StubReplica& other = add_decode(repeat());
  start();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(post(fmt::format(R"({{"prompt":"p{}"}})", i)).json()["prompt"], fmt::format("p{}", i));
  }
  EXPECT_EQ(other.requests, 4);
}

TEST_F(PrefillRoute, WithoutADecodeServerAPrefillServerAnswersAlone) {
  StubReplica& prefill = add_prefill(repeat());
  StubReplica& decode = add_decode(ok());
  start();
  decode.die();
  ASSERT_TRUE(wait_healthy(1));
  EXPECT_EQ(post(R"({"prompt":"p"})").body, R"({"prompt":"p"})");
  EXPECT_EQ(prefill.requests, 1);
}

TEST_F(PrefillRoute, AClientThatLeavesCancelsBoth) {
  const auto wait = [](StubReplica& self, int fd, const Request&) {
    self.wait_for_client_to_leave(fd);
    return false;
  };
  StubReplica& prefill = add_prefill(wait);
  StubReplica& decode = add_decode(wait);
  start();
  {
    TestClient client(port);
    client.send(post_text("/v1/completions", R"({"prompt":"p"})"));
    ASSERT_TRUE(eventually([&] { return prefill.requests == 1 && decode.requests == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return prefill.left == 1 && decode.left == 1; }));
}

TEST(PrefillOptions, AreChecked) {
  const auto message = [](const RouteOptions& options) -> std::string {
    try {
      replicas_of(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  RouteOptions o;
  o.prefill = {"http://a:1"};
  EXPECT_EQ(message(o), "--decode: at least one is needed (expected http://HOST:PORT)");
  o.decode = {"http://a:1"};
  EXPECT_EQ(message(o), "--decode: 'http://a:1' is given twice");
  o.decode = {"http://b:1/path"};
  EXPECT_EQ(message(o), "--decode: 'http://b:1/path' has a path (expected http://HOST:PORT)");
  o.decode = {"http://b:1"};
  EXPECT_EQ(message(o), "no error");
  o.replica = {"http://c:1"};
  EXPECT_EQ(message(o), "--replica: cannot be used with --prefill and --decode");
}

}  // namespace
}  // namespace sluice::route::prefill_test
