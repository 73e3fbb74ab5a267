// sluice bench latency and throughput: measures the engine without HTTP on random prompts or a file of prompts.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>

#include "cli/bench/bench.h"
#include "cli/load_engine.h"
#include "engine/load.h"
#include "kernels/cpu/dispatch/machine.h"
#include "ops/ops.h"
#include "sluice/engine.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs requests together and records the time of each token.
class Load {
 public:
  explicit Load(Engine& engine) : engine_(engine) {}

  struct Result {
    double seconds = 0;
    int64_t prompt_tokens = 0, output_tokens = 0;
    int failed = 0;
    std::vector<double> ttft, tpot, itl, e2e;
  };

  Result run(const std::vector<Request>& requests) {
    result_ = {};
    open_ = static_cast<int>(requests.size());
    times_.assign(requests.size(), {});
    start_ = Clock::now();
    for (size_t i = 0; i < requests.size(); ++i) {
      times_[i].submitted = Clock::now();
      engine_.submit(requests[i], [this, i](const Event& event) { on_event(i, event); });
    }
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return open_ == 0; });
    result_.seconds = seconds_since(start_);
    return result_;
  }

 private:
  struct Times {
    Clock::time_point submitted, first, last;
    int tokens = 0;
  };

  void on_event(size_t i, const Event& event) {
    const std::scoped_lock lock(mutex_);
    Times& t = times_[i];
    const Clock::time_point now = Clock::now();
    if (!event.tokens.empty() && t.tokens == 0) {
      t.first = now;
      result_.ttft.push_back(std::chrono::duration<double>(now - t.submitted).count());
    }
    if (!event.tokens.empty()) {
      const auto count = static_cast<double>(event.tokens.size());
      if (t.tokens > 0) result_.itl.push_back(std::chrono::duration<double>(now - t.last).count() / count);
      t.last = now;
    }
    t.tokens += static_cast<int>(event.tokens.size());
    if (!event.last) return;
    result_.prompt_tokens += event.usage.prompt_tokens;
    result_.output_tokens += t.tokens;
    result_.failed += event.finish->reason == FinishReason::kError ? 1 : 0;
    result_.e2e.push_back(std::chrono::duration<double>(now - t.submitted).count());
    if (t.tokens > 1) result_.tpot.push_back(std::chrono::duration<double>(now - t.first).count() / (t.tokens - 1));
    if (--open_ == 0) done_.notify_one();
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<Times> times_;
  Result result_;
  Clock::time_point start_;
  int open_ = 0;
};

}  // namespace

std::vector<Request> make_requests(const LoadArguments& a, const Engine& engine, int count) {
  std::vector<std::vector<TokenId>> prompts;
  if (!a.prompts.empty()) {
    std::ifstream in(a.prompts);
    if (!in) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: cannot open the file", a.prompts));
    for (std::string line; std::getline(in, line) && static_cast<int>(prompts.size()) < count;) {
      if (!line.empty()) prompts.push_back(engine.tokenize(line));
    }
    if (prompts.empty())
      throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: has no prompts (expected one per line)", a.prompts));
  }
  std::mt19937 rng(0);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request r;
    if (prompts.empty()) {
      for (int t = 0; t < a.input_len; ++t)
        r.prompt.push_back(static_cast<TokenId>(rng() % static_cast<unsigned>(engine.model().vocab_size)));
    } else {
      r.prompt = prompts[static_cast<size_t>(i) % prompts.size()];
    }
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = a.output_len;
    requests.push_back(std::move(r));
  }
  return requests;
}

std::unique_ptr<Engine> load_engine(LoadArguments& a, int requests) {
  make_local(a.engine);
  a.engine.max_num_queued_reqs = std::max(a.engine.max_num_queued_reqs, requests);
  return load_engine(a.engine);
}

Json describe(const LoadArguments& a, const Engine& engine) {
  const ModelInfo& m = engine.model();
  return {{"model", m.name},
          {"dtype", m.dtype},
          {"backend", m.backend},
          {"input", a.prompts.empty() ? Json(a.input_len) : Json(a.prompts)},
          {"output_len", a.output_len}};
}

void add_load_options(CLI::App& app, LoadArguments& a) {
  add_model(app, a.engine);
  add_engine_options(app, a.engine);
  app.add_option("--prompts", a.prompts, "file with one prompt per line (default: random token ids)");
  app.add_option("--input-len", a.input_len, "tokens per random prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--output-len", a.output_len, "tokens to generate per request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

namespace {

int throughput(LoadArguments a) {
  const auto engine = load_engine(a, a.num_prompts);
  Load load(*engine);
  load.run(make_requests(a, *engine, 1));  // warm-up
  const Load::Result r = load.run(make_requests(a, *engine, a.num_prompts));
  Json out = describe(a, *engine);
  out["requests"] = a.num_prompts;
  out["failed"] = r.failed;
  out["seconds"] = r.seconds;
  out["requests_per_second"] = a.num_prompts / r.seconds;
  out["output_tokens_per_second"] = static_cast<double>(r.output_tokens) / r.seconds;
  out["total_tokens_per_second"] = static_cast<double>(r.output_tokens + r.prompt_tokens) / r.seconds;
  out["ttft_ms"] = to_json(percentiles(r.ttft), 1000);
  out["tpot_ms"] = to_json(percentiles(r.tpot), 1000);
  out["itl_ms"] = to_json(percentiles(r.itl), 1000);
  out["e2e_ms"] = to_json(percentiles(r.e2e), 1000);
  print_result(out);
  return r.failed == 0 ? 0 : 1;
}

// The machine's limits and the model's demands: a step reads every weight once and multiplies it with every row.
struct Roofline {
  kernels::MachineLimits limits;
  double weight_bytes, weights;
  double peak;  // operations per second of the unit that multiplies such weights
};
// nullopt if the weights are on a device.
std::optional<Roofline> measure_roofline(const EngineOptions& options) {
  ThreadPool pool(options.threads);
  const LoadPlan plan = plan_load(options, pool);
  if (!plan.device->memory().host_accessible()) return {};
  const TypeInfo& type = *plan.weight_type();
  const double bytes = static_cast<double>(plan.weight_bytes);
  const kernels::MachineLimits m = kernels::measure_machine(pool);
  double peak = m.fma;
  if (plan.device->ops().matmul.at(&type).int8_block > 0) peak = std::max({m.fma, m.int8_dot, m.amx_int8});
  if (&type == &kBFloat16) peak = std::max({m.fma, m.bf16_dot, m.amx_bf16});
  return Roofline{m, bytes, bytes / type.block_bytes * type.block_size, peak};
}

// Adds the achieved fractions of the limits. For models with experts these are upper bounds, because a step does not
// read all weights.
void add_shares(Json& out, const Roofline& r, double prefill_rate, double step_seconds) {
  const kernels::MachineLimits& m = r.limits;
  const auto rounded = [](double v) { return std::round(v * 1000) / 1000; };
  out["machine"] = to_json(m);
  out["weight_gb"] = rounded(r.weight_bytes * 1e-9);
  if (step_seconds > 0 && m.read_bandwidth > 0) {
    out["decode_share_of_bandwidth"] = rounded(r.weight_bytes / step_seconds / m.read_bandwidth);
  }
  out["prefill_gops"] = rounded(2e-9 * r.weights * prefill_rate);
  out["prefill_share_of_peak"] = rounded(2 * r.weights * prefill_rate / r.peak);
}

Json latency_of(const LoadArguments& a, Engine& engine, const std::optional<Roofline>& roofline) {
  Load load(engine);
  const std::vector<Request> requests = make_requests(a, engine, a.batch_size);
  load.run(requests);  // warm-up
  std::vector<double> seconds, ttft, tpot, itl;
  for (int i = 0; i < a.iterations; ++i) {
    const Load::Result r = load.run(requests);
    if (r.failed > 0) throw Error(ErrorCode::kInternal, "a request failed");
    seconds.push_back(r.seconds);
    ttft.insert(ttft.end(), r.ttft.begin(), r.ttft.end());
    tpot.insert(tpot.end(), r.tpot.begin(), r.tpot.end());
    itl.insert(itl.end(), r.itl.begin(), r.itl.end());
  }
  Json out = describe(a, engine);
  out["batch_size"] = a.batch_size;
  out["iterations"] = a.iterations;
  out["latency_ms"] = to_json(percentiles(seconds), 1000);
  out["ttft_ms"] = to_json(percentiles(ttft), 1000);
  out["tpot_ms"] = to_json(percentiles(tpot), 1000);
  out["itl_ms"] = to_json(percentiles(itl), 1000);
  const Percentiles t = percentiles(ttft), p = percentiles(tpot);
  const double prefill_rate = a.batch_size * static_cast<double>(requests.front().prompt.size()) / t.p50;
  out["prefill_tokens_per_second"] = prefill_rate;
  if (p.p50 > 0) out["decode_tokens_per_second"] = a.batch_size / p.p50;
  if (roofline) add_shares(out, *roofline, prefill_rate, p.p50);
  return out;
}

}  // namespace

std::vector<Json> measure_latency(LoadArguments a, const std::vector<LoadShape>& shapes) {
  a.engine.enable_prefix_caching = false;  // every iteration must compute its prompt
  make_local(a.engine);
  const std::optional<Roofline> roofline = measure_roofline(a.engine);
  int most = 0;
  for (const LoadShape& shape : shapes) most = std::max(most, shape.batch_size);
  const auto engine = load_engine(a, most);
  std::vector<Json> results;
  for (const LoadShape& shape : shapes) {
    a.batch_size = shape.batch_size;
    a.input_len = shape.input_len;
    a.output_len = shape.output_len;
    results.push_back(latency_of(a, *engine, roofline));
  }
  return results;
}

namespace {

std::function<int()> declare_throughput(CLI::App& app) {
  auto a = std::make_shared<LoadArguments>();
  add_load_options(app, *a);
  app.add_option("--num-prompts", a->num_prompts, "number of requests, all submitted at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return [a] { return throughput(*a); };
}

// What --deterministic costs: the ratio of `result`'s medians to those of the kernels chosen without it. Costs nothing
// where both choose the same kernels, as on every CPU.
Json cost_beside_fastest(LoadArguments a, const std::vector<LoadShape>& shapes, const Json& result) {
  a.engine.deterministic = false;
  const std::string fastest(ops::select_backend(a.engine.backend).name);
  Json cost = {{"beside", fastest}, {"ttft", 1.0}, {"tpot", 1.0}};
  if (result["backend"] == fastest) return cost;
  const Json without = measure_latency(a, shapes).front();
  for (const char* name : {"ttft", "tpot"}) {
    const std::string key = fmt::format("{}_ms", name);
    const double p50 = without[key]["p50"];
    if (p50 > 0) cost[name] = result[key]["p50"].get<double>() / p50;
  }
  return cost;
}

std::function<int()> declare_latency(CLI::App& app) {
  auto a = std::make_shared<LoadArguments>();
  add_load_options(app, *a);
  app.add_option("--batch-size", a->batch_size, "requests per batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--iterations", a->iterations, "number of measured runs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return [a] {
    const std::vector<LoadShape> shapes = {{a->batch_size, a->input_len, a->output_len}};
    Json result = measure_latency(*a, shapes).front();
    if (a->engine.deterministic) result["deterministic_cost"] = cost_beside_fastest(*a, shapes, result);
    print_result(result);
    return 0;
  };
}

const BenchCommand throughput_command{"throughput", "measure many requests at once: tokens per second, TTFT, TPOT",
                                      declare_throughput};
const BenchCommand latency_command{"latency", "measure one batch at a time: latency, TTFT, TPOT", declare_latency};
const Registry<BenchCommand> registered_throughput{throughput_command};
const Registry<BenchCommand> registered_latency{latency_command};

}  // namespace
}  // namespace sluice::cli
