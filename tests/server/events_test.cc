// /events: snapshots of the metrics, and every way in which such a stream ends.
#include <gmock/gmock.h>

#include <list>

#include "server/event_streams.h"
#include "server/server_fixture.h"

namespace sluice::server::events_test {
namespace {

using ::testing::HasSubstr;

// A client of the stream, which reads its chunks one by one.
class Watcher {
 public:
  explicit Watcher(int port, std::string_view path = "/events?interval_ms=100", std::string_view headers = "")
      : client(port) {
    client.send(get_text(path, headers));
    head = client.read_until("\r\n\r\n");
  }

  // Null at the end of the stream, or of the connection.
  Json next() {
    const std::string size = client.read_until("\r\n");
    if (size.empty() || size == "0\r\n") {
      ended_well = size == "0\r\n";
      return nullptr;
    }
    const std::string chunk = client.read_until("\n\n\r\n");
    EXPECT_TRUE(chunk.starts_with("data: ")) << chunk;
    return parse_json(std::string_view(chunk).substr(6));
  }
  // Reads on to the end of the stream.
  bool ends() {
    while (!next().is_null()) {
    }
    return ended_well;
  }

  TestClient client;
  std::string head;
  bool ended_well = false;
};

class EventsTest : public ServerTest {
 protected:
  double metric(const std::string& name) {
    const std::string text = get("/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
};

// Every metric twice, as from two replicas.
class TwoReplicas final : public FakeEngine {
  std::vector<MetricFamily> metrics() const override {
    std::vector<MetricFamily> families = FakeEngine::metrics();
    families.push_back(
        {.name = "vllm:kv_cache_usage_perc", .help = "Usage.", .samples = {{.labels = {}, .value = 0.5}}});
    for (MetricFamily& family : families) {
      MetricSample other = family.samples[0];
      family.samples[0].labels.emplace_back("engine", "0");
      other.labels.emplace_back("engine", "1");
      family.samples.push_back(std::move(other));
    }
    families.back().samples[1].value = 0.25;
    return families;
  }
};

TEST_F(EventsTest, ReplicasAreJoined) {
  TwoReplicas replicas;
  server = std::make_unique<Server>(replicas, options);
  port = server->port();
  thread = std::thread([this] { server->run(); });
  Watcher watcher(port);
  const Json metrics = watcher.next()["models"][0]["metrics"];
  EXPECT_EQ(metrics["vllm:prompt_tokens_total"], 14);
  EXPECT_EQ(metrics["vllm:time_to_first_token_seconds"]["counts"], Json({4, 2, 8}));
  EXPECT_EQ(metrics["vllm:time_to_first_token_seconds"]["sum"], 25);
  EXPECT_EQ(metrics["vllm:kv_cache_usage_perc"], 0.375);
  stop();
}

TEST_F(EventsTest, SnapshotsFollowEachOther) {
  start();
  Watcher watcher(port);
  EXPECT_THAT(watcher.head, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(watcher.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(watcher.head, HasSubstr("Cache-Control: no-cache\r\n"));
  EXPECT_THAT(watcher.head, HasSubstr("X-Accel-Buffering: no\r\n"));
  const Json first = watcher.next();
  ASSERT_EQ(first["models"].size(), 1u) << first;
  EXPECT_EQ(first["models"][0]["name"], "fake");
  const Json& metrics = first["models"][0]["metrics"];
  EXPECT_EQ(metrics["vllm:num_requests_running"], 0);
  EXPECT_EQ(metrics["vllm:prompt_tokens_total"], 7);
  EXPECT_EQ(metrics["vllm:time_to_first_token_seconds"],
            Json({{"bounds", {0.5, 1.0}}, {"counts", {2, 1, 4}}, {"sum", 12.5}}));
  engine.stalled = true;
  TestClient working(port);
  working.send(post_text("/v1/completions", R"({"prompt":"abc"})"));
  Json later = watcher.next();
  for (int i = 0; i < 50 && later["models"][0]["metrics"]["vllm:num_requests_running"] != 1; ++i)
    later = watcher.next();
  EXPECT_EQ(later["models"][0]["metrics"]["vllm:num_requests_running"], 1);
  EXPECT_GT(later["time"].get<double>(), first["time"].get<double>());
  engine.stalled = false;
}

TEST_F(EventsTest, IntervalsAreKept) {
  start();
  Watcher watcher(port, "/events?interval_ms=300");
  watcher.next();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(watcher.next().is_null());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(took.count(), 1.0);
  EXPECT_LT(took.count(), 5.0);
}

TEST_F(EventsTest, IntervalsHaveBounds) {
  for (const char* bad : {"99", "60001", "-1", "abc", "1e3", "100x", "99999999999"}) {
    expect_error(get(fmt::format("/events?interval_ms={}", bad)), 400, "interval_ms", "invalid_value");
  }
  EXPECT_THAT(get("/events?interval_ms=5").body, HasSubstr("an integer from 100 to 60000"));
}

TEST_F(EventsTest, NeedsAKey) {
  options.api_key = {"secret"};
  expect_error(get("/events"), 401, "", "");
  Watcher watcher(port, "/events", "Authorization: Bearer secret\r\n");
  EXPECT_FALSE(watcher.next().is_null());
}

TEST_F(EventsTest, HeadHasNoBody) {
  start();
  TestClient client(port);
  client.send(get_text("/events", "", "HEAD"));
  const TestResponse head = client.read_response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.headers.at("content-type"), HasSubstr("text/event-stream"));
  client.send(get_text("/health"));
  EXPECT_EQ(client.read_response().status, 200) << "the connection is usable";
}

TEST_F(EventsTest, ManyStreamsGetEverySnapshotAndThereIsALimit) {
  start();
  std::list<Watcher> watchers;
  for (size_t i = 0; i < EventStreams::kMost; ++i) watchers.emplace_back(port);
  for (int round = 0; round < 3; ++round) {
    for (Watcher& watcher : watchers) ASSERT_FALSE(watcher.next().is_null());
  }
  const TestResponse refused = get("/events");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("64 event streams"));
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  // One leaves, and there is a place again.
  watchers.pop_back();
  const auto taken = [&] {
    watchers.emplace_back(port);
    if (watchers.back().head.starts_with("HTTP/1.1 200")) return true;
    watchers.pop_back();
    return false;
  };
  EXPECT_TRUE(eventually(taken));
}

TEST_F(EventsTest, AClientThatLeavesIsForgotten) {
  start();
  for (int i = 0; i < 3; ++i) {
    Watcher watcher(port);
    watcher.next();
    if (i == 1) watcher.client.reset();
    if (i == 2) watcher.client.finish_writing();
  }
  EXPECT_TRUE(eventually([&] { return metric("http_connections") == 1; }));
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(EventsTest, StreamsEndWhenTheServerDoes) {
  options.shutdown_timeout_ms = 60'000;
  start();
  Watcher watcher(port), slow(port, "/events?interval_ms=60000");
  EXPECT_FALSE(watcher.next().is_null());
  const auto begin = std::chrono::steady_clock::now();
  server->shutdown();
  EXPECT_TRUE(watcher.ends());
  EXPECT_TRUE(slow.ends());
  join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(EventsTest, NoStreamBeginsWhileTheServerEnds) {
  options.shutdown_timeout_ms = 60'000;
  start();
  engine.stalled = true;
  TestClient working(port), late(port);
  working.send(post_text("/v1/completions", R"({"prompt":"abc"})"));
  EXPECT_TRUE(eventually([&] { return engine.running() == 1; }));
  late.send("GET /events HTTP/1.1\r\n");  // it has begun, and is not closed as idle
  EXPECT_TRUE(eventually([&] { return metric("http_connections") == 3; }));
  server->shutdown();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  late.send("Host: localhost\r\n\r\n");
  const TestResponse refused = late.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("shutting down"));
  engine.stalled = false;
  EXPECT_EQ(working.read_response().status, 200);
}

TEST_F(EventsTest, ADeadlineEndsAStream) {
  start();
  Watcher watcher(port, "/events?interval_ms=100", "X-Request-Timeout: 0.5\r\n");
  EXPECT_TRUE(watcher.ends());
  EXPECT_EQ(metric("http_connections"), 2) << "the client's connection stays open";
}

TEST_F(EventsTest, StreamsCountAsConnections) {
  options.max_connections = 2;
  start();
  Watcher one(port), two(port);
  EXPECT_FALSE(one.next().is_null());
  EXPECT_FALSE(two.next().is_null());
  EXPECT_EQ(get("/events").status, 503);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_FALSE(one.next().is_null());
}

}  // namespace
}  // namespace sluice::server::events_test
