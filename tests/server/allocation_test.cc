// Memory that runs out while a request is served: whichever allocation fails, only that request ends.
#include <cstdlib>
#include <new>

#include "server/server_fixture.h"

namespace {

std::atomic<int64_t> allocations_left{-1};  // before the one that fails; negative: none fails
thread_local bool exempt = false;           // the test and the engine: only threads of the server run out of memory

bool fails_now() {
  if (exempt || allocations_left.load(std::memory_order_relaxed) < 0) return false;
  return allocations_left.fetch_sub(1) == 0;
}

void* allocate(size_t size) { return fails_now() ? nullptr : std::malloc(size); }

}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  void* memory = allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// Asio allocates its handlers with this function.
extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept {
  void* memory = nullptr;
  if (fails_now() || ::posix_memalign(&memory, alignment, size) != 0) return nullptr;
  return memory;
}

// The JSON library's constructors leak what they have built so far when an allocation in them fails; nothing outside
// the library can release it. LeakSanitizer calls this function where it runs, and else nobody does.
extern "C" const char* __lsan_default_suppressions() { return "leak:nlohmann::json"; }

namespace sluice {
namespace {

class AllocationTest : public ServerTest {
 protected:
  // Every allocation of the server fails once, while a client sends `text`.
  void fail_each(const std::string& text) {
    exempt = true;
    engine.submit({.prompt = {1}}, [](Event) { exempt = true; });  // on the engine's thread
    ASSERT_TRUE(eventually([&] { return engine.running() == 0; }));
    start();
    EXPECT_EQ(get("/health").status, 200);
    int answered = 0, refused = 0, cut = 0;
    for (int64_t n = 0;; ++n) {
      SCOPED_TRACE(n);
      allocations_left = n;
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
      const bool fired = allocations_left.exchange(-1) < 0;
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

TEST_F(AllocationTest, Tokenize) { fail_each(post_text("/tokenize", R"({"prompt":"abc"})", "Connection: close\r\n")); }

TEST_F(AllocationTest, SeveralThreads) {
  options.io_threads = 4;
  fail_each(post_text("/v1/completions", R"({"model":"fake","prompt":"abc","n":2})", "Connection: close\r\n"));
}

}  // namespace
}  // namespace sluice
