// The engine on a simulated device that uses the host's kernels. The host may not access its memory, and copies arrive
// only when the host waits. Steps start before the previous step's tokens are known; results must not change.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "base/registry.h"
#include "engine/collect.h"
#include "engine/draft_answers.h"
#include "engine/load.h"
#include "engine/prediction_model.h"
#include "engine/table_rows.h"
#include "golden/goldens.h"
#include "golden/rank_threads.h"
#include "ops/ops.h"
#include "ops/sample.h"
#include "support/temp_folder.h"

namespace sluice::device_test {
namespace {

using namespace testing;  // engine/collect.h

// Memory of the device, which the host may not access, or pinned memory of the host. It knows what is in it.
class FarMemory final : public Memory {
 public:
  explicit FarMemory(bool host_accessible = false) : host_accessible_(host_accessible) {}
  std::byte* allocate(size_t bytes) override {
    std::byte* data = host_memory().allocate(bytes);
    const std::lock_guard lock(mutex_);
    ranges_.emplace(data, bytes);
    return data;
  }
  void release(std::byte* data, size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    ranges_.erase({data, bytes});
    host_memory().release(data, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  bool host_accessible() const override { return host_accessible_; }
  size_t available() const override { return host_memory().available(); }
  size_t total() const override { return host_memory().total(); }

  bool owns(const void* data) const {
    const auto* at = static_cast<const std::byte*>(data);
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(ranges_, [&](const auto& r) { return at >= r.first && at < r.first + r.second; });
  }

 private:
  const bool host_accessible_;
  mutable std::mutex mutex_;
  std::set<std::pair<const std::byte*, size_t>> ranges_;
};

// Runs ops immediately. Copies to the host arrive when the host waits. Copies from it come from pinned memory.
class LateQueue final : public ops::Queue {
 public:
  LateQueue(ops::Device& device, ThreadPool& threads, const FarMemory& memory, const FarMemory& pinned)
      : Queue(device, threads), memory_(memory), pinned_(pinned) {}
  void copy_async(void* to, const void* from, size_t bytes) override {
    if (memory_.owns(to)) {
      EXPECT_TRUE(memory_.owns(from) || pinned_.owns(from)) << bytes << " bytes of memory that is not pinned";
      std::memcpy(to, from, bytes);
    } else {
      const auto* data = static_cast<const std::byte*>(from);
      pending_.push_back({events_, to, {data, data + bytes}});
    }
  }
  void wait() override { deliver(events_ + 1); }
  uint64_t record_event() override { return ++events_; }
  void wait_for(uint64_t event) override { deliver(event); }

 private:
  struct Copy {
    uint64_t after;  // number of events recorded before the copy
    void* to;
    std::vector<std::byte> data;
  };

  void deliver(uint64_t event) {
    for (; !pending_.empty() && pending_.front().after < event; pending_.pop_front()) {
      std::memcpy(pending_.front().to, pending_.front().data.data(), pending_.front().data.size());
    }
  }

  const FarMemory &memory_, &pinned_;
  std::deque<Copy> pending_;
  uint64_t events_ = 0;
};

std::atomic<int> overlapped_steps = 0;  // steps launched before the host knew their tokens

const ops::Ops& host_ops() { return ops::select_host_backend().open(0).ops(); }

const ops::Ops& far_ops() {
  static const ops::Ops table = [] {
    ops::Ops ops = host_ops();
    ops.embed = [](ops::Queue& queue, Tensor out, const Tensor& table, Indices ids) {
      if (ids.device != nullptr) ids = std::span(ids.device, ids.size());  // the device's copy, not the host's
      host_ops().embed(queue, out, table, ids);
    };
    ops.sample = [](ops::Queue& queue, const ops::SampleArgs& args) {
      ops::SampleArgs here = args;
      here.for_host = {};
      host_ops().sample(queue, here);
      queue.copy_async(args.for_host.data, args.sampled.data, args.for_host.bytes());  // arrives at a wait
    };
    ops.feed_sampled = [](ops::Queue& queue, const ops::FeedSampledArgs& args) {
      ++overlapped_steps;
      host_ops().feed_sampled(queue, args);
    };
    return ops;
  }();
  return table;
}

class FarDevice final : public ops::Device {
 public:
  explicit FarDevice(int ordinal) : Device(ordinal) {}
  const ops::Ops& ops() const override { return far_ops(); }
  Memory& memory() override { return memory_; }
  std::unique_ptr<ops::Queue> make_queue(ThreadPool& threads) override {
    return std::make_unique<LateQueue>(*this, threads, memory_, pinned_);
  }
  Memory& pinned_memory() override { return pinned_; }

 private:
  FarMemory memory_, pinned_{/*host_accessible=*/true};
};

ops::Device& open(int ordinal) {
  static FarDevice first(0), second(1);
  return ordinal == 0 ? first : second;
}

const ops::Backend backend{
    .name = "device-of-the-host", .rank = -10, .devices = [] { return 2; }, .open = open, .can = {.collectives = true}};
const Registry<ops::Backend> registered(backend);

EngineOptions options(bool device) {
  EngineOptions o;
  o.model = testing::demo_model();
  o.backend = device ? backend.name : ops::select_host_backend().name;
  o.kv_cache_memory_bytes = int64_t{64} << 20;
  o.threads = 2;
  o.max_num_seqs = 32;
  o.max_num_batched_tokens = 256;
  o.enable_prompt_embeds = true;
  o.contrastive_search_tokens = 1000;
  return o;
}

Request question(const Engine& engine, const std::string& text, int max_tokens) {
  Request request;
  request.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user(text)), false);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

constexpr const char* kSchema =
    R"({"type": "object", "additionalProperties": false, "required": ["answer", "certainty"], "properties": {
        "answer": {"type": "string", "maxLength": 12}, "certainty": {"enum": ["certain", "uncertain"]}}})";

// Requests whose tokens the host needs before the next step run together with others.
std::vector<Request> requests(const Engine& engine, bool plain) {
  std::vector<Request> all;
  std::string story = "Read this. ";
  for (int i = 0; i < 24; ++i) {
    story += "The " + std::to_string(i) + "th day was sunny and Finn baked bread. ";
    Request r = question(engine, (i % 4 == 0 ? story : "") + "Count from " + std::to_string(i) + " to 30.", 10 + i);
    r.sampling.ignore_eos = i % 5 == 0;
    if (!plain && i % 6 == 1) r.n = 3;
    if (!plain && i % 6 == 2) r.sampling.logprobs = 1;
    if (!plain && i % 6 == 3) r.sampling.repetition_penalty = 1.2;
    if (!plain && i % 6 == 4) r.sampling.prompt_logprobs = 0;
    if (!plain && i % 6 == 5) r.sampling.min_tokens = 3;
    if (!plain && i % 4 == 2) r.grammar = {.kind = "json_schema_compact", .text = kSchema};
    if (!plain && i % 4 == 3) r.grammar = {.kind = "regex", .text = "(Finn baked bread|day [0-9]+){1,20}\\."};
    if (!plain && r.n == 1 && i % 8 % 7 == 0) r.sampling.penalty_alpha = 0.6, r.sampling.top_k = 4;
    if (i % 3 == 2 && !r.sampling.prompt_logprobs) give_vectors(r, table_rows(r.prompt));
    all.push_back(std::move(r));
  }
  return all;
}

void expect_same(const EngineOptions& device, bool plain, const std::string& what) {
  SCOPED_TRACE(what);
  EngineOptions on_host = options(false);
  on_host.enable_prefix_caching = false;
  const auto host = Engine::load(on_host), other = Engine::load(device);
  Collector expected(*host), got(*other);
  const std::vector<Request> all = requests(*host, plain);
  for (const Request& request : all) expected.submit(request), got.submit(request);
  for (size_t i = 0; i < all.size(); ++i) {
    for (int index = 0; index < all[i].n; ++index) {
      const Choice &a = expected.answer(i)[index], &b = got.answer(i)[index];
      EXPECT_EQ(b.tokens, a.tokens) << i;
      EXPECT_EQ(b.text, a.text) << i;
      EXPECT_EQ(b.finish->reason, a.finish->reason) << i;
      EXPECT_EQ(b.usage.completion_tokens, a.usage.completion_tokens) << i;
      EXPECT_EQ(b.logprobs.size(), a.logprobs.size()) << i;
      EXPECT_EQ(b.prompt_logprobs.size(), a.prompt_logprobs.size()) << i;
    }
  }
  EXPECT_TRUE(settles(*other, "vllm:kv_cache_usage_perc", 0));
  if (!plain) {
    EXPECT_GT(metric(*other, "sluice:forced_tokens"), 20) << "grammars force text while steps are in flight";
  }
}

TEST(EngineOnADevice, StepsAheadChangeNothing) {
  overlapped_steps = 0;
  expect_same(options(true), true, "greedy");
  EXPECT_GT(overlapped_steps, 20) << "steps were not launched ahead";
  expect_same(options(true), false, "mixed");

  EngineOptions few = options(true);
  few.max_num_batched_tokens = 33;
  few.max_num_seqs = 5;
  expect_same(few, true, "small steps");

  EngineOptions tight = options(true);
  tight.max_model_len = 640;
  tight.block_size = 8;
  tight.kv_cache_memory_bytes = 700 * 2048;  // little more than one context: sequences are preempted
  expect_same(tight, true, "preempted");
  expect_same(tight, false, "mixed and preempted");
}

// The device also handles bias, penalties, min_tokens and log-probabilities. Alternatives may need the whole row; the
// next step then waits for them.
TEST(EngineOnADevice, EditedSamplesRunAhead) {
  const auto host = Engine::load(options(false)), device = Engine::load(options(true));
  Request request = question(*host, "Tell me about a boat.", 40);
  request.sampling.ignore_eos = true;
  request.sampling.repetition_penalty = 1.1;
  request.sampling.frequency_penalty = 0.3;
  request.sampling.logit_bias = {{request.prompt[3], 1.5f}, {request.prompt[4], -2.0f}};
  for (const int alternatives : {0, 5}) {
    request.sampling.logprobs = alternatives;
    const Choice wanted = run_alone(*host, request);
    overlapped_steps = 0;
    const Choice got = run_alone(*device, request);
    if (alternatives == 0) {
      EXPECT_GT(overlapped_steps, 20);
    } else {
      EXPECT_EQ(overlapped_steps, 0);
    }
    EXPECT_EQ(got.tokens, wanted.tokens);
    ASSERT_EQ(got.logprobs.size(), wanted.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) {
      const TokenLogprobs &a = wanted.logprobs[i], &b = got.logprobs[i];
      EXPECT_EQ(b.token.rank, a.token.rank) << i;
      EXPECT_NEAR(b.token.logprob, a.token.logprob, 1e-4) << i;
      ASSERT_EQ(b.top.size(), a.top.size()) << i;
      for (size_t j = 0; j < a.top.size(); ++j) EXPECT_NEAR(b.top[j].logprob, a.top[j].logprob, 1e-4) << i;
    }
  }
}

// Sequences without drafts run ahead beside others: the layer that drafts computes their tokens before the host knows
// them.
TEST(EngineOnADevice, PredictionsChangeNothing) {
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model);
  EngineOptions with = options(true), without = options(false);
  with.model = without.model = model;
  with.speculative_config = R"({"method": "mtp", "num_speculative_tokens": 3})";
  const auto engine = Engine::load(with), plain = Engine::load(without);
  std::vector<Request> all;
  for (int i = 0; i < 24; ++i) {
    Request r = question(*plain, "Count from " + std::to_string(i) + " to 30.", 10 + i);
    if (i % 3 == 0) r.sampling.frequency_penalty = 0.4;  // has no drafts
    if (i % 4 == 1) r.sampling.allowed_token_ids = {300, 301, 302, 303, 304, 305};
    if (i % 5 == 0) r.n = 2;
    all.push_back(std::move(r));
  }
  expect_equal(answers(*engine, all), answers(*plain, all));
  EXPECT_GT(drafted(*engine), 100);
  EXPECT_GT(accepted(*engine), 0);
  std::erase_if(all, [](const Request& r) { return r.sampling.frequency_penalty == 0; });
  overlapped_steps = 0;
  expect_equal(answers(*engine, all), answers(*plain, all));
  EXPECT_GT(overlapped_steps, 20);
}

TEST(EngineOnADevice, SeededSamplesDoNotDependOnTheBatch) {
  const auto engine = Engine::load(options(true));
  for (const bool cut : {false, true}) {
    Request seeded = question(*engine, "Tell me about a boat.", 30);
    seeded.sampling.temperature = 1.0;
    seeded.sampling.seed = 7;
    if (cut) seeded.sampling.top_k = 40, seeded.sampling.top_p = 0.9, seeded.sampling.min_p = 0.02;
    const Choice alone = run_alone(*engine, seeded);
    for (const double top_p : {1.0, 0.9}) {
      Collector crowd(*engine);
      for (int i = 0; i < 6; ++i) {
        Request other = question(*engine, "Count from " + std::to_string(i) + " to 20.", 20);
        other.sampling.temperature = 1.0;
        other.sampling.top_p = top_p;
        crowd.submit(other);
      }
      EXPECT_EQ(crowd.answer(crowd.submit(seeded))[0].tokens, alone.tokens);
    }
  }
}

TEST(EngineOnADevice, StopsAndCancelsReachStepsInFlight) {
  const auto engine = Engine::load(options(true));
  Request endless = question(*engine, "Tell me about a boat.", 400);
  endless.sampling.ignore_eos = true;
  {
    Collector collector(*engine);
    const size_t at = collector.submit(endless);
    collector.wait_tokens(at, 5);
    engine->cancel(collector.id(at));
    EXPECT_EQ(collector.answer(at)[0].finish->reason, FinishReason::kAbort);
  }
  const Choice whole = run_alone(*engine, endless);
  Request stopped = endless;
  stopped.sampling.stop = {whole.text.substr(10, 6)};
  const Choice cut = run_alone(*engine, stopped);
  EXPECT_EQ(cut.finish->reason, FinishReason::kStop);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stopped.sampling.stop[0])));
  EXPECT_TRUE(settles(*engine, "vllm:kv_cache_usage_perc", 0));
  EXPECT_TRUE(settles(*engine, "vllm:num_requests_running", 0));

  const auto left = Engine::load(options(true));
  Collector collector(*left);
  const size_t at = collector.submit(endless);
  collector.wait_tokens(at, 3);
  // The destructor ends running requests.
}

namespace fs = std::filesystem;

class PackedWeightsOnADevice : public ::testing::Test {
 protected:
  EngineOptions with_file(const std::string& folder) const {
    EngineOptions o = options(true);
    o.quantization = "q8_0";
    o.packed_cache = folder;
    return o;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    if (!fs::exists(cache_)) return out;
    for (const auto& entry : fs::directory_iterator(cache_)) out.push_back(entry.path());
    return out;
  }
  // Waits until the engine's thread has written its file; returns its path.
  fs::path written() const {
    for (int i = 0; i < 3000; ++i) {
      const std::vector<fs::path> all = files();
      if (all.size() == 1 && all[0].extension() == ".packed") return all[0];
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "no file was written";
    return {};
  }
  static Choice answer(const Engine& engine_of_prompt, Engine& engine) {
    Request request = question(engine_of_prompt, "Tell me about a boat.", 40);
    request.sampling.logprobs = 0;
    return run_alone(engine, request);
  }
  // Loads the model and compares its answer with that of weights in memory, bit by bit.
  void expect_same_bits(const EngineOptions& given) {
    const auto engine = Engine::load(given);
    const Choice got = answer(*engine, *engine);
    EXPECT_EQ(got.tokens, expected_.tokens);
    ASSERT_EQ(got.logprobs.size(), expected_.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) {
      EXPECT_EQ(got.logprobs[i].token.logprob, expected_.logprobs[i].token.logprob) << i;
    }
    if (given.packed_cache == cache_) written();
  }
  std::string log_of(const EngineOptions& given) {
    ::testing::internal::CaptureStderr();
    expect_same_bits(given);
    return ::testing::internal::GetCapturedStderr();
  }
  void SetUp() override {
    const auto engine = Engine::load(with_file(""));
    expected_ = answer(*engine, *engine);
  }

  const TempFolder parent_;
  const std::string cache_ = parent_ / "cache";
  Choice expected_;
};

TEST_F(PackedWeightsOnADevice, AreReadFromTheFileOfTheFirstStart) {
  expect_same_bits(with_file(cache_));
  const fs::path file = written();
  const auto time = fs::last_write_time(file);
  EXPECT_NE(log_of(with_file(cache_)).find("reading packed weights"), std::string::npos);
  EXPECT_EQ(fs::last_write_time(written()), time) << "packed again";
  EngineOptions other = with_file(cache_);
  other.quantization = "q4_0";
  Engine::load(other).reset();
  EXPECT_EQ(fs::last_write_time(file), time);
}

TEST_F(PackedWeightsOnADevice, ADamagedFileIsWrittenAgain) {
  expect_same_bits(with_file(cache_));
  const fs::path file = written();
  const auto damage = [&](auto&& change) {
    change();
    const std::string log = log_of(with_file(cache_));
    EXPECT_NE(log.find("the weights are packed again"), std::string::npos) << log;
    EXPECT_EQ(log_of(with_file(cache_)).find("packed again"), std::string::npos);
  };
  damage([&] { fs::resize_file(file, fs::file_size(file) - 5000); });
  damage([&] {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
    stream.seekg(middle);
    const auto byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(middle);
    stream.put(byte);
  });
}

TEST_F(PackedWeightsOnADevice, AFolderThatCannotBeIsNoObstacle) {
  const std::string log = log_of(with_file("/dev/null/packed"));
  EXPECT_NE(log.find("--packed-cache: /dev/null/packed"), std::string::npos) << log;
}

TEST_F(PackedWeightsOnADevice, AFileThatAnotherProcessWritesIsNotWaitedFor) {
  expect_same_bits(with_file(cache_));
  const std::string unfinished = written().string() + ".unfinished";
  fs::remove(written());
  const int fd = ::open(unfinished.c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EngineOptions given = with_file(cache_);
  ::testing::internal::CaptureStderr();
  const auto engine = Engine::load(given);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("another process is writing the file"), std::string::npos) << log;
  EXPECT_EQ(answer(*engine, *engine).tokens, expected_.tokens);
  ::close(fd);
}

TEST_F(PackedWeightsOnADevice, AreRefusedWithSeveralRanks) {
  EngineOptions given = with_file(cache_);
  given.tensor_parallel_size = 2;
  ThreadPool pool(1);
  try {
    plan_load(given, pool);
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kUnsupportedModel);
    EXPECT_NE(std::string(e.what()).find("--packed-cache with several ranks"), std::string::npos) << e.what();
  }
}

TEST_F(PackedWeightsOnADevice, AnUnloadedModelLeavesAWholeFileOrNone) {
  for (int i = 0; i < 5; ++i) {
    Engine::load(with_file(cache_)).reset();
    for (const fs::path& file : files()) EXPECT_EQ(file.extension(), ".packed");
    expect_same_bits(with_file(cache_));
    fs::remove(written());
  }
}

// A device holds a copy of the table of tokens, so its ranks divide that, too.
TEST(RanksOnADevice, HoldTheirPartOfTheTableOfTokens) {
  EngineOptions given = options(true);
  given.dtype = "float32";
  const std::vector<int32_t> ids = {1, 700, 31, 5, 640, 2, 99, 234, 12, 77};
  const auto logits = [&](Runner& runner, const LoadPlan& plan) {
    std::vector<float> all;
    for_each_logits(runner, plan, given.block_size, ids, 8,
                    [&](int, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
    return all;
  };
  ThreadPool pool(1);
  LoadedModel whole = load_model(given, pool);
  Runner runner(whole);
  const std::vector<float> expected = logits(runner, whole.plan);
  given.tensor_parallel_size = 2;
  RankThreads ranks(given);
  EXPECT_LT(static_cast<double>(ranks.plan().weight_bytes), 0.52 * static_cast<double>(whole.plan.weight_bytes));
  const std::vector<float> got = logits(ranks.runner(), ranks.plan());
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_LE(relative_error(got.data(), expected.data(), static_cast<int64_t>(got.size())), kTolerance);
}

}  // namespace
}  // namespace sluice::device_test
