// Connections of the HTTP server: clients that leave in every state, and what a connection costs and is given.
#include "server/http/connection.h"

#include <sys/resource.h>

#include <algorithm>
#include <ostream>

#include "server/http/http_fixture.h"

namespace sluice::server::connection_test {
namespace {

// Clients that leave

enum class Leaving { kFin, kReset, kHalfClose };

struct LeavingCase {
  std::string path;
  size_t waiting;  // bytes that the client has sent behind its request
  Leaving leaving;
};

void PrintTo(const LeavingCase& c, std::ostream* out) { *out << c.path << " " << c.waiting; }

std::string name_of(const ::testing::TestParamInfo<LeavingCase>& info) {
  constexpr const char* kNames[] = {"fin", "reset", "half_close"};
  return fmt::format("{}_{}_bytes_{}", info.param.path.substr(1), info.param.waiting,
                     kNames[static_cast<int>(info.param.leaving)]);
}

std::vector<LeavingCase> leaving_cases() {
  std::vector<LeavingCase> out;
  for (const char* path : {"/wait", "/big", "/stream"}) {
    for (const size_t waiting : {size_t{0}, size_t{1}, size_t{64 << 10}, size_t{200 << 10}, size_t{2 << 20}}) {
      for (const Leaving leaving : {Leaving::kFin, Leaving::kReset, Leaving::kHalfClose}) {
        out.push_back({path, waiting, leaving});
      }
    }
  }
  return out;
}

class LeavingTest : public HttpTest, public ::testing::WithParamInterface<LeavingCase> {};

TEST_P(LeavingTest, EndsTheRequest) {
  const LeavingCase& c = GetParam();
  if (c.waiting > (1 << 20)) options.body_timeout = std::chrono::milliseconds(300);
  start();
  TestClient client(port);
  client.send_what_fits(post_text(c.path, "x") + post_text("/next", std::string(c.waiting, 'y')).substr(0, c.waiting));
  ASSERT_TRUE(soon([&] { return handler.started == 1; }));
  if (c.path == "/stream") client.read_until("first");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the server reads what it wants of the waiting bytes
  ASSERT_EQ(server->connections(), 1);
  switch (c.leaving) {
    case Leaving::kFin:
      client.close();
      break;
    case Leaving::kReset:
      client.reset();
      break;
    case Leaving::kHalfClose:
      client.finish_writing();
      // A whole answer still arrives; an answer that is not there yet is given up.
      if (c.path == "/big") {
        EXPECT_EQ(client.read_response().body.size(), PathHandler::kBigBytes);
      }
      EXPECT_TRUE(client.closed_by_server(3000));
      client.close();
  }
  if (c.path != "/big") {
    EXPECT_TRUE(soon([&] { return handler.abandoned == handler.started; }, 3000));
  }
  EXPECT_TRUE(soon([&] { return server->connections() == 0; }, 3000));
  EXPECT_GE(handler.finished, handler.started);  // more: the next request may have begun
}

INSTANTIATE_TEST_SUITE_P(All, LeavingTest, ::testing::ValuesIn(leaving_cases()), name_of);

TEST_F(HttpTest, RequestsBehindALongAnswerAreServed) {
  start();
  TestClient client(port);
  const std::string body(60'000, 'a');
  client.send(post_text("/big", "") + post_text("/x", body) + post_text("/y", body) + post_text("/z", body));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(client.read_response().body.size(), PathHandler::kBigBytes);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_response().body, body);
}

// The client must not take the rest for the whole.
TEST_F(HttpTest, AStreamThatLostAPartIsCut) {
  start();
  TestClient client(port);
  client.send(post_text("/lost", "x"));
  EXPECT_EQ(client.read_response(false, 2000).status, 0);
  EXPECT_TRUE(client.closed_by_server(100));
}

TEST_F(HttpTest, TheEndOfTheServerAbandonsRequests) {
  start();
  TestClient a(port), b(port);
  a.send(post_text("/wait", ""));
  b.send(post_text("/stream", "") + std::string(100'000, '\n'));
  ASSERT_TRUE(soon([&] { return handler.started == 2; }));
  stop();
  EXPECT_EQ(handler.abandoned, 2);
  EXPECT_EQ(handler.finished, 2);
}

// Slow bodies

TEST_F(HttpTest, BodiesNeedARate) {
  options.min_body_rate = 1000;
  options.body_rate_grace = std::chrono::milliseconds(200);
  start();
  TestClient slow(port), fast(port);
  const std::string text = post_text("/x", std::string(100'000, 'a'));
  const size_t head = text.size() - 100'000;
  slow.send(text.substr(0, head));
  fast.send(text.substr(0, head));
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < 20; ++i) {  // 20 bytes per 20 ms: 1000 per second; 2 bytes per 20 ms: 100 per second
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    slow.send("aa");
    fast.send(std::string(100, 'a'));
  }
  EXPECT_EQ(slow.read_response().status, 408);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  fast.send(std::string(100'000 - 2000, 'a'));
  EXPECT_EQ(fast.read_response().status, 200);
}

TEST_F(HttpTest, BodiesHaveATotalTime) {
  options.min_body_rate = 0;
  options.body_total_timeout = std::chrono::milliseconds(200);
  start();
  TestClient client(port);
  const std::string text = post_text("/x", std::string(100'000, 'a'));
  client.send(text.substr(0, 50'000));
  for (size_t i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    client.send("a");
  }
  EXPECT_EQ(client.read_response().status, 408);
}

// Memory of bodies

TEST_F(HttpTest, BodiesShareABudget) {
  options.total_body_bytes = 100'000;
  start();
  const std::string large = post_text("/wait", std::string(90'000, 'a'));
  TestClient holder(port), counted(port), chunked(port);
  holder.send(large);
  ASSERT_TRUE(soon([&] { return handler.started == 1; }));
  counted.send(large);
  EXPECT_EQ(counted.read_response().status, 503);
  chunked.send("POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.send("4e20\r\n" + std::string(20'000, 'a') + "\r\n");
  EXPECT_EQ(chunked.read_response().status, 503);
  TestClient small(port);
  small.send(post_text("/x", "abc"));
  EXPECT_EQ(small.read_response().status, 200);
  handler.release();
  TestClient next(port);
  next.send(large);
  EXPECT_TRUE(soon([&] { return handler.started == 3; }));
}

TEST_F(HttpTest, BytesReadAheadCountAsBodies) {
  options.total_body_bytes = 100'000;
  start();
  TestClient client(port);
  client.send(post_text("/wait", ""));
  ASSERT_TRUE(soon([&] { return handler.started == 1; }));
  client.send(std::string(90'000, 'a'));
  TestClient other(port);
  EXPECT_TRUE(soon([&] {
    TestClient probe(port);
    probe.send(post_text("/x", std::string(50'000, 'a')));
    return probe.read_response().status == 503;
  }));
  client.close();
  EXPECT_TRUE(soon([&] {
    TestClient probe(port);
    probe.send(post_text("/x", std::string(50'000, 'a')));
    return probe.read_response().status == 200;
  }));
}

// Full servers

bool answers(TestClient& client) {
  client.send(post_text("/x", "abc"));
  return client.read_response(false, 2000).body == "abc";
}

TEST_F(HttpTest, TheLongestIdleConnectionGivesWay) {
  options.max_connections = 3;
  start();
  TestClient a(port), b(port), c(port);
  for (TestClient* client : {&a, &b, &c}) EXPECT_TRUE(answers(*client));
  EXPECT_TRUE(answers(a));  // now b has been idle longest
  TestClient d(port);
  EXPECT_TRUE(answers(d));
  EXPECT_TRUE(b.closed_by_server(2000));
  EXPECT_TRUE(answers(a));
  EXPECT_TRUE(answers(c));
  // One that does not finish its header gives way, too; one with a request does not.
  TestClient e(port);  // takes the place of d
  EXPECT_TRUE(d.closed_by_server(2000));
  e.send("GET / HTTP/1.1\r\nHos");
  a.send(post_text("/wait", ""));
  ASSERT_TRUE(soon([&] { return handler.started == 8; }));
  TestClient f(port), g(port);  // take the places of c and e
  EXPECT_TRUE(answers(f));
  EXPECT_TRUE(answers(g));
  EXPECT_TRUE(e.closed_by_server(2000));
  EXPECT_EQ(handler.abandoned, 0);
}

TEST_F(HttpTest, AFullServerAnswersEssentialRequestsOnly) {
  options.max_connections = 2;
  start();
  TestClient a(port), b(port);
  a.send(post_text("/wait", ""));
  b.send(post_text("/wait", ""));
  ASSERT_TRUE(soon([&] { return handler.started == 2; }));
  std::vector<std::unique_ptr<TestClient>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<TestClient>(port));
  for (int i = 0; i < 5; ++i) {
    TestClient probe(port);
    probe.send(get_text("/health"));
    EXPECT_EQ(probe.read_response().status, 200);
  }
  TestClient other(port);
  other.send(get_text("/x"));
  const TestResponse refused = other.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(handler.abandoned, 0);
}

TEST_F(HttpTest, AnAddressHasALimit) {
  options.max_connections_per_address = 2;
  start();
  TestClient a(port), b(port), c(port);
  EXPECT_TRUE(answers(a));
  EXPECT_TRUE(answers(b));
  EXPECT_FALSE(answers(c));
  TestClient probe(port);
  probe.send(get_text("/health"));
  EXPECT_EQ(probe.read_response().status, 200);
  a.close();
  EXPECT_TRUE(soon([&] {
    TestClient next(port);
    return answers(next);
  }));
}

TEST_F(HttpTest, ManyIdleConnections) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  // Both ends are in this process. No limit per address: loopback.
  const int count = std::min<int>(10'000, static_cast<int>(std::min<rlim_t>(limit.rlim_max, 1 << 20)) / 2 - 200);
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<TestClient>(port));
    ASSERT_TRUE(clients.back()->connected()) << i;
  }
  EXPECT_TRUE(soon([&] { return server->connections() == count; }));
  for (int i = 0; i < count; i += 1000) EXPECT_TRUE(answers(*clients[static_cast<size_t>(i)])) << i;
}

TEST(ConnectionTable, NetworksOfAddresses) {
  const auto network = [](const char* text) {
    return ConnectionTable::network_of(boost::asio::ip::make_address(text));
  };
  EXPECT_EQ(network("10.1.2.3"), network("::ffff:10.1.2.3"));
  EXPECT_NE(network("10.1.2.3"), network("10.1.2.4"));
  EXPECT_EQ(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::7"));
  EXPECT_NE(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
}

TEST(ConnectionTable, RemoteAddressesHaveHalfOfTheConnections) {
  using Place = ConnectionTable::Place;
  ConnectionTable table({.connections = 4, .reserve = 1});
  std::vector<std::unique_ptr<ConnectionTable::Entry>> entries;
  const auto connect = [&](const char* text) {
    const auto address = boost::asio::ip::make_address(text);
    const Place place = table.place_for(address);
    if (place != Place::kNone) {
      entries.push_back(std::make_unique<ConnectionTable::Entry>(nullptr, place, ConnectionTable::network_of(address)));
      table.add(*entries.back());
      table.set_waiting(*entries.back(), false);  // a request is in progress
    }
    return place;
  };
  EXPECT_EQ(connect("10.0.0.1"), Place::kNormal);
  EXPECT_EQ(connect("10.0.0.1"), Place::kNormal);
  EXPECT_EQ(connect("10.0.0.1"), Place::kAddressReserve);
  EXPECT_EQ(connect("10.0.0.1"), Place::kNone);  // the reserve is used up
  EXPECT_EQ(connect("127.0.0.1"), Place::kNormal);
  EXPECT_EQ(connect("127.0.0.1"), Place::kNormal);
  EXPECT_EQ(connect("127.0.0.1"), Place::kNone);
  EXPECT_EQ(table.open(), 5);
  for (const auto& entry : entries) table.remove(*entry);
  EXPECT_EQ(table.open(), 0);
  EXPECT_EQ(connect("10.0.0.1"), Place::kNormal);
  table.remove(*entries.back());
}

// Their threads may be late to remove them.
TEST(ConnectionTable, ConnectionsThatAreBeingClosedHaveNoPlace) {
  using Place = ConnectionTable::Place;
  ConnectionTable table({.connections = 2, .reserve = 0});
  const auto address = boost::asio::ip::make_address("127.0.0.1");
  std::vector<std::unique_ptr<ConnectionTable::Entry>> entries;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(table.place_for(address), Place::kNormal);
    entries.push_back(
        std::make_unique<ConnectionTable::Entry>(nullptr, Place::kNormal, ConnectionTable::network_of(address)));
    table.add(*entries.back());
    table.set_waiting(*entries.back(), false);
  }
  EXPECT_EQ(table.place_for(address), Place::kNone);
  table.set_closing(*entries[0]);
  EXPECT_EQ(table.closing(), 1);
  EXPECT_EQ(table.place_for(address), Place::kNormal);
  table.set_waiting(*entries[0], false);  // a request began before
  EXPECT_EQ(table.closing(), 0);
  EXPECT_EQ(table.place_for(address), Place::kNone);
  table.set_closing(*entries[0]);
  table.set_waiting(*entries[0], true);  // it would be closed twice
  table.remove(*entries[0]);
  EXPECT_EQ(table.closing(), 0);
  EXPECT_EQ(table.open(), 1);
  EXPECT_EQ(table.place_for(address), Place::kNormal);
  table.remove(*entries[1]);
  EXPECT_EQ(table.open(), 0);
}

}  // namespace
}  // namespace sluice::server::connection_test
