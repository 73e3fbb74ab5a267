// A wrapper per slot; what they share is one object of the process, as tables are.
#include "ops/timed.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace sluice::ops {
namespace {

struct Timer {
  const Ops* inner = nullptr;
  double (*now)() = nullptr;
  Ops table{};
  std::vector<OpTime> times{};
  OpTime between{.op = "between ops"};
  double last_end = 0;  // 0: no op has run since the times were taken
};
Timer timer;

template <auto Slot>
inline const char* name_of = "";

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.bytes()); }

double packed_bytes(const Weight& weight, int64_t outputs) {
  return static_cast<double>(timer.inner->matmul.at(weight.dtype).packed_bytes(outputs, weight.k));
}

double bytes_of(const MatmulArgs& args) {
  return packed_bytes(*args.weight, args.weight->n) + bytes_of(args.x) + bytes_of(args.out);
}

double bytes_of(const ExpertMatmulArgs& args) {
  const auto* starts = args.starts.as<int32_t>();
  const int64_t experts = args.starts.shape.elements() - 1;
  int64_t used = 0;
  for (int64_t e = 0; e < experts; ++e) used += starts[e] < starts[e + 1] ? 1 : 0;
  return static_cast<double>(used) * packed_bytes(*args.weight, stacked_outputs(args.out.shape[1])) + bytes_of(args.x) +
         bytes_of(args.out);
}

double bytes_of(const HeadMatmulArgs& args) {
  return packed_bytes(*args.weight, args.weight->n) + bytes_of(args.x) + bytes_of(args.out);
}

double bytes_of(const AttentionArgs& args) {
  int64_t positions = 0;
  for (const int32_t kv_len : args.kv_len) positions += args.window > 0 ? std::min(args.window, kv_len) : kv_len;
  const auto of_position = [](const CacheTensor& cache) {
    if (cache.data == nullptr) return 0.0;
    const int64_t scale = cache.scales != nullptr ? sizeof(float) : 0;
    return static_cast<double>(cache.shape[1] * (cache.shape[3] * cache.dtype->block_bytes + scale));
  };
  return static_cast<double>(positions) * (of_position(args.k_cache) + of_position(args.v_cache)) + bytes_of(args.q) +
         bytes_of(args.out);
}

// Arguments that are no tensors, or whose traffic nobody asked for.
template <class T>
double bytes_of(const T&) {
  return 0;
}

std::string shape_of(const Weight& weight) { return fmt::format(" {} {}x{}", weight.dtype->name, weight.n, weight.k); }

std::string shape_of(const Tensor& tensor) {
  std::string shape = fmt::format(" {}", tensor.shape[0]);
  for (int i = 1; i < tensor.shape.rank(); ++i) shape += fmt::format("x{}", tensor.shape[i]);
  return shape;
}

template <class T>
std::string shape_of(const T& args) {
  if constexpr (requires { args.weight->dtype; }) return shape_of(*args.weight);
  return {};
}

void add(OpTime& time, double seconds) {
  ++time.calls;
  time.seconds += seconds;
  time.best = std::min(time.best, seconds);
}

template <class First, class... Rest>
void record(const char* name, double begin, double end, const First& first, const Rest&... rest) {
  std::string op = name + shape_of(first);
  auto entry = std::ranges::find(timer.times, op, &OpTime::op);
  if (entry == timer.times.end()) entry = timer.times.insert(entry, {.op = std::move(op)});
  add(*entry, end - begin);
  entry->bytes += (bytes_of(first) + ... + bytes_of(rest));
  if (timer.last_end > 0) add(timer.between, begin - timer.last_end);
  timer.last_end = timer.now();
}

template <auto Slot>
struct Wrapper;

template <class... Args, void (*Ops::*Slot)(ThreadPool&, Args...)>
struct Wrapper<Slot> {
  static void call(ThreadPool& pool, Args... args) {
    const double begin = timer.now();
    (timer.inner->*Slot)(pool, args...);
    record(name_of<Slot>, begin, timer.now(), args...);
  }
};

// Products of many matrices run the type's own matmul on other threads: the inner one, which is not timed.
template <auto Slot, class Args>
void call_grouped(ThreadPool& pool, const MatmulKernels&, const Args& args) {
  const double begin = timer.now();
  (timer.inner->*Slot)(pool, timer.inner->matmul.at(args.weight->dtype), args);
  record(name_of<Slot>, begin, timer.now(), args);
}

// Reads a few rows of its table.
void embed(ThreadPool& pool, Tensor out, const Tensor& table, Indices ids) {
  const double begin = timer.now();
  timer.inner->embed(pool, out, table, ids);
  record("embed", begin, timer.now(), out);
}

void matmul(ThreadPool& pool, const MatmulArgs& args) {
  const double begin = timer.now();
  timer.inner->matmul.at(args.weight->dtype).matmul(pool, args);
  record("matmul", begin, timer.now(), args);
}

template <auto Slot, class Call>
void wrap(const char* name, Call* call) {
  name_of<Slot> = name;
  if (timer.inner->*Slot != nullptr) timer.table.*Slot = call;
}
template <auto Slot>
void wrap(const char* name) {
  wrap<Slot>(name, Wrapper<Slot>::call);
}

}  // namespace

const Ops& timed(const Ops& ops, double (*now)()) {
  timer = {.inner = &ops, .now = now, .table = ops};
  timer.table.embed = embed;
  wrap<&Ops::rms_norm>("rms_norm");
  wrap<&Ops::layer_norm>("layer_norm");
  wrap<&Ops::match_rms>("match_rms");
  wrap<&Ops::gaussian_top_k>("gaussian_top_k");
  wrap<&Ops::glu>("glu");
  wrap<&Ops::clamped_glu>("clamped_glu");
  wrap<&Ops::unary>("unary");
  wrap<&Ops::xielu>("xielu");
  wrap<&Ops::map>("map");
  wrap<&Ops::copy>("copy");
  wrap<&Ops::add>("add");
  wrap<&Ops::multiply>("multiply");
  wrap<&Ops::softplus>("softplus");
  wrap<&Ops::rope_store>("rope_store");
  wrap<&Ops::latent_store>("latent_store");
  wrap<&Ops::attention>("attention");
  wrap<&Ops::causal_conv>("causal_conv");
  wrap<&Ops::selective_scan>("selective_scan");
  wrap<&Ops::head_scan>("head_scan");
  wrap<&Ops::delta_rule>("delta_rule");
  wrap<&Ops::gated_lru>("gated_lru");
  wrap<&Ops::gather_rows>("gather_rows");
  wrap<&Ops::copy_rows>("copy_rows");
  wrap<&Ops::sample>("sample");
  wrap<&Ops::feed_sampled>("feed_sampled");
  wrap<&Ops::pooling>("pooling");
  wrap<&Ops::route>("route");
  wrap<&Ops::group_by_expert>("group_by_expert");
  wrap<&Ops::expert_matmul>("expert_matmul", call_grouped<&Ops::expert_matmul, ExpertMatmulArgs>);
  wrap<&Ops::head_matmul>("head_matmul", call_grouped<&Ops::head_matmul, HeadMatmulArgs>);
  wrap<&Ops::combine>("combine");
  for (auto& [type, kernels] : timer.table.matmul) kernels.matmul = matmul;
  return timer.table;
}

std::vector<OpTime> take_times() {
  std::vector<OpTime> times = std::exchange(timer.times, {});
  times.push_back(std::exchange(timer.between, {.op = "between ops"}));
  timer.last_end = 0;
  return times;
}

}  // namespace sluice::ops
