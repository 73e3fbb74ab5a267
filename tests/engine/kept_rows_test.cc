// Rows of the prefix cache that are kept outside of it: answers stay the same, and prompts are found again.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "engine/collect.h"
#include "sluice/engine.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::kept_rows_test {
namespace {

using namespace testing;  // engine/collect.h

EngineOptions options() {
  EngineOptions o;
  o.model = testing::demo_model();
  o.max_model_len = 512;
  o.max_num_seqs = 8;
  o.kv_cache_memory_bytes = 4 << 20;  // a few prompts
  o.threads = 2;
  o.deterministic = true;
  return o;
}

Request request_of(unsigned seed, int length = 200) {
  std::mt19937 random(seed);
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(300 + random() % 1000));
  request.sampling.max_tokens = 8;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  return request;
}

// Other prompts take all blocks.
void forget_blocks(Engine& engine) {
  Collector collector(engine);
  for (unsigned seed = 1000; seed < 1040; ++seed) collector.submit(request_of(seed));
  collector.wait();
}

TEST(KeptRows, HostMemoryGivesBackWhatBlocksLost) {
  EngineOptions o = options();
  const std::vector<TokenId> expected = run_alone(*Engine::load(o), request_of(1)).tokens;
  o.kv_host_memory_bytes = 256 << 20;
  const auto engine = Engine::load(o);
  const Choice first = run_alone(*engine, request_of(1));
  EXPECT_EQ(first.tokens, expected);
  forget_blocks(*engine);
  const Choice again = run_alone(*engine, request_of(1));
  EXPECT_EQ(again.tokens, expected);
  EXPECT_GE(again.usage.cached_tokens, 192 - 16);
  EXPECT_GT(metric(*engine, "sluice:kv_rows_loaded"), 0);
}

TEST(KeptRows, WithoutHostMemoryTheyAreLost) {
  const auto engine = Engine::load(options());
  run_alone(*engine, request_of(1));
  forget_blocks(*engine);
  EXPECT_EQ(run_alone(*engine, request_of(1)).usage.cached_tokens, 0) << "the other tests would show nothing";
}

TEST(KeptRows, ManyPromptsThatComeAgain) {
  EngineOptions o = options();
  o.kv_host_memory_bytes = 8 << 20;
  const TempFolder folder;
  o.kv_disk = folder / "kv";
  o.kv_disk_bytes = 64 << 20;
  const auto plain = Engine::load(options()), engine = Engine::load(o);
  std::mt19937 random(7);
  std::vector<Request> requests;
  for (int i = 0; i < 200; ++i) {
    Request request = request_of(static_cast<unsigned>(random() % 30), 40 + static_cast<int>(random() % 200));
    request.n = random() % 4 == 0 ? 3 : 1;
    if (random() % 4 == 0) request.sampling.presence_penalty = 0.5F;
    requests.push_back(request);
  }
  Collector expected(*plain), got(*engine);
  for (const Request& request : requests) {
    expected.submit(request);
    const size_t at = got.submit(request);
    if (random() % 10 == 0) engine->cancel(got.id(at));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t choice = 0; choice < got.answer(i).size(); ++choice) {
      const Choice& answer = got.answer(i)[choice];
      if (answer.finish->reason == FinishReason::kAbort) continue;
      EXPECT_EQ(answer.tokens, expected.answer(i)[choice].tokens) << "request " << i;
    }
  }
  EXPECT_GT(metric(*engine, "sluice:kv_rows_loaded"), 50);
}

TEST(KeptRows, TheNextEngineFindsTheFile) {
  const TempFolder folder;
  EngineOptions o = options();
  o.kv_disk = folder / "kv";
  o.kv_disk_bytes = 64 << 20;
  o.kv_host_memory_bytes = 16 << 20;
  std::vector<TokenId> expected;
  { expected = run_alone(*Engine::load(o), request_of(1)).tokens; }
  {
    const auto engine = Engine::load(o);
    const Choice again = run_alone(*engine, request_of(1));
    EXPECT_EQ(again.tokens, expected);
    EXPECT_GE(again.usage.cached_tokens, 192 - 16);
    engine->reset_prefix_cache();
    EXPECT_EQ(run_alone(*engine, request_of(1)).usage.cached_tokens, 0);
  }
  {
    const auto engine = Engine::load(o);
    EXPECT_EQ(run_alone(*engine, request_of(1)).tokens, expected);
  }
  // All rows are damaged.
  const auto file = *std::filesystem::directory_iterator(o.kv_disk);
  std::fstream raw(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file.path()));
  for (std::streamoff at = 128 << 10; at < size; at += 4096) {
    raw.seekp(at);
    raw.put('x');
  }
  raw.close();
  const auto engine = Engine::load(o);
  const Choice again = run_alone(*engine, request_of(1));
  EXPECT_EQ(again.tokens, expected);
  EXPECT_EQ(again.usage.cached_tokens, 0);
}

double prefetches(const Engine& engine, const std::string& result) {
  for (const MetricFamily& family : engine.metrics()) {
    if (family.name != "sluice:session_prefetches") continue;
    for (const auto& sample : family.samples) {
      for (const auto& [name, value] : sample.labels) {
        if (name == "reason" && value == result) return sample.value;
      }
    }
  }
  return -1;
}

void wait_for_prefetch(const Engine& engine, const std::string& result, double count) {
  for (int i = 0; i < 500 && prefetches(engine, result) < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(prefetches(engine, result), count) << result;
}

// The engine has nothing else to do while it prefetches. Then the next turn has nothing to load.
TEST(KeptRows, SessionsAreLoadedBeforeTheirNextTurn) {
  EngineOptions o = options();
  o.kv_host_memory_bytes = 256 << 20;
  o.session_cache_share = 0.5;
  const auto engine = Engine::load(o);
  Request first = request_of(1);
  first.session = "agent";
  first.tenant = "one";
  const Choice turn = run_alone(*engine, first);
  Request next = first;
  next.prompt.insert(next.prompt.end(), turn.tokens.begin(), turn.tokens.end());
  next.prompt.push_back(400);
  engine->prefetch_session("one", "agent");
  wait_for_prefetch(*engine, "present", 1);

  const auto forget = [&] {  // pinned blocks, too
    Collector collector(*engine);
    for (unsigned seed = 2000; seed < 2024; ++seed) {
      Request other = request_of(seed, 400);
      other.session = "other" + std::to_string(seed);
      collector.submit(other);
    }
    collector.wait();
  };
  forget();
  engine->prefetch_session("two", "agent");
  wait_for_prefetch(*engine, "unknown", 1);
  const double before = metric(*engine, "sluice:kv_rows_loaded");
  engine->prefetch_session("one", "agent");
  wait_for_prefetch(*engine, "loaded", 1);
  const double loaded = metric(*engine, "sluice:kv_rows_loaded");
  EXPECT_GE(loaded, before + 12);
  const Choice again = run_alone(*engine, next);
  EXPECT_GE(again.usage.cached_tokens, 192);
  EXPECT_EQ(metric(*engine, "sluice:kv_rows_loaded"), loaded) << "the turn had to load rows";
  EXPECT_EQ(again.tokens, run_alone(*Engine::load(options()), next).tokens);

  engine->end_session("one", "agent");
  engine->prefetch_session("one", "agent");
  wait_for_prefetch(*engine, "unknown", 2);
}

TEST(KeptRows, RefusesWhatItCannotDo) {
  const auto message = [](const EngineOptions& o) -> std::string {
    try {
      Engine::load(o);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EngineOptions o = options();
  o.kv_disk_bytes = 1 << 20;
  EXPECT_EQ(message(o), "--kv-disk-bytes needs --kv-disk, the folder of the file");
  o = options();
  o.kv_host_memory_bytes = 1 << 20;
  o.enable_prefix_caching = false;
  EXPECT_EQ(message(o), "--kv-host-memory-bytes needs --enable-prefix-caching");
  o = options();
  o.kv_host_memory_bytes = 100;
  EXPECT_NE(message(o).find("no room for two rows"), std::string::npos);
  o = options();
  o.kv_disk = "/proc/nothing";
  EXPECT_NE(message(o).find("--kv-disk: /proc/nothing"), std::string::npos) << message(o);
}

}  // namespace
}  // namespace sluice::kept_rows_test
