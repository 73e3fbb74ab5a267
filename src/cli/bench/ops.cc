// sluice bench ops: runs a step of a model without scheduler and sampler, and times it op by op. Shows where time goes
// and what share of the machine's bandwidth each op reaches.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/bench/bench.h"
#include "engine/load.h"
#include "kernels/cpu/dispatch/machine.h"
#include "ops/timed.h"
#include "sluice/error.h"

namespace sluice::cli::bench_ops {
namespace {

struct Arguments {
  EngineOptions engine;
  std::vector<int> batch_sizes = {1};
  int context = 128, prompt = 0, steps = 20;
};

// A batch of sequences of `context` tokens, whose last `rows` tokens are computed; block and state ids are in order.
Batch make_batch(const LoadPlan& plan, int block_size, int sequences, int rows, int context) {
  const int blocks = (context + block_size - 1) / block_size;
  if (sequences * blocks * static_cast<int>(plan.kv.groups.size()) > plan.blocks || context > plan.max_model_len ||
      sequences > plan.max_num_seqs) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("{} sequences of {} tokens: the engine has {} sequences of {} tokens and {} blocks of {}",
                            sequences, context, plan.max_num_seqs, plan.max_model_len, plan.blocks, block_size));
  }
  Batch batch;
  batch.query_start = {0};
  batch.block_table_stride = blocks;
  for (int s = 0; s < sequences; ++s) {
    for (int position = context - rows; position < context; ++position) {
      batch.tokens.push_back(1 + (position + s) % 100);
      batch.positions.push_back(position);
      batch.slots.push_back(s * blocks * block_size + position);
    }
    batch.query_start.push_back((s + 1) * rows);
    batch.kv_len.push_back(context);
    batch.prompt_len.push_back(context);
    batch.sample_rows.push_back((s + 1) * rows - 1);
    if (plan.state_slots > 0) batch.state_slots.push_back(s);
    for (int b = 0; b < blocks; ++b) batch.block_table.push_back(s * blocks + b);
  }
  spread_over(batch, plan.kv.groups, block_size);
  return batch;
}

struct Step {
  double seconds;                // median time of a step
  std::vector<ops::OpTime> ops;  // average times per step; `best` is the fastest call of all steps
};

Step measure(LoadedModel& loaded, ops::Ctx& ctx, const Batch& batch, int steps) {
  std::vector<double> seconds;
  const auto run = [&] {
    loaded.arena->reset();
    const double begin = kernels::now();
    loaded.model->forward(ctx, batch, *loaded.kv, *loaded.states);
    seconds.push_back(kernels::now() - begin);
  };
  run();  // warm-up
  seconds.clear();
  ops::take_times();
  Step step{};
  for (int i = 0; i < steps; ++i) {
    run();
    for (const ops::OpTime& time : ops::take_times()) {
      auto sum = std::ranges::find(step.ops, time.op, &ops::OpTime::op);
      if (sum == step.ops.end()) sum = step.ops.insert(sum, {.op = time.op, .calls = time.calls, .bytes = time.bytes});
      sum->seconds += time.seconds / steps;
      sum->best = std::min(sum->best, time.best);
    }
  }
  step.seconds = percentiles(seconds).p50;
  std::ranges::stable_sort(step.ops, std::greater(), &ops::OpTime::seconds);
  return step;
}

// Prints two times per op: the average, and the fastest call, which was not disturbed by other processes. The sum of
// the fastest times is what a step would take on an idle machine.
void print(const char* phase, const Step& step, int rows, const kernels::MachineLimits& limits) {
  double best = 0;
  for (const ops::OpTime& op : step.ops) best += op.best * static_cast<double>(op.calls);
  fmt::print("{}, {} rows: {:.0f} us, sum of fastest ops {:.0f} us\n", phase, rows, step.seconds * 1e6, best * 1e6);
  fmt::print("  {:<32}{:>6}{:>10}{:>9}{:>9}{:>8}{:>10}\n", "op", "calls", "us/call", "fastest", "of step", "GB/s",
             "of bandw.");
  Json list = Json::array();
  for (const ops::OpTime& op : step.ops) {
    const auto calls = static_cast<double>(op.calls);
    const double rate = op.bytes / (op.best * calls);
    fmt::print("  {:<32}{:>6}{:>10.2f}{:>9.2f}{:>8.1f}%", op.op, op.calls, op.seconds / calls * 1e6, op.best * 1e6,
               100 * op.best * calls / best);
    if (op.bytes > 0) fmt::print("{:>8.1f}", rate * 1e-9);
    if (op.bytes > 0 && limits.read_bandwidth > 0) fmt::print("{:>9.0f}%", 100 * rate / limits.read_bandwidth);
    fmt::print("\n");
    list.push_back({{"op", op.op},
                    {"calls", op.calls},
                    {"us", op.seconds * 1e6},
                    {"fastest_call_us", op.best * 1e6},
                    {"bytes", op.bytes}});
  }
  print_result({{"phase", phase},
                {"rows", rows},
                {"step_us", step.seconds * 1e6},
                {"fastest_us", best * 1e6},
                {"machine", to_json(limits)},
                {"ops", std::move(list)}});
}

int measure_ops(Arguments a) {
  make_local(a.engine);
  if (a.prompt > 0) a.engine.max_num_batched_tokens = std::max(a.engine.max_num_batched_tokens, a.prompt);
  const ops::Backend& backend = ops::select_backend(a.engine.backend);
  if (!backend.open(0).memory().host_accessible()) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("backend '{}' does not support timing ops one by one", backend.name));
  }
  for (const auto& [option, size] : {std::pair{"tensor-parallel-size", a.engine.tensor_parallel_size},
                                     {"pipeline-parallel-size", a.engine.pipeline_parallel_size}}) {
    if (size == 1) continue;
    throw Error(ErrorCode::kInvalidRequest, fmt::format("--{}: the ops of one process are timed (expected 1)", option));
  }
  ThreadPool pool(a.engine.threads);
  if (pool.threads() == 1) kernels::use_cpu_time();
  LoadedModel loaded = load_model(a.engine, pool);
  const kernels::MachineLimits limits = kernels::measure_machine(pool);
  ops::Ctx ctx{ops::timed(loaded.plan.device->ops(), kernels::now), *loaded.plan.queue, *loaded.arena};
  const int block_size = a.engine.block_size;
  if (a.prompt > 0) {
    const Batch batch = make_batch(loaded.plan, block_size, 1, a.prompt, a.prompt);
    print("prefill", measure(loaded, ctx, batch, a.steps), a.prompt, limits);
  }
  for (const int sequences : a.batch_sizes) {
    const Batch batch = make_batch(loaded.plan, block_size, sequences, 1, a.context);
    print("decode", measure(loaded, ctx, batch, a.steps), sequences, limits);
  }
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_model(app, a->engine);
  add_engine_options(app, a->engine);
  const auto count = [&](const char* name, int& value, const char* what) {
    return app.add_option(name, value, what)->capture_default_str();
  };
  app.add_option("--batch-size", a->batch_sizes, "sequences in a decode step; a list is measured one after the other")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  count("--context", a->context, "tokens of each sequence, including the new one")->check(CLI::PositiveNumber);
  count("--prompt", a->prompt, "rows of a prefill step, which is measured first (0: none)")
      ->check(CLI::NonNegativeNumber);
  count("--steps", a->steps, "number of measured steps")->check(CLI::PositiveNumber);
  return [a] { return measure_ops(*a); };
}

const BenchCommand command{
    "ops", "time a step op by op; --threads 1 measures CPU time, which is steady on a busy machine", declare};
const Registry<BenchCommand> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_ops
