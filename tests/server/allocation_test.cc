// Memory that runs out while a request is served: whichever allocation fails, only that request ends.
#include "server/allocations.h"
#include "server/server_fixture.h"

namespace sluice::allocation_test {
namespace {

class AllocationTest : public ServerTest {
 protected:
  // Every allocation of the server fails once, while a client sends `text`.
  void fail_each(const std::string& text) {
    Allocations::exempt = true;
    engine.submit({.prompt = {1}}, [](Event) { Allocations::exempt = true; });  // on the engine's thread
    ASSERT_TRUE(eventually([&] { return engine.running() == 0; }));
    start();
    EXPECT_EQ(get("/health").status, 200);
    int answered = 0, refused = 0, cut = 0;
    for (int64_t n = 0;; ++n) {
      SCOPED_TRACE(n);
      Allocations::left = n;
      {
        TestClient client(port);
        client.send(text);
        const TestResponse response = client.read_response(false, 2000);
        const bool whole = response.status == 200;
        EXPECT_TRUE(whole || response.status == 0 || response.status == 503) << response.status << response.body;
        ++(whole ? answered : response.status == 503 ? refused : cut);
        if (response.status == 0) {
          EXPECT_TRUE(client.closed_by_server(100));
        }
      }
      const bool fired = Allocations::left.exchange(-1) < 0;
      ASSERT_TRUE(eventually([&] { return engine.running() == 0; }));
      ASSERT_EQ(get("/health").status, 200);
      if (!fired) break;
      ASSERT_LT(n, 20'000);
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(cut, 0);
    EXPECT_TRUE(eventually([&] { return get("/metrics").body.find("\nhttp_connections 1\n") != std::string::npos; }));
    stop();
  }
};

TEST_F(AllocationTest, Completion) {
  fail_each(post_text("/v1/completions", R"({"model":"fake","prompt":"abc"})", "Connection: close\r\n"));
}

TEST_F(AllocationTest, Stream) {
  fail_each(post_text("/v1/chat/completions",
                      R"({"model":"fake","stream":true,"messages":[{"role":"user","content":"hi"}]})",
                      "Connection: close\r\n"));
}

TEST_F(AllocationTest, StoredAnswer) {
  fail_each(post_text("/v1/chat/completions",
                      R"({"model":"fake","store":true,"messages":[{"role":"user","content":"hi"}]})",
                      "Connection: close\r\n"));
}

TEST_F(AllocationTest, Tokenize) { fail_each(post_text("/tokenize", R"({"prompt":"abc"})", "Connection: close\r\n")); }

// A server without memory for a while still notices later that the engine failed.
TEST_F(AllocationTest, WatchingGoesOn) {
  Allocations::exempt = true;
  std::atomic<bool> ended{false};
  engine.submit({.prompt = {1}}, [](Event) { Allocations::exempt = true; });  // on the engine's thread
  ASSERT_TRUE(eventually([&] { return engine.running() == 0; }));
  server = std::make_unique<Server>(engine, options);
  thread = std::thread([&] {
    server->run();
    ended = true;
  });
  port = server->port();
  EXPECT_EQ(get("/health").status, 200);
  Allocations::none_left = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  Allocations::none_left = false;
  EXPECT_EQ(get("/health").status, 200);
  engine.failed = true;
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
  stop();
}

// The end of a server waits for the memory that it needs.
TEST_F(AllocationTest, ShutdownGoesOn) {
  Allocations::exempt = true;
  int64_t n = 0;
  for (bool fired = true; fired; ++n) {
    SCOPED_TRACE(n);
    engine.failed = false;
    start();
    EXPECT_EQ(get("/health").status, 200);
    Allocations::left = n;
    engine.failed = true;
    join();
    fired = Allocations::left.exchange(-1) < 0;
    server.reset();
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(n, 1);
}

TEST_F(AllocationTest, SeveralThreads) {
  options.io_threads = 4;
  fail_each(post_text("/v1/completions", R"({"model":"fake","prompt":"abc","n":2})", "Connection: close\r\n"));
}

}  // namespace
}  // namespace sluice::allocation_test
