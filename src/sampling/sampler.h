// Samples tokens with the sample op (ops/sample.h), with bias, masks, penalties, filters and log-probabilities. Logits
// stay in the memory of their device.
#pragma once

#include "sampling/sample_inputs.h"

namespace sluice {

class Sampler {
 public:
  // Takes steps of up to `rows` rows of `vocab` logits.
  // The threads of `pool` fill masks; null: the calling thread does.
  Sampler(ops::Queue& queue, int rows, int vocab, ThreadPool* pool = nullptr);

  // Starts sampling; finish() completes it. Logits [rows, vocab] are in the device's memory. A seed gives the same
  // tokens whatever the other tasks are, and on every device where the logits are equal. Greedy ties go to the lowest
  // id. Bad logits are an error of their task only. Token ids in the parameters must be below the vocabulary size.
  // Returns true if one launch samples every token, task i as row i of sampled(). The next step may then be launched
  // before finish(). Otherwise finish() must come before the logits are overwritten.
  bool begin(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks);
  // Waits for the step and returns one result per task, in order. `tasks` must be those given to begin().
  std::vector<SampleResult> finish(ops::Ctx& c, std::span<const SampleTask> tasks);
  // Bytes of the ops::SampledRow that the last launch writes.
  const Tensor& sampled() const { return sampled_rows_; }

 private:
  // Tasks [begin, end) of a step, sampled together.
  struct Launch {
    size_t begin = 0, end = 0;
    size_t size() const { return end - begin; }
  };

  void divide(std::span<const SampleTask> tasks);
  void launch(ops::Ctx& c, std::span<const SampleTask> tasks);
  void collect(std::span<const SampleTask> tasks, std::span<SampleResult> results);
  SampleResult read(const SampleTask& task, size_t at, const ops::SampledRow& sampled,
                    std::span<const ops::TopLogit> top);
  std::vector<TokenCandidate> edited_candidates(const SampleTask& task, size_t at, double log_sum);
  std::span<const float> row_on_host(int row);
  void list_row(std::span<const float> logits, int count);

  ops::Queue& queue_;
  const int most_rows_, vocab_;
  SampleInputs inputs_;
  Mirror sampled_, top_;
  // The step that begin() started:
  Tensor logits_, sampled_rows_;
  std::vector<Launch> launches_;
  uint64_t launched_ = 0;              // event after the last launch
  std::vector<ops::TopLogit> listed_;  // the largest logits of one row, in order
  std::vector<float> edited_;          // a row with its edits
  Buffer row_;                         // a row copied to the host, in pinned memory
};

}  // namespace sluice
