// A failed allocation ends one request, not the process: every large allocation that serving a request makes on its
// thread fails once. Small ones never fail here, because the JSON library allocates in its destructors.
#include <cstdlib>
#include <new>

#include "base/registry.h"
#include "server/api.h"
#include "server/server_fixture.h"

// GCC takes the inlined free() below for a mismatch with the operator new that it belongs to.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {

thread_local int allocations_left = -1;  // below 0: none fails

constexpr size_t kLarge = 512;  // bytes

bool fails_now(size_t size) { return size >= kLarge && allocations_left >= 0 && allocations_left-- == 0; }

}  // namespace

void* operator new(size_t size) {
  if (fails_now(size)) throw std::bad_alloc();
  void* memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size > 0 ? size : 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sluice::server {
namespace {

// Keeps the status of the answer; runs tasks at once.
class StatusReply final : public HttpReply {
 public:
  void send(HttpResponse response) override { status = response.status; }
  void start_stream(HttpResponse head) override { status = head.status; }
  void write(std::string) override {}
  void end_stream(bool) override {}
  void run(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    task();
  }
  void on_abandoned(std::function<void()>) override {}

  std::atomic<int> status{0};

 private:
  std::recursive_mutex mutex_;
};

// Serves the body once for each of its allocations.
void fail_each_allocation(std::string_view name, const std::string& body) {
  FakeEngine engine;
  Api api(Models::single(engine, {"fake"}), {});
  int served = 0, refused = 0;
  for (int n = 0; served < 3 && n < 2000; ++n) {
    const auto reply = std::make_shared<StatusReply>();
    const Caller caller{.request_id = "a request id that is longer than a short string"};
    allocations_left = n;
    try {
      api.serve(*Registry<EndpointInfo>::find(name), body, caller, reply);
    } catch (...) {
      allocations_left = -1;
      FAIL() << name << ": an exception left serve() at allocation " << n;
    }
    allocations_left = -1;
    ASSERT_TRUE(eventually([&] { return reply->status != 0; })) << name << ": no answer at allocation " << n;
    if (reply->status == 200) ++served;
    if (reply->status == 503) ++refused;
    ASSERT_TRUE(reply->status == 200 || reply->status == 503) << name << ": " << reply->status << " at " << n;
  }
  EXPECT_EQ(served, 3) << name;
  EXPECT_GT(refused, 5) << name;
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; })) << name << ": a request was left at the engine";
}

TEST(AllocationFailure, EndsOneRequest) {
  const std::string text(1000, 'a');
  fail_each_allocation("chat", R"({"model":"fake","messages":[{"role":"user","content":")" + text +
                                   R"("}],"unknown":1,"stop":")" + text + "b\"}");
  fail_each_allocation("completions", R"({"model":"fake","prompt":[")" + text + "\",\"" + text +
                                          R"("],"n":2,"echo":true,"logprobs":1})");
  fail_each_allocation("tokenize", R"({"prompt":")" + text + R"(","return_token_strs":true})");
}

}  // namespace
}  // namespace sluice::server
