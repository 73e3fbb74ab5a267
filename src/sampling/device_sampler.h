// Samples tokens on the device that holds the logits (ops/sample.h), with bias, masks, penalties, top-k, top-p, min-p
// and log-probabilities.
//
// Some rows need the host: those with more edits than the device has room for, those with edits that several choices
// sample from, and those whose log-probabilities list very many equal logits. They are copied to the host, and Sampler
// samples them.
#pragma once

#include "sampling/sample_inputs.h"

namespace sluice {

class DeviceSampler {
 public:
  // Takes steps of up to `rows` rows of `vocab` logits.
  DeviceSampler(ops::Queue& queue, int rows, int vocab);

  // Starts sampling; finish() completes it. Logits [rows, vocab] are in the device's memory. A seed gives the same
  // tokens whatever the other tasks are. They differ from the host's, because the device samples with Gumbel noise.
  // Returns true if the device samples every token, task i as row i of sampled(). The next step may then be launched
  // before finish(). Otherwise finish() must come before the logits are overwritten.
  bool begin(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks);
  // Waits for the step and returns results like those of Sampler::sample(). `tasks` must be those given to begin().
  std::vector<SampleResult> finish(ops::Ctx& c, std::span<const SampleTask> tasks);
  // Bytes of the ops::SampledRow that the last launch writes.
  const Tensor& sampled() const { return sampled_rows_; }

 private:
  std::span<const size_t> sampled_together(size_t begin) const;
  void sample(ops::Ctx& c, std::span<const SampleTask> tasks, std::span<const size_t> which);
  void collect(std::span<const SampleTask> tasks, std::span<const size_t> which, std::vector<SampleResult>& results);
  // Returns false if the whole row is needed.
  bool read(const SampleTask& task, const ops::SampledRow& sampled, std::span<const ops::TopLogit> top,
            SampleResult& result);
  bool report(const SampleTask& task, const ops::SampledRow& sampled, std::span<const ops::TopLogit> top,
              SampleResult& result);
  void sample_rows(std::span<const SampleTask> tasks, std::vector<SampleResult>& results);
  int vocab() const { return static_cast<int>(logits_.shape[1]); }

  ops::Queue& queue_;
  int most_rows_;
  SampleInputs inputs_;
  Mirror sampled_, top_;
  Buffer whole_;  // rows of logits copied to the host
  // The step that begin() started:
  Tensor logits_, sampled_rows_;
  std::vector<size_t> sampling_, whole_rows_;  // indices of tasks sampled on the device, and of tasks for the host
  uint64_t launched_ = 0;                      // event after the launched samples
  Sampler sampler_;
  std::vector<Candidate> listed_;  // the largest logits of one row
};

}  // namespace sluice
