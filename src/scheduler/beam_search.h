// Beam search over the likeliest next tokens, as transformers has it: which beams go on, and which texts are the best
// so far. Pure host code that knows neither sequences nor memory.
//
// Diverse beam search divides the beams into groups, each of which is a search of its own. In a step the groups move on
// one after the other, and a token that beams of earlier groups go on with is penalized for each of them. The texts of
// all groups compete in the end. A group that has ended penalizes nothing.
#pragma once

#include <span>
#include <vector>

#include "sluice/request.h"

namespace sluice {

class BeamSearch {
 public:
  // A text that is searched for.
  struct Beam {
    std::vector<TokenId> output{};
    std::vector<TokenLogprobs> logprobs{};  // one per token of the output, if they are kept
    double score = 0.0;  // sum of the tokens' log-probabilities and penalties; of a finished one: by its length
    int group = 0;
  };
  // What one slot goes on with: a token after the text that another slot had.
  struct Move {
    int slot = 0, parent = 0;
    TokenId token = 0;
  };
  struct Options {
    BeamParams params{};
    int most_tokens = 0;  // of the output
    int min_tokens = 0;   // of the output before an end token counts
    std::vector<TokenId> end_tokens{};
    bool keeps_logprobs = false;
  };

  explicit BeamSearch(Options options);

  // How many of the likeliest tokens advance() needs of each beam, so that enough beams go on if end tokens are ahead.
  int needed() const;
  // The slots that have a beam. Before the first advance() it is slot 0, whose output is empty.
  int slots() const { return static_cast<int>(running_.size()); }
  // Moves all beams on by a token, given the likeliest tokens after the beam of each slot. Returns the moves, in the
  // order of slots, of which there are now as many as beams. A slot goes on with its own text if that goes on at all.
  // None: the search has ended.
  std::vector<Move> advance(std::span<const TokenLogprobs> after);
  // The best finished texts of all groups, the best first, when the search has ended.
  std::vector<Beam> take_finished();
  bool ends(const Beam& beam) const;  // whether its last token is an end token

 private:
  struct Candidate {
    int slot = 0, group = 0;
    const TokenLogprob* token = nullptr;
    double score = 0.0;
  };
  struct Group {
    std::vector<Beam> finished;
    bool ended = false;
  };

  bool grouped() const { return groups_.size() > 1; }
  int group_width() const { return options_.params.width / options_.params.groups; }
  int needed_by_group() const;
  void advance_group(int group, std::span<const TokenLogprobs> after, std::vector<Candidate>& kept);
  std::vector<Candidate> candidates(int group, std::span<const TokenLogprobs> after,
                                    std::span<const Candidate> kept) const;
  Beam extended(const Candidate& candidate, const TokenLogprobs& after) const;
  void finish(Beam beam);
  bool may_improve(const Group& group, double best_running) const;
  std::vector<Move> place(const std::vector<Candidate>& kept, std::span<const TokenLogprobs> after);
  bool is_end(TokenId token) const;

  const Options options_;
  int length_ = 0;                // tokens of every running output
  std::vector<Beam> running_{1};  // by slot
  std::vector<Group> groups_;
};

}  // namespace sluice
