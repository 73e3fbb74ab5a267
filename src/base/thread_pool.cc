// Workers watch the gate's generation. They spin for a while, because the next op of a step follows within
// microseconds. Then they sleep in the kernel through std::atomic::wait. A caller closes its gate when no work is left,
// and waits for the workers inside.
#include "base/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

// Long enough to bridge the serial code between two ops of a step, and short enough to cost nothing when idle.
constexpr auto kSpin = std::chrono::microseconds(100);

constexpr std::align_val_t kScratchAlignment{64};

void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Bit layout of gate_: generation << 32 | closed << 31 | workers that entered << 16 | workers inside.
struct Gate {
  static constexpr uint64_t kClosed = uint64_t{1} << 31, kEnter = (uint64_t{1} << 16) + 1, kLeave = 1;
  static uint32_t generation(uint64_t gate) { return static_cast<uint32_t>(gate >> 32); }
  static uint64_t entered(uint64_t gate) { return gate >> 16 & 0x7fff; }
  static uint64_t inside(uint64_t gate) { return gate & 0xffff; }
  static uint64_t open(uint32_t generation) { return static_cast<uint64_t>(generation) << 32; }
};

template <class Condition>
bool spin_until(Condition&& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      _mm_pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin, int parts, std::vector<int> cpus) : gate_(Gate::kClosed) {
  CHECK(threads >= 0 && threads <= 4096, "{} threads", threads);
  CHECK(parts >= 1 && parts <= kMaxNumaParts, "{} parts", parts);
  CHECK(cpus.empty() || parts == 1, "{} parts of {} CPUs", parts, cpus.size());
  if (cpus.empty()) {
    for (const NumaNode& node : numa_nodes()) cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
    if (parts == 1) std::sort(cpus.begin(), cpus.end());
  }
  if (threads == 0) threads = static_cast<int>(cpus.size());
  parts_ = std::min(parts, threads);
  pin_ = pin && threads <= static_cast<int>(cpus.size());
  std::vector<size_t> taken(numa_nodes().size());  // CPUs taken on each node
  for (int i = 0; i < threads; ++i) {
    const auto node = static_cast<size_t>(i * parts_ / threads) % numa_nodes().size();
    const std::vector<int>& near = parts_ > 1 ? numa_nodes()[node].cpus : cpus;
    const int cpu = near[(parts_ > 1 ? taken[node]++ : i) % near.size()];
    if (i > 0) workers_.start([this, i, cpu = pin_ ? cpu : -1] { work(i, cpu); });
  }
}

void ThreadPool::bind_caller() {
  thread_local const ThreadPool* bound = nullptr;
  if (bound == this) return;
  bound = this;
  bind_to(numa_node_of(0).cpus);
}

void ThreadPool::stop() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
}

std::byte* ThreadPool::scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_.reset(static_cast<std::byte*>(::operator new(bytes, kScratchAlignment)));
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void ThreadPool::AlignedDelete::operator()(std::byte* memory) const { ::operator delete(memory, kScratchAlignment); }

void ThreadPool::run_task(Task task, const void* context, bool everyone) {
  if (parts_ > 1 && pin_) bind_caller();
  task_ = task;
  context_ = context;
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  gate_.store(Gate::open(generation), std::memory_order_release);
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();
  call(task, context, 0);
  if (!everyone) gate_.fetch_or(Gate::kClosed, std::memory_order_acq_rel);
  const uint64_t awaited = everyone ? workers_.size() : 0;
  uint64_t gate = 0;
  const auto finished = [&] {
    gate = gate_.load(std::memory_order_acquire);
    return Gate::inside(gate) == 0 && Gate::entered(gate) >= awaited;
  };
  if (!spin_until(finished)) {
    while (!finished()) gate_.wait(gate, std::memory_order_acquire);
  }
  if (failed_.exchange(false, std::memory_order_relaxed)) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::call(Task task, const void* context, int worker) noexcept {
  try {
    task(context, worker, threads());
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadPool::work(int worker, int cpu) {
  if (cpu >= 0) bind_to({cpu});
  uint32_t seen = 0;  // last generation that this worker entered or found closed
  const auto called = [&] {
    return Gate::generation(gate_.load(std::memory_order_acquire)) != seen || stop_.load(std::memory_order_relaxed);
  };
  for (;;) {
    if (!spin_until(called)) generation_.wait(seen, std::memory_order_acquire);
    if (stop_.load()) return;
    uint64_t gate = gate_.load(std::memory_order_acquire);
    if (Gate::generation(gate) == seen) continue;
    while ((gate & Gate::kClosed) == 0 &&
           !gate_.compare_exchange_weak(gate, gate + Gate::kEnter, std::memory_order_acq_rel)) {
    }
    seen = Gate::generation(gate);
    if ((gate & Gate::kClosed) != 0) continue;
    call(task_, context_, worker);
    gate = gate_.fetch_sub(Gate::kLeave, std::memory_order_acq_rel);
    if (Gate::inside(gate) == 1) gate_.notify_all();
  }
}

}  // namespace sluice
