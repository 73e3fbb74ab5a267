// host_bench [--model M] [--backend B] [--sequences 1,32,256,512] [--samples greedy,top-p,penalties] [--steps N]
// [--no-prefix-caching]
// Measures what a decode step costs the engine thread, part by part, in the order of Engine's own loop
// (engine/engine.cc): scheduling, indices, launch of the captured graph, taking results, launching the sampling, and
// passing tokens to the front end, which detokenizes them for a sink. The default backend is a device whose ops do
// nothing. With another backend (cuda) the figures include its driver calls but not waiting for the device: each step
// is waited for outside the timed part before results are taken.
#include <fmt/core.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/registry.h"
#include "engine/frontend.h"
#include "engine/metrics.h"
#include "engine/runner.h"
#include "engine/text.h"
#include "program.h"
#include "sampling/sampler.h"
#include "scheduler/scheduler.h"
#include "sluice/error.h"

namespace sluice::bench {
namespace {

// Reserves device addresses that nobody reads or writes.
class NoMemory final : public Memory {
 public:
  NoMemory() {
    void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "cannot reserve {} bytes of address space", kBytes);
    begin_ = static_cast<std::byte*>(at);
  }
  std::byte* allocate(size_t bytes) override {
    CHECK(bytes <= available(), "{} bytes", bytes);
    std::byte* data = begin_ + used_;
    used_ += (bytes + kLine - 1) / kLine * kLine;
    return data;
  }
  void release(std::byte*, size_t) noexcept override {}
  void copy(void*, const void*, size_t) override {}
  bool host_accessible() const override { return false; }
  size_t available() const override { return kBytes - used_; }
  size_t total() const override { return kBytes; }

 private:
  static constexpr size_t kBytes = size_t{256} << 30, kLine = 256;
  std::byte* begin_ = nullptr;
  size_t used_ = 0;
};

template <class... Args>
void let_do_nothing(void (*&slot)(Args...)) {
  slot = [](Args...) {};
}

// Writes a token for every row, a different one in every step.
void sample_something(ops::Queue&, const ops::SampleArgs& args) {
  static uint32_t state = 1;
  const auto vocab = static_cast<uint32_t>(args.logits.shape[1]);
  auto* sampled = args.for_host.as<ops::SampledRow>();
  const size_t rows = args.for_host.bytes() / sizeof(ops::SampledRow);
  for (size_t row = 0; row < rows; ++row) {
    state = state * 1664525 + 1013904223;
    sampled[row] = {.token = static_cast<int32_t>((state >> 8) % vocab)};
  }
}

const ops::Ops& idle_ops() {
  static const ops::Ops table = [] {
    ops::Ops t = ops::select_backend("reference").open(0).ops();
    const auto idle = [](auto&... slots) { (let_do_nothing(slots), ...); };
    idle(t.embed, t.rms_norm, t.layer_norm, t.match_rms, t.gaussian_top_k, t.glu, t.clamped_glu, t.unary, t.xielu,
         t.map, t.copy, t.add, t.multiply, t.softplus, t.rope_store, t.latent_store, t.attention, t.causal_conv,
         t.selective_scan, t.head_scan, t.delta_rule, t.gated_lru, t.gather_rows, t.copy_rows, t.feed_sampled,
         t.pooling, t.route, t.group_by_expert, t.expert_matmul, t.head_matmul, t.combine);
    for (auto& [type, kernels] : t.matmul) idle(kernels.pack, kernels.matmul);
    t.sample = sample_something;
    return t;
  }();
  return table;
}

class NoGraph final : public ops::CapturedGraph {
 public:
  void launch() override {}
};

class IdleQueue final : public ops::Queue {
 public:
  using Queue::Queue;
  void copy_async(void*, const void*, size_t) override {}
  std::unique_ptr<ops::CapturedGraph> capture(const std::function<void()>& body) override {
    body();
    return std::make_unique<NoGraph>();
  }
};

class IdleDevice final : public ops::Device {
 public:
  IdleDevice() : Device(0) {}
  const ops::Ops& ops() const override { return idle_ops(); }
  Memory& memory() override { return memory_; }
  std::unique_ptr<ops::Queue> make_queue(ThreadPool& threads) override {
    return std::make_unique<IdleQueue>(*this, threads);
  }

 private:
  NoMemory memory_;
};

ops::Device& open(int) {
  static IdleDevice device;
  return device;
}

const ops::Backend backend{
    .name = "no-device", .rank = -10, .devices = [] { return 1; }, .open = open, .can = {.captures = true}};
const Registry<ops::Backend> registered(backend);

// CPU time of this thread; other work on its core does not count.
double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

constexpr int kMostTokens = 2048;  // tokens per sequence
constexpr double kQuiet = 0.1;     // fraction of the steps that is reported, the fastest ones: machines are shared

enum Part { kSchedule, kLaunch, kResults, kSample, kHandOn, kParts };

struct Case {
  std::string name;
  SamplingParams sampling;
};

std::map<std::string, SamplingParams> cases() {
  SamplingParams greedy{.temperature = 0.0, .ignore_eos = true};
  SamplingParams top_p{.temperature = 0.8, .top_p = 0.9, .ignore_eos = true};
  SamplingParams penalties = top_p;
  penalties.frequency_penalty = 0.5;
  return {{"greedy", greedy}, {"top-p", top_p}, {"penalties", penalties}};
}

// The engine of one run, without its inbox and thread.
class Loop {
 public:
  Loop(LoadedModel& loaded, const EngineOptions& options, const Tokenizer& tokenizer)
      : loaded_(loaded),
        scheduler_({.max_num_seqs = loaded.plan.max_num_seqs,
                    .max_num_batched_tokens = loaded.plan.step_tokens,
                    .max_logit_rows = loaded.plan.logit_rows,
                    .max_model_len = loaded.plan.max_model_len,
                    .block_size = options.block_size,
                    .blocks = loaded.plan.blocks,
                    .groups = loaded.plan.kv.groups,
                    .state_slots = loaded.plan.state_slots,
                    .prefix_caching = options.enable_prefix_caching,
                    .eos_token_ids = loaded.plan.checkpoint->generation.eos_token_ids}),
        runner_(loaded),
        sampler_(*loaded.plan.queue, loaded.plan.logit_rows, loaded.plan.shape.vocab),
        metrics_("host_bench", loaded.plan.max_model_len),
        frontend_(tokenizer, metrics_, [](RequestId, int) {}) {}

  void add(RequestId id, Request request) {
    CHECK(scheduler_.queue_limit().try_enter(request.n, static_cast<int64_t>(request.prompt.size())),
          "the queue is full");
    frontend_.add(id, request, [this](const Event& event) { delivered_.fetch_add(event.tokens.size()); });
    scheduler_.add(id, std::move(request));
  }

  // Runs one step and adds the microseconds of its parts. Returns the number of tokens that it computes.
  int step(std::array<double, kParts>& us) {
    wait();
    begin_ = cpu_us();
    ScheduledBatch next = scheduler_.next();
    const int tokens = next.batch.size();
    end(us[kSchedule]);
    const Tensor logits = runner_.run(next.batch, in_flight_ ? sampler_.sampled() : Tensor()).logits;
    end(us[kLaunch]);
    if (in_flight_) commit(us[kResults]);
    const bool ahead = sampler_.begin(runner_.context(), logits, next.tasks);
    in_flight_ = std::move(next);
    end(us[kSample]);
    scheduler_.drain(events_);
    posted_ += events_.size();
    frontend_.post(std::move(events_));
    const SchedulerStats stats = scheduler_.stats();
    metrics_.step({.running = stats.running, .waiting = stats.waiting}, tokens);
    end(us[kHandOn]);
    sampled_ = loaded_.plan.queue->record_event();
    if (!ahead) wait(), begin_ = cpu_us(), commit(us[kResults]);
    return tokens;
  }

 private:
  void end(double& us) {
    const double now = cpu_us();
    us += now - begin_;
    begin_ = now;
  }
  // Gives the step in flight and the front end more time than the host's part of a step takes. The front end goes to
  // sleep again; this thread keeps its core, like one that polls a device.
  void wait() {
    loaded_.plan.queue->wait_for(sampled_);
    while (delivered_.load() < posted_) std::this_thread::yield();
    const Clock::time_point asleep = Clock::now() + std::chrono::microseconds(100);
    while (Clock::now() < asleep) continue;
  }
  void commit(double& us) {
    std::vector<SampleResult> samples = sampler_.finish(runner_.context(), in_flight_->tasks);
    std::vector<StepResult> results = step_results(*in_flight_, samples);
    scheduler_.commit(std::move(*in_flight_), results);
    in_flight_.reset();
    end(us);
  }

  LoadedModel& loaded_;
  Scheduler scheduler_;
  Runner runner_;
  Sampler sampler_;
  std::optional<ScheduledBatch> in_flight_;
  std::vector<SequenceEvent> events_;
  EngineMetrics metrics_;
  uint64_t sampled_ = 0;
  uint64_t posted_ = 0;
  std::atomic<uint64_t> delivered_{0};
  double begin_ = 0.0;
  Frontend frontend_;
};

double quantile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<int64_t>(share * static_cast<double>(values.size()));
  std::ranges::nth_element(values, at);
  return *at;
}

struct Arguments {
  std::string model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  std::string backend = "no-device";
  std::vector<int> sequences = {1, 32, 256, 512};
  std::vector<std::string> samples = {"greedy", "top-p", "penalties"};
  int steps = 400;
  bool no_prefix_caching = false;
};

// Prompts of 128 to 430 tokens, so that in every step some sequences begin a block and some commit one to the prefix
// cache.
void measure(Loop& loop, const Case& c, int sequences, int steps, int vocab) {
  std::mt19937 random(7);
  for (int i = 0; i < sequences; ++i) {
    Request request{.sampling = c.sampling};
    request.prompt.resize(128 + random() % 303);
    for (TokenId& token : request.prompt) token = static_cast<TokenId>(random() % static_cast<unsigned>(vocab));
    loop.add(static_cast<RequestId>(i) + 1, std::move(request));
  }
  std::array<double, kParts> unused{};
  for (int quiet = 0, all = 0; quiet < 16; ++quiet) {
    if (loop.step(unused) != sequences) quiet = 0;
    if (++all > kMostTokens) throw Error(ErrorCode::kOutOfMemory, "the KV cache has no room for all sequences");
  }
  std::array<std::vector<double>, kParts> parts;
  std::vector<double> totals;
  for (int i = 0; i < steps; ++i) {
    std::array<double, kParts> us{};
    loop.step(us);
    for (int part = 0; part < kParts; ++part) parts[part].push_back(us[part]);
    totals.push_back(std::accumulate(us.begin(), us.end(), 0.0));
  }
  fmt::print("{:>9} {:>9} ", sequences, c.name);
  for (const auto& part : parts) fmt::print("{:>9.1f} ", quantile(part, kQuiet));
  fmt::print("{:>9.1f} {:>9.1f}\n", quantile(totals, kQuiet), quantile(totals, 0.5));
}

void run(const Arguments& a) {
  ThreadPool pool(1);
  EngineOptions options{.model = a.model, .backend = a.backend};
  options.max_model_len = kMostTokens;
  options.enable_prefix_caching = !a.no_prefix_caching;
  const std::shared_ptr<Tokenizer> tokenizer = load_tokenizer(options, *plan_load(options, pool).checkpoint);
  fmt::print("us per step, tenth percentile of {} steps; backend {}\n", a.steps, a.backend);
  for (const char* column :
       {"sequences", "samples", "schedule", "launch", "results", "sample", "hand on", "all", "median"}) {
    fmt::print("{:>9} ", column);
  }
  fmt::print("\n");
  for (const int sequences : a.sequences) {
    for (const std::string& samples : a.samples) {
      const Case c{samples, cases().at(samples)};
      options.max_num_seqs = sequences;
      LoadedModel loaded = load_model(options, pool);
      Loop loop(loaded, options, *tokenizer);
      measure(loop, c, sequences, a.steps, loaded.plan.shape.vocab);
    }
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Arguments arguments;
  CLI::App app("What a decode step costs the engine thread");
  app.add_option("--model", arguments.model);
  app.add_option("--backend", arguments.backend);
  app.add_flag("--no-prefix-caching", arguments.no_prefix_caching);
  app.add_option("--sequences", arguments.sequences)->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--samples", arguments.samples)
      ->delimiter(',')
      ->check(CLI::IsMember({"greedy", "top-p", "penalties"}));
  app.add_option("--steps", arguments.steps)->check(CLI::Range(1, 1400));
  return sluice::bench::run_program(app, argc, argv, [&] { sluice::bench::run(arguments); });
}
