// Runs requests on an engine and waits for their answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "sluice/engine.h"

namespace sluice::testing {

struct Choice {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::optional<Finish> finish;
  Usage usage;
};

// Collects the events of several requests; wait() returns when all submitted ones have ended.
class Collector {
 public:
  explicit Collector(Engine& engine) : engine_(engine) {}
  ~Collector() { wait(); }

  // Returns the index of the request's answers.
  size_t submit(Request request) {
    size_t at = 0;
    {
      const std::scoped_lock lock(mutex_);
      at = answers_.size();
      answers_.emplace_back(static_cast<size_t>(request.n));
      ids_.push_back(0);
      ++open_;
    }
    RequestId id = 0;
    try {
      id = engine_.submit(std::move(request), [this, at](Event event) { take(at, std::move(event)); });
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      --open_;
      throw;
    }
    const std::scoped_lock lock(mutex_);
    ids_[at] = id;
    return at;
  }

  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return open_ == 0; });
  }
  bool done() {
    const std::scoped_lock lock(mutex_);
    return open_ == 0;
  }
  // Waits until the first choice has this many tokens or has ended.
  void wait_tokens(size_t at, size_t count) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return answers_[at][0].tokens.size() >= count || answers_[at][0].finish; });
  }
  RequestId id(size_t at) {
    const std::scoped_lock lock(mutex_);
    return ids_[at];
  }
  const std::vector<Choice>& answer(size_t at) {
    wait();
    return answers_[at];
  }

 private:
  void take(size_t at, Event event) {
    const std::scoped_lock lock(mutex_);
    Choice& choice = answers_[at][static_cast<size_t>(event.index)];
    choice.text += event_text(event);
    choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
    choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    if (!event.prompt_logprobs.empty()) choice.prompt_logprobs = event.prompt_logprobs;
    if (event.finish) choice.finish = event.finish;
    choice.usage = event.usage;
    if (event.last) --open_;
    done_.notify_all();
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<std::vector<Choice>> answers_;
  std::vector<RequestId> ids_;
  int open_ = 0;
};

inline Choice run_alone(Engine& engine, Request request) {
  Collector collector(engine);
  return collector.answer(collector.submit(std::move(request)))[0];
}

// The sum over replicas, which differ in the first label.
inline double metric(const Engine& engine, const std::string& name) {
  for (const MetricFamily& family : engine.metrics()) {
    if (family.name != name) continue;
    double sum = 0;
    for (const MetricSample& sample : family.samples) {
      auto labels = sample.labels;
      if (!labels.empty()) labels[0] = family.samples[0].labels[0];
      sum += labels == family.samples[0].labels ? sample.value : 0;
    }
    return sum;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

// Waits a limited time for the gauge to reach the value; returns whether it did.
inline bool settles(const Engine& engine, const std::string& name, double value) {
  for (int i = 0; i < 200; ++i) {
    if (metric(engine, name) == value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

inline std::string demo_model() { return std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m"; }
// A smaller model with the same tokens.
inline std::string draft_model() { return std::string(SLUICE_SOURCE_DIR) + "/models/minnow-1m-draft"; }

}  // namespace sluice::testing
