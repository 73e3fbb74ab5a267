// Times copies of the KV cache's blocks to pinned memory and back, as engine/row_mover.cc makes them: blocks of all
// layers are packed on the device, some rows while others are copied.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "cuda/parts.h"
#include "cuda/timing.h"
#include "kernels/cuda/device.h"
#include "ops/ops.h"

namespace sluice::cuda {
namespace {

// An 8B model's cache: keys and values of 36 layers, 8 heads of 128 bf16 values, blocks of 16 tokens.
constexpr int kRegions = 72, kBlocks = 4096, kBatch = 56, kPart = 8, kRounds = 20;
constexpr int64_t kColumns = 8 * 16 * 128;
constexpr size_t kRowBytes = kRegions * kColumns * 2;

struct Direction {
  std::unique_ptr<ops::Queue> packs, copies;
  Buffer staged, host;
  std::vector<int32_t> pairs;
  DeviceIndices pairs_on_device;
  bool saves;

  Direction(ops::Device& device, ThreadPool& threads, bool saves, const std::vector<int32_t>& order)
      : packs(device.make_copy_queue(threads)),
        copies(device.make_copy_queue(threads)),
        staged(kBatch * kRowBytes, device.memory()),
        host(kBatch * kRowBytes, device.pinned_memory()),
        pairs(order),
        pairs_on_device(order),
        saves(saves) {}

  void copy(size_t first) const {
    const size_t at = first * kRowBytes, bytes = kPart * kRowBytes;
    copies->copy_async((saves ? host : staged).data() + at, (saves ? staged : host).data() + at, bytes);
  }
  void pack(const std::vector<Tensor>& regions, size_t first) const {
    Arena none(0);
    ops::Ctx ctx(*packs, none);
    const Indices own = Indices(pairs, pairs_on_device.data()).part(2 * first, 2 * kPart);
    for (size_t i = 0; i < regions.size(); ++i) {
      Tensor columns(staged.data() + i * kColumns * 2, &kBFloat16, {kBatch, kColumns});
      columns.row_stride = kRowBytes / 2;
      ops::copy_rows(ctx, saves ? columns : regions[i], saves ? regions[i] : columns, own);
    }
  }

  void move(const std::vector<Tensor>& regions, bool with_pack, bool with_copy) const {
    for (size_t first = 0; first < kBatch; first += kPart) {
      if (with_copy && !saves) copy(first), packs->run_after(*copies, copies->record_event());
      if (with_pack) pack(regions, first);
      if (with_copy && saves) copies->run_after(*packs, packs->record_event()), copy(first);
    }
    copies->wait();
    packs->wait();
  }
};

double seconds_of(const std::function<void()>& body) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace

void bench_transfers() {
  ops::Device& device = bench_queue().device();
  ThreadPool threads(1, /*pin=*/false);
  const Buffer cache(size_t{kBlocks} * kRowBytes, device.memory());
  std::vector<Tensor> regions;
  for (int i = 0; i < kRegions; ++i) {
    regions.emplace_back(cache.data() + size_t{kBlocks} * kColumns * 2 * static_cast<size_t>(i), &kBFloat16,
                         Shape{kBlocks, kColumns});
  }
  std::vector<int32_t> blocks(kBlocks), to_rows, from_rows;
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  for (int32_t i = 0; i < kBatch; ++i) {
    to_rows.insert(to_rows.end(), {blocks[i], i});
    from_rows.insert(from_rows.end(), {i, blocks[kBatch + i]});
  }
  const Direction save(device, threads, true, to_rows), load(device, threads, false, from_rows);
  const double bytes = static_cast<double>(kBatch * kRowBytes);
  const auto print = [&](const char* what, double seconds, double moved) {
    fmt::print("{:32} {:7.0f} us  {:6.1f} GB/s\n", what, seconds * 1e6, moved / seconds * 1e-9);
  };
  for (const Direction* one : {&save, &load}) {
    const char* name = one->saves ? "to pinned memory" : "from pinned memory";
    print(fmt::format("{}, copies alone", name).c_str(), seconds_of([&] { one->move(regions, false, true); }), bytes);
    print(fmt::format("{}, packing alone", name).c_str(), seconds_of([&] { one->move(regions, true, false); }), bytes);
    print(name, seconds_of([&] { one->move(regions, true, true); }), bytes);
  }
  constexpr int kTurns = 20;
  const auto turns = [&](const Direction& one) {
    for (int i = 0; i < kTurns; ++i) one.move(regions, true, true);
  };
  const auto begin = std::chrono::steady_clock::now();
  std::thread other(turns, std::cref(load));
  turns(save);
  other.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  print("both ways at once", took.count() / kTurns, 2 * bytes);
}

}  // namespace sluice::cuda
