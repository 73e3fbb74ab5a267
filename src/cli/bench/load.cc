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
#include <thread>

#include "cli/bench/bench.h"
#include "cli/load_engine.h"
#include "engine/adapter_table.h"
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

  // The requests with a grammar, or those without one.
  struct Group {
    int requests = 0, ended_early = 0;
    int64_t output_tokens = 0;
    double seconds = 0;                              // from the start to the group's last token
    double largest_gap = 0, largest_decode_gap = 0;  // between two events of a request; while all requests decode
    std::vector<double> itl;
  };
  struct Result {
    double seconds = 0;
    int64_t prompt_tokens = 0, output_tokens = 0;
    int failed = 0;
    std::string error{};  // of the request that failed first
    std::vector<double> ttft, tpot, itl, e2e;
    Group plain{}, constrained{};
  };

  Result run(const std::vector<Request>& requests) {
    result_ = {};
    open_ = static_cast<int>(requests.size());
    decoding_ = 0;
    times_.assign(requests.size(), {});
    for (size_t i = 0; i < requests.size(); ++i) {
      times_[i].most_tokens = requests[i].sampling.max_tokens.value_or(0);
      times_[i].group = requests[i].grammar ? &result_.constrained : &result_.plain;
      ++times_[i].group->requests;
    }
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
    int tokens = 0, most_tokens = 0;
    Group* group = nullptr;
  };

  void on_event(size_t i, const Event& event) {
    const std::scoped_lock lock(mutex_);
    Times& t = times_[i];
    const Clock::time_point now = Clock::now();
    if (!event.tokens.empty() && t.tokens == 0) {
      t.first = now;
      ++decoding_;
      result_.ttft.push_back(std::chrono::duration<double>(now - t.submitted).count());
    }
    if (!event.tokens.empty()) {
      if (t.tokens > 0) add_gap(t, now, event.tokens.size());
      t.last = now;
    }
    t.tokens += static_cast<int>(event.tokens.size());
    t.group->output_tokens += static_cast<int64_t>(event.tokens.size());
    if (!event.last) return;
    result_.prompt_tokens += event.usage.prompt_tokens;
    result_.output_tokens += t.tokens;
    if (event.finish->reason == FinishReason::kError && ++result_.failed == 1) result_.error = event.finish->message;
    t.group->ended_early += t.tokens < t.most_tokens ? 1 : 0;
    t.group->seconds = seconds_since(start_);
    result_.e2e.push_back(std::chrono::duration<double>(now - t.submitted).count());
    if (t.tokens > 1) result_.tpot.push_back(std::chrono::duration<double>(now - t.first).count() / (t.tokens - 1));
    if (--open_ == 0) done_.notify_one();
  }

  void add_gap(const Times& t, Clock::time_point now, size_t tokens) {
    const double gap = std::chrono::duration<double>(now - t.last).count();
    const double each = gap / static_cast<double>(tokens);
    result_.itl.push_back(each);
    t.group->itl.push_back(each);
    t.group->largest_gap = std::max(t.group->largest_gap, gap);
    const bool all_decode = decoding_ == static_cast<int>(times_.size());
    if (all_decode) t.group->largest_decode_gap = std::max(t.group->largest_decode_gap, gap);
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<Times> times_;
  Result result_;
  Clock::time_point start_;
  int open_ = 0, decoding_ = 0;  // requests without an end; with a token
};

Json group_json(const Load::Group& group) {
  const auto ms = [](double seconds) { return std::round(seconds * 1e6) / 1e3; };
  return {{"requests", group.requests},
          {"ended_early", group.ended_early},
          {"output_tokens_per_second", static_cast<double>(group.output_tokens) / group.seconds},
          {"itl_ms", to_json(percentiles(group.itl), 1000)},
          {"largest_gap_ms", ms(group.largest_gap)},
          {"largest_decode_gap_ms", ms(group.largest_decode_gap)}};
}

// Every key is forced. The array goes on longer than an answer of a benchmark.
constexpr const char* kEndlessSchema =
    R"({"type": "array", "minItems": 10000, "items": {"type": "object", "additionalProperties": false,
        "properties": {"name": {"type": "string", "minLength": 4, "maxLength": 40},
                       "count": {"type": "integer", "minimum": 0, "maximum": 99999},
                       "kind": {"enum": ["city", "river", "mountain", "island"]},
                       "tags": {"type": "array", "maxItems": 4, "items": {"type": "string", "maxLength": 20}}},
        "required": ["name", "count", "kind", "tags"]}})";

GrammarSpec grammar_of(const LoadArguments& a) {
  if (!a.regex.empty()) return {.kind = "regex", .text = a.regex, .param = "--regex"};
  GrammarSpec grammar{.kind = "json_schema", .text = a.schema.empty() ? kEndlessSchema : a.schema};
  grammar.param = "--json-schema";
  const size_t first = grammar.text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && grammar.text[first] == '{') return grammar;
  std::ifstream in(a.schema);
  if (!in) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--json-schema: '{}' is neither an object nor a file that can be read", a.schema));
  }
  grammar.text.assign(std::istreambuf_iterator<char>(in), {});
  return grammar;
}

int used_adapters(const LoadArguments& a) {
  const int loaded = static_cast<int>(a.engine.lora_modules.size());
  if (a.adapters > loaded) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--adapters {}: expected at most the {} of --lora-modules", a.adapters, loaded));
  }
  return a.adapters < 0 ? loaded : a.adapters;
}

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
  const int adapters = used_adapters(a);
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
    if (adapters > 0) r.adapter = parse_lora_module(a.engine.lora_modules[static_cast<size_t>(i % adapters)]).first;
    requests.push_back(std::move(r));
  }
  return requests;
}

// Returns when all graphs of decode steps are captured, so that no request waits for one.
std::unique_ptr<Engine> load_engine(LoadArguments& a, int requests) {
  make_local(a.engine);
  a.engine.max_num_queued_reqs = std::max(a.engine.max_num_queued_reqs, requests);
  std::unique_ptr<Engine> engine = load_engine(a.engine);
  for (Health h = engine->health(); h.preparing && !h.failed; h = engine->health()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return engine;
}

Json describe(const LoadArguments& a, const Engine& engine) {
  const ModelInfo& m = engine.model();
  return {{"model", m.name},
          {"dtype", m.dtype},
          {"backend", m.backend},
          {"input", a.prompts.empty() ? Json(a.input_len) : Json(a.prompts)},
          {"output_len", a.output_len},
          {"adapters", used_adapters(a)}};
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
  app.add_option("--adapters", a.adapters,
                 "requests take turns with so many of --lora-modules, the first ones (default: all)")
      ->check(CLI::NonNegativeNumber);
}

namespace {

// Gives the grammar to a->constrained of the requests. Their first ones would make the vocabulary's tables, so that the
// warm-up has a grammar, too; another one, as a grammar keeps its masks.
void constrain(const LoadArguments& a, std::vector<Request>& requests, std::vector<Request>& warm_up) {
  if (a.constrained == 0) return;
  const GrammarSpec grammar = grammar_of(a);
  for (int64_t i = 0; i < a.constrained; ++i) {
    requests[static_cast<size_t>(i * a.num_prompts / a.constrained)].grammar = grammar;
  }
  warm_up.front().grammar = GrammarSpec{.kind = "regex", .text = "[a-z ]+"};
}

int throughput(LoadArguments a) {
  if (a.constrained > a.num_prompts) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--constrained {}: expected at most --num-prompts, {}", a.constrained, a.num_prompts));
  }
  if (a.constrained == 0 && !(a.schema.empty() && a.regex.empty())) {
    throw Error(ErrorCode::kInvalidRequest, "--json-schema and --regex need --constrained above 0");
  }
  const auto engine = load_engine(a, a.num_prompts);
  Load load(*engine);
  std::vector<Request> warm_up = make_requests(a, *engine, 1), requests = make_requests(a, *engine, a.num_prompts);
  constrain(a, requests, warm_up);
  load.run(warm_up);
  const Load::Result r = load.run(requests);
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
  if (r.plain.requests > 0) out["plain"] = group_json(r.plain);
  if (r.constrained.requests > 0) out["constrained"] = group_json(r.constrained);
  if (r.failed > 0) out["error"] = r.error;
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

}  // namespace sluice::cli

namespace sluice::cli::bench_load {
namespace {

std::function<int()> declare_throughput(CLI::App& app) {
  auto a = std::make_shared<LoadArguments>();
  add_load_options(app, *a);
  app.add_option("--num-prompts", a->num_prompts, "number of requests, all submitted at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--constrained", a->constrained, "number of requests with a grammar, up to --num-prompts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  auto* schema = app.add_option("--json-schema", a->schema,
                                "grammar of --constrained: a schema, or a file with one (default: a long array)");
  app.add_option("--regex", a->regex, "grammar of --constrained: a regular expression")->excludes(schema);
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
}  // namespace sluice::cli::bench_load
