// A model that ranks compute together: threads of the test on host memory, processes on a GPU, because CUDA calls of
// one thread may wait for kernels of another. The caller is rank 0. Without options for ranks it is this process alone.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "golden/rank_threads.h"
#include "support/sanitized.h"

namespace sluice {

inline constexpr const char* kRankCommand = "rank";  // with it main() of ranks_test.cc is another rank

// SLUICE_TEST_MOST_RANKS leaves out the ways with more ranks, which take most of the time.
inline int most_ranks() {
  static const int most = [] {
    const char* given = std::getenv("SLUICE_TEST_MOST_RANKS");
    if (given == nullptr) return kSanitized ? 2 : Communicator::kMostRanks;
    fmt::print("ways with more than {} ranks are left out (SLUICE_TEST_MOST_RANKS)\n", given);
    return std::atoi(given);
  }();
  return most;
}

// The host's best backend, and a GPU's best if there is a GPU.
inline std::vector<std::string> rank_backends() {
  std::vector<std::string> names{std::string(ops::select_host_backend().name)};
  const ops::Backend& best = ops::select_backend();
  if (best.name != names[0] && best.can.collectives) names.emplace_back(best.name);
  return names;
}

class RankGroup {
 public:
  explicit RankGroup(const EngineOptions& options) {
    if (ops::select_backend(options.backend).open(0).memory().host_accessible()) {
      threads_ = std::make_unique<RankThreads>(options);
      return;
    }
    set_rank_command(kRankCommand);
    loaded_ = std::make_unique<LoadedModel>(load_model(options, pool_));
    runner_ = std::make_unique<Runner>(*loaded_);
  }
  ~RankGroup() { set_rank_command(""); }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  Runner& runner() { return threads_ ? threads_->runner() : *runner_; }
  LoadedModel& model() { return threads_ ? threads_->model() : *loaded_; }
  const LoadPlan& plan() const { return threads_ ? threads_->plan() : loaded_->plan; }

 private:
  ThreadPool pool_{1, /*pin=*/false};
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace sluice
