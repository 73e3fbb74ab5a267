// Sampling from logits on a device: tokens are drawn where the rows lie (ops/sample.h), with bias, masks, penalties,
// top-k, top-p and min-p; log-probabilities come with them. What the device has no room for (many edits, edits of a row
// that several choices draw from, alternatives among very many equal logits) is copied to the host, row by row, and
// left to Sampler.
#pragma once

#include "sampling/sample_inputs.h"

namespace sluice {

class DeviceSampler {
 public:
  // For steps of up to `rows` rows of `vocab` logits.
  DeviceSampler(ops::Queue& queue, int rows, int vocab);

  // Begins what finish() ends; logits [rows, vocab] lie in the backend's memory. Seeds give the same draws whatever the
  // other tasks are, but not those of the host: draws add Gumbel noise. True when the device draws every token,
  // task i as row i of drawn(): the next step may be launched before finish(). Else finish() must come before the
  // logits are written over.
  bool begin(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks);
  // Results as those of Sampler::sample(), of the tasks that begin() got; waits for the step.
  std::vector<SampleResult> finish(ops::Ctx& c, std::span<const SampleTask> tasks);
  // Bytes of ops::SampledRow that the last draw writes.
  const Tensor& sampled() const { return sampled_rows_; }

 private:
  std::span<const size_t> sampled_together(size_t begin) const;
  void sample(ops::Ctx& c, std::span<const SampleTask> tasks, std::span<const size_t> which);
  void collect(std::span<const SampleTask> tasks, std::span<const size_t> which, std::vector<SampleResult>& results);
  // False where the whole row is needed.
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
  Buffer whole_;  // rows of logits on the host
  // Of the step that was begun:
  Tensor logits_, sampled_rows_;
  std::vector<size_t> sampling_, whole_rows_;  // tasks
  uint64_t launched_ = 0;                      // event after them
  Sampler sampler_;
  std::vector<Candidate> listed_;  // of a row's largest logits
};

}  // namespace sluice
