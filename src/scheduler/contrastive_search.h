// Contrastive search (Su et al. 2022, arXiv:2202.06417), as transformers has it. Each token is chosen among the
// likeliest ones, the candidates. The model computes all of them. The best one is likely, and its hidden state is not
// like that of an earlier token. Pure host code that knows neither sequences nor memory.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "batch/sample_task.h"

namespace sluice {

class ContrastiveSearch {
 public:
  // What is known of the candidate in a slot once it is computed.
  struct Computed {
    float similarity = 0.0f;             // the largest cosine of its hidden state and one of an earlier token
    std::vector<TokenCandidate> next{};  // the candidates after it
    std::vector<TokenLogprob> top{};     // the likeliest tokens after it, as many as the request asks for
  };

  // `alpha` is the weight of the similarity, against that of the probability.
  ContrastiveSearch(double alpha, int width);

  // The slots in use. Before the first candidates come that is slot 0, with the prompt.
  int slots() const { return begun() ? static_cast<int>(candidates_.size()) : 1; }
  bool begun() const { return !candidates_.empty(); }  // whether the slots have candidates
  bool known(int slot) const { return computed_[static_cast<size_t>(slot)].has_value(); }
  // Returns whether all slots are known now.
  bool put(int slot, Computed computed);
  // The slot with the best candidate; of equal ones the first.
  int choose() const;
  // The candidate in a slot as a token of the answer.
  TokenLogprobs logprobs(int slot) const {
    return {.token = candidates_[static_cast<size_t>(slot)].token, .top = top_};
  }
  // Goes on with the text in a slot: slot i has its i-th next candidate now, which is returned. None: nothing may come
  // next.
  std::span<const TokenCandidate> advance(int slot);

 private:
  const double alpha_;
  std::vector<TokenCandidate> candidates_;         // by slot
  std::vector<TokenLogprob> top_;                  // what the request asks for beside each of them
  std::vector<std::optional<Computed>> computed_;  // by slot
};

}  // namespace sluice
