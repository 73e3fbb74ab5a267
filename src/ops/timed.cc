// One wrapper per slot. The wrappers share one object of the process, because tables hold plain functions.
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
  double last_end = 0;  // 0: no op has run since take_times()
};
Timer timer;

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
  if (args.selected.data != nullptr) positions = args.selected.shape.elements();
  const auto of_position = [](const CacheTensor& cache) {
    if (cache.data == nullptr) return 0.0;
    const int64_t scale = cache.scales != nullptr ? sizeof(float) : 0;
    return static_cast<double>(cache.shape[1] * (cache.shape[3] * cache.dtype->block_bytes + scale));
  };
  return static_cast<double>(positions) * (of_position(args.k_cache) + of_position(args.v_cache)) + bytes_of(args.q) +
         bytes_of(args.out);
}

// Arguments that are not tensors, or whose traffic is not counted.
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

// Calls the slot's function and times it. `Index` is the slot's index in kSlots.
template <size_t Index, class Function = SlotFunction<std::get<Index>(kSlots).member>>
struct Timed;

template <size_t Index, class... Args>
struct Timed<Index, void(Queue&, Args...)> {
  static void call(Queue& queue, Args... args) {
    const double begin = timer.now();
    (timer.inner->*std::get<Index>(kSlots).member)(queue, args...);
    record(std::get<Index>(kSlots).name, begin, timer.now(), args...);
  }
};

// Stacked matmuls call the weight type's own matmul on other threads. That inner call is not timed.
template <size_t Index, class Args>
struct Timed<Index, void(Queue&, const MatmulKernels&, const Args&)> {
  static void call(Queue& queue, const MatmulKernels&, const Args& args) {
    const double begin = timer.now();
    (timer.inner->*std::get<Index>(kSlots).member)(queue, timer.inner->matmul.at(args.weight->dtype), args);
    record(std::get<Index>(kSlots).name, begin, timer.now(), args);
  }
};

// The op reads only a few rows of its table, so only the bytes of the result count.
void timed_embed(Queue& queue, Tensor out, const Tensor& table, Indices ids) {
  const double begin = timer.now();
  timer.inner->embed(queue, out, table, ids);
  record("embed", begin, timer.now(), out);
}

void timed_matmul(Queue& queue, const MatmulArgs& args) {
  const double begin = timer.now();
  timer.inner->matmul.at(args.weight->dtype).matmul(queue, args);
  record("matmul", begin, timer.now(), args);
}

template <size_t... Index>
void wrap(OpTable& table, std::index_sequence<Index...>) {
  ((table.*std::get<Index>(kSlots).member = Timed<Index>::call), ...);
}

}  // namespace

const Ops& timed(const Ops& ops, double (*now)()) {
  timer = {.inner = &ops, .now = now, .table = ops};
  wrap(timer.table, std::make_index_sequence<std::tuple_size_v<decltype(kSlots)>>());
  timer.table.embed = timed_embed;
  timer.table.all_reduce_norm = nullptr;  // sums and norms are timed each for itself
  for (auto& [type, kernels] : timer.table.matmul) kernels.matmul = timed_matmul;
  return timer.table;
}

std::vector<OpTime> take_times() {
  std::vector<OpTime> times = std::exchange(timer.times, {});
  times.push_back(std::exchange(timer.between, {.op = "between ops"}));
  timer.last_end = 0;
  return times;
}

}  // namespace sluice::ops
