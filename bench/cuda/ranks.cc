// Times sums over two ranks, each a process on a GPU of its own where there are two. Sums of many calls are captured as
// a graph, so that launches do not count.
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "cuda/parts.h"
#include "kernels/cuda/device.h"
#include "ops/ops.h"
#include "parallel/communicator.h"

extern char** environ;

namespace sluice::cuda {
namespace {

constexpr int kRanks = 2, kFd = 3, kLaunches = 10;
constexpr int64_t kColumns = 4096;

enum class After { kNothing, kNorm, kNormInOneCall };

double seconds_per_sum(ops::Ctx& ctx, const Tensor& x, const Tensor& normed, After after, int calls) {
  const ops::RowNorm norm{.out = normed, .eps = 1e-5f};
  const auto sums = [&] {
    for (int i = 0; i < calls; ++i) {
      ops::all_reduce(ctx, x, x, false, after == After::kNormInOneCall ? &norm : nullptr);
      if (after == After::kNorm) ops::rms_norm(ctx, normed, x, nullptr, 1e-5f);
    }
  };
  const std::unique_ptr<ops::CapturedGraph> graph = ctx.queue.capture(sums);
  double least = 1;
  for (int round = 0; round < 5; ++round) {
    ctx.queue.wait();
    ctx.communicator->barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) graph->launch();
    ctx.queue.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count() / (kLaunches * calls));
  }
  return least;
}

void measure(Communicator& communicator) {
  const int devices = device_count(), rank = communicator.rank();
  ops::Device& device = ops::select_backend("cuda").open(rank % devices);
  ThreadPool threads(1, /*pin=*/false);
  const std::unique_ptr<ops::Queue> queue = device.make_queue(threads);
  Arena arena(0);
  ops::Ctx ctx(*queue, arena);
  ctx.communicator = &communicator;
  if (rank == 0) fmt::print("{} ranks on {} GPUs\n", kRanks, std::min(devices, kRanks));
  for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 8192}) {
    const Buffer memory(static_cast<size_t>(rows * kColumns) * sizeof(float), device.memory());
    const Tensor x(memory.data(), &kFloat32, {rows, kColumns});
    ops::all_reduce(ctx, x, x, false);  // the first one sets up the exchange
    const Buffer other(x.bytes(), device.memory());
    const Tensor normed(other.data(), &kFloat32, x.shape);
    const int calls = rows > 256 ? 4 : 64;
    const auto seconds = [&](After after) { return seconds_per_sum(ctx, x, normed, after, calls); };
    const double sum = seconds(After::kNothing), apart = seconds(After::kNorm), fused = seconds(After::kNormInOneCall);
    if (rank == 0) {
      fmt::print(
          "sum of {:5} x {} floats: {:8.1f} us, {:6.1f} GB/s each way; a norm behind it {:8.1f} us, in one call "
          "{:8.1f} us\n",
          rows, kColumns, sum * 1e6, static_cast<double>(x.bytes()) / sum * 1e-9, apart * 1e6, fused * 1e6);
    }
  }
}

}  // namespace

void bench_ranks() {
  pid_t other = -1;
  {
    const std::unique_ptr<Communicator> communicator = Communicator::create(kRanks);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, communicator->fd(), kFd);
    std::string name = "cuda_bench", part = "other-rank";
    char* words[] = {name.data(), part.data(), nullptr};
    const int failure = ::posix_spawn(&other, "/proc/self/exe", &actions, nullptr, words, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    CHECK(failure == 0, "a process could not be started");
    measure(*communicator);
  }
  ::waitpid(other, nullptr, 0);
}

void run_other_rank() { measure(*Communicator::join(kFd, 1)); }

}  // namespace sluice::cuda
