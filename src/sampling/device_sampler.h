// Sampling from logits on a device: tokens are drawn where the rows lie (ops/draw.h), or cut down there to the few
// candidates that the host finishes with. What asks for whole rows (log-probabilities, penalties, bias, a nucleus of
// many tokens) is copied to the host, row by row, and left to Sampler.
#pragma once

#include "ops/ops.h"
#include "sampling/sampler.h"

namespace sluice {

class DeviceSampler {
 public:
  // For steps of up to `rows` rows of `vocab` logits.
  DeviceSampler(const ops::Backend& backend, ThreadPool& threads, int rows, int vocab);

  // As Sampler::sample(); logits [rows, vocab] lie in the backend's memory. Seeds give the same draws whatever the
  // other tasks are, but not those of the host: plain draws add Gumbel noise.
  std::vector<SampleResult> sample(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks);

 private:
  // One piece of staging memory and its like on the device.
  struct Mirror {
    Buffer host, device;
  };

  Mirror mirror(size_t bytes) const;
  void draw(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks, std::span<const size_t> which,
            std::vector<SampleResult>& results, std::vector<size_t>& whole_rows);
  SampleResult finish(const SampleTask& task, int vocab, const ops::DrawnRow& drawn,
                      std::span<const ops::DrawCandidate> candidates);
  void sample_rows(const Tensor& logits, std::span<const SampleTask> tasks, std::span<const size_t> which,
                   std::vector<SampleResult>& results);

  const ops::Backend& backend_;
  Memory& memory_;
  int most_rows_;
  Mirror rows_, drawn_, candidates_;
  Buffer whole_;  // rows of logits on the host
  Sampler sampler_;
  std::vector<Candidate> kept_, scratch_;
};

}  // namespace sluice
