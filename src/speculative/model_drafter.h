// What drafters have in common that compute drafts with layers of their own. These layers have the step's blocks: keys
// and values of a drafted token are where the model's are, shared with a prefix, copied on a write, and given back with
// a block.
//
// Drafts are sampled as the model samples: with a request's parameters, seed and position. Both then add the same noise
// to their logits, so that they often agree on tokens that are not the likeliest.
#pragma once

#include <vector>

#include "sampling/sampler.h"
#include "speculative/drafter.h"

namespace sluice {

class ModelDrafter : public Drafter {
 public:
  // Promises as many tokens as it may.
  void begin(std::span<const TokenId> text, int most, std::vector<TokenId>& draft) override;
  // Computes a batch of known tokens, and with it the first token of every draft. Then each batch has the last drafted
  // token of the sequences whose drafts go on. A draft ends behind a token that ends the text, and before one that the
  // layers think too unlikely.
  void complete(DraftStep& step) override;

 protected:
  ModelDrafter(const SpeculativeOptions& options, DraftModelRunner model);

  // Makes the first batch of a step, and opens its drafts. An empty batch is not computed.
  virtual void take_known(const DraftStep& step) = 0;

  void clear_batch();
  void add_row(int32_t token, int32_t from_sample, int32_t position);
  // Ends the rows of sequence `index` of the step.
  void end_sequence(int index, int kv_len, int prompt_len);
  // Opens a draft that follows the last row.
  void open(const DraftStep& step, size_t part);
  // Fills in where the rows' keys and values go, once all sequences are in.
  void place_rows(const Batch& step);

  const SpeculativeOptions options_;
  const DraftModelRunner model_;
  Batch batch_;  // what the drafter's layers compute next

 private:
  // A draft that goes on.
  struct Open {
    int part = 0;
    int done = 0;      // tokens
    int most = 0;      // tokens
    int position = 0;  // the last known token's
    size_t next = 0;   // index in the step's batch of the next drafted token
  };

  void take_last(const DraftStep& step);
  void add_task(const DraftStep& step, const Open& draft);
  bool place(const DraftStep& step, Open& draft, const SampleResult& result);
  int32_t slot(const Batch& step, size_t group, size_t sequence, int position) const;

  Sampler sampler_;
  std::vector<int> sequences_;     // each sequence of the batch: its number in the step
  std::vector<SampleTask> tasks_;  // one for each row of logits
  std::vector<Open> open_;
};

}  // namespace sluice
