// A model that several ranks compute together, as threads of the test. The caller is rank 0.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/ranks.h"
#include "engine/runner.h"
#include "parallel/communicator.h"

namespace sluice {

class RankThreads {
 public:
  // Throws what loading on rank 0 throws.
  explicit RankThreads(const EngineOptions& options) {
    const int ranks = ranks_of(options);
    std::vector<std::unique_ptr<Communicator>> ends = Communicator::of_threads(ranks);
    mine_ = std::move(ends[0]);
    for (int rank = 1; rank < ranks; ++rank) {
      threads_.emplace_back(
          [this, options, end = std::shared_ptr(std::move(ends[static_cast<size_t>(rank)]))] { follow(options, end); });
    }
    try {
      loaded_ = std::make_unique<LoadedModel>(load_model(options, pool_, {}, mine_));
      runner_ = std::make_unique<Runner>(*loaded_);
    } catch (...) {
      join();
      throw;
    }
  }
  ~RankThreads() {
    std::vector<std::byte> end;
    if (!mine_->lost()) mine_->broadcast(end, 0);
    join();
  }
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  Runner& runner() { return *runner_; }
  LoadedModel& model() { return *loaded_; }
  const LoadPlan& plan() const { return loaded_->plan; }

 private:
  void follow(const EngineOptions& options, const std::shared_ptr<Communicator>& end) const {
    try {
      ThreadPool pool(1, /*pin=*/false);
      LoadedModel loaded = load_model(options, pool, {}, end);
      Runner(loaded).follow();
    } catch (const std::exception& e) {
      end->fail(e.what());
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
  }

  ThreadPool pool_{1, /*pin=*/false};
  std::shared_ptr<Communicator> mine_;
  std::vector<std::thread> threads_;
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace sluice
