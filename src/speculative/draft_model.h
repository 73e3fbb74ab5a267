// Drafts by a smaller model with the same vocabulary (arXiv:2211.17192, arXiv:2302.01318). The draft model
// computes every token that the model computes, in the same step and the same blocks. Its keys and values are thus
// where the model's are: shared with a prefix, copied on a write, given back with a block.
//
// It samples as the model does: with a request's parameters, seed and position. Both then add the same noise to their
// logits, so that they often agree on tokens that are not the likeliest.
#pragma once

#include <vector>

#include "sampling/sampler.h"
#include "speculative/drafter.h"

namespace sluice {

class DraftModel final : public Drafter {
 public:
  DraftModel(const SpeculativeOptions& options, DraftModelRunner model);

  // Promises as many tokens as it may.
  void begin(std::span<const TokenId> text, int most, std::vector<TokenId>& draft) override;
  // Computes the step's known tokens, and with them the first token of every draft. Then each batch has the last
  // drafted token of the sequences whose drafts go on. A draft ends behind a token that ends the text, and before one
  // that the draft model thinks too unlikely.
  void complete(DraftStep& step) override;

 private:
  // A draft that goes on.
  struct Open {
    int part = 0;
    int done = 0;      // tokens
    int most = 0;      // tokens
    int position = 0;  // of the last known token
    size_t next = 0;   // index in the step's batch of the next drafted token
  };

  void take_known(const DraftStep& step);
  void take_last(const DraftStep& step);
  void add_task(const DraftStep& step, const Open& draft);
  bool place(const DraftStep& step, Open& draft, const SampleResult& result);
  int32_t slot(const Batch& step, size_t group, size_t sequence, int position) const;

  const SpeculativeOptions options_;
  const DraftModelRunner model_;
  Sampler sampler_;
  Batch batch_;                    // of the draft model
  std::vector<SampleTask> tasks_;  // of this batch
  std::vector<Open> open_;
};

}  // namespace sluice
