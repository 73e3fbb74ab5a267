// Memory that runs out while tokens become text: whichever allocation fails, every choice of that request ends once,
// with an error, and the next request is served.
#include "engine/frontend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/collect.h"

namespace {

std::atomic<int64_t> allocations_left{-1};  // before the one that fails; negative: none fails
thread_local bool exempt = false;           // the test itself does not run out of memory

bool fails_now() {
  if (exempt || allocations_left.load(std::memory_order_relaxed) < 0) return false;
  return allocations_left.fetch_sub(1) == 0;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return fails_now() ? nullptr : std::malloc(size);
}
[[gnu::noinline]] void* operator new(size_t size) {
  void* memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sluice {
namespace {

constexpr int kChoices = 2;

class FrontendTest : public ::testing::Test {
 protected:
  struct Ends {
    std::array<int, kChoices> finished{};
    std::array<std::string, kChoices> text{};
    int errors = 0;
    bool after_end = false;
  };

  // Serves one request of two choices: the first ends with a stop string, the second with the engine's end.
  Ends serve(Frontend& frontend, RequestId id) {
    Ends ends;
    std::atomic<bool> last{false};
    Request request{.prompt = {1}, .n = kChoices};
    request.sampling.stop = std::vector<std::string>{"stop here"};
    frontend.add(id, std::move(request), [&](Event event) {
      exempt = true;
      const auto index = static_cast<size_t>(event.index);
      ends.after_end |= ends.finished[index] > 0;
      ends.text[index] += event_text(event);
      if (event.finish) {
        ++ends.finished[index];
        ends.errors += event.finish->reason == FinishReason::kError ? 1 : 0;
      }
      exempt = false;
      if (event.last) last = true;
    });
    for (const int index : {0, 1}) {
      for (const TokenId token : tokenizer_->encode("go on and on, then stop here, or later", false)) {
        std::vector<SequenceEvent> events(1);
        events[0].request = id;
        events[0].index = index;
        events[0].tokens.push_back(token);
        frontend.post(std::move(events));
      }
    }
    for (const int index : {0, 1}) {
      std::vector<SequenceEvent> events(1);
      events[0].request = id;
      events[0].index = index;
      events[0].finish = std::make_unique<Finish>();
      frontend.post(std::move(events));
    }
    for (int i = 0; i < 5000 && !last; ++i) std::this_thread::sleep_for(std::chrono::microseconds(200));
    EXPECT_TRUE(last) << "the request did not end";
    return ends;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::open(testing::demo_model());
};

TEST_F(FrontendTest, AFailedAllocationEndsOneRequest) {
  exempt = true;
  EngineMetrics metrics("test", 100);
  Frontend frontend(*tokenizer_, metrics, [](RequestId, int) { std::free(std::malloc(1)); });
  RequestId id = 0;
  int failed = 0;
  for (int64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 5'000);
    allocations_left = n;
    const Ends ends = serve(frontend, ++id);
    const bool fired = allocations_left.exchange(-1) < 0;
    EXPECT_FALSE(ends.after_end);
    for (const int finished : ends.finished) EXPECT_EQ(finished, 1);
    failed += ends.errors > 0 ? 1 : 0;
    if (!fired) {
      EXPECT_EQ(ends.errors, 0);
      EXPECT_EQ(ends.text[0], "go on and on, then ");
      break;
    }
    EXPECT_EQ(frontend.active(), 0);
  }
  EXPECT_GT(failed, 10);
  const Ends ends = serve(frontend, ++id);
  EXPECT_EQ(ends.errors, 0);
  EXPECT_EQ(metrics.errors_in_a_row(), 0) << "the last request succeeded";
}

TEST_F(FrontendTest, CountsFaultsInARow) {
  exempt = true;
  EngineMetrics metrics("test", 100);
  Frontend frontend(*tokenizer_, metrics, [](RequestId, int) {});
  const auto end = [&](RequestId id, Finish finish) {
    std::atomic<bool> last{false};
    frontend.add(id, {.prompt = {1}}, [&](Event event) { last = event.last; });
    std::vector<SequenceEvent> events(1);
    events[0].request = id;
    events[0].finish = std::make_unique<Finish>(std::move(finish));
    frontend.post(std::move(events));
    while (!last) std::this_thread::sleep_for(std::chrono::microseconds(200));
  };
  end(1, {.reason = FinishReason::kError});
  end(2, {.reason = FinishReason::kError});
  EXPECT_EQ(metrics.errors_in_a_row(), 2);
  end(3, {.reason = FinishReason::kError, .message = "bad grammar", .param = "response_format"});
  EXPECT_EQ(metrics.errors_in_a_row(), 2) << "the request's own fault";
  end(4, {.reason = FinishReason::kAbort});
  EXPECT_EQ(metrics.errors_in_a_row(), 2) << "a client that left says nothing";
  end(5, {.reason = FinishReason::kLength});
  EXPECT_EQ(metrics.errors_in_a_row(), 0);
}

}  // namespace
}  // namespace sluice
