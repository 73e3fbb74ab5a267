// Samples tokens from logits on the host, with logit bias, masks, penalties, temperature, top-k, top-p, min-p and
// log-probabilities.
//
// The random number of a token depends on its request alone. It comes from Philox4x32-10 (Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3"); the key is the seed, and the counter consists of choice and position. The
// sampler never sorts the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "batch/sample_task.h"
#include "sampling/selection.h"
#include "sluice/request.h"

namespace sluice {

// fp32 logits, row after row.
struct LogitsView {
  const float* data = nullptr;
  int rows = 0;
  int vocab = 0;
  int64_t stride = 0;  // floats from row to row

  std::span<const float> row(int i) const { return {data + i * stride, static_cast<size_t>(vocab)}; }
};

class Sampler {
 public:
  // Temperatures below this one are greedy.
  static constexpr double kGreedyBelow = 1e-5;

  explicit Sampler(ThreadPool& threads);
  ~Sampler();

  // Returns one result per task, in order. A result does not depend on the other tasks or on the number of threads.
  // Greedy ties go to the lowest id. Among equal logits at the cutoff of top-k and top-p, lower ids are kept. Bad
  // logits are an error of their task only. Token ids in the parameters must be below logits.vocab.
  std::vector<SampleResult> sample(const LogitsView& logits, std::span<const SampleTask> tasks);

 private:
  struct Scratch;

  SampleResult run(const LogitsView& logits, const SampleTask& task, Scratch& scratch);
  TokenId sample(std::span<const float> logits, float max, const SampleTask& task, Scratch& scratch);
  TokenLogprobs logprobs(std::span<const float> logits, float max, TokenId token, int n, Scratch& scratch);

  ThreadPool& threads_;
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace sluice
