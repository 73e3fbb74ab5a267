// One step of the search: candidates, those that end, those that go on, and whether to go on at all.
#include "scheduler/beam_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/check.h"

namespace sluice {

BeamSearch::BeamSearch(Options options)
    : options_(std::move(options)), groups_(static_cast<size_t>(options_.params.groups)) {}

int BeamSearch::needed_by_group() const {
  const int ends = static_cast<int>(options_.end_tokens.size());
  return std::max(2, 1 + ends) * group_width();
}

// Tokens that earlier groups go on with may fall behind others.
int BeamSearch::needed() const { return needed_by_group() + options_.params.width - group_width(); }

bool BeamSearch::is_end(TokenId token) const {
  return std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
}

bool BeamSearch::ends(const Beam& beam) const { return !beam.output.empty() && is_end(beam.output.back()); }

// The likeliest continuations of all beams of a group together. `kept`: those that earlier groups go on with.
std::vector<BeamSearch::Candidate> BeamSearch::candidates(int group, std::span<const TokenLogprobs> after,
                                                          std::span<const Candidate> kept) const {
  std::vector<Candidate> all;
  for (int slot = 0; slot < slots(); ++slot) {
    const Beam& beam = running_[static_cast<size_t>(slot)];
    if (length_ > 1 && beam.group != group) continue;  // all groups begin with the same beam
    for (const TokenLogprob& token : after[static_cast<size_t>(slot)].top) {
      if (length_ <= options_.min_tokens && is_end(token.id)) continue;
      const auto taken = std::ranges::count_if(kept, [&](const Candidate& one) { return one.token->id == token.id; });
      const double penalty = options_.params.diversity_penalty * static_cast<double>(taken);
      const double score = beam.score + static_cast<double>(token.logprob) - penalty;
      all.push_back({.slot = slot, .group = group, .token = &token, .score = score});
    }
  }
  std::ranges::stable_sort(all, std::greater<>(), &Candidate::score);
  const auto needed = static_cast<size_t>(needed_by_group());
  if (all.size() > needed) all.resize(needed);
  return all;
}

BeamSearch::Beam BeamSearch::extended(const Candidate& candidate, const TokenLogprobs& after) const {
  Beam beam = running_[static_cast<size_t>(candidate.slot)];
  beam.output.push_back(candidate.token->id);
  if (options_.keeps_logprobs) beam.logprobs.push_back({.token = *candidate.token, .top = after.top});
  beam.score = candidate.score;
  beam.group = candidate.group;
  return beam;
}

void BeamSearch::finish(Beam beam) {
  std::vector<Beam>& finished = groups_[static_cast<size_t>(beam.group)].finished;
  beam.score /= std::pow(static_cast<double>(beam.output.size()), options_.params.length_penalty);
  const auto at = std::ranges::upper_bound(finished, beam.score, std::greater<>(), &Beam::score);
  finished.insert(at, std::move(beam));
  if (static_cast<int>(finished.size()) > group_width()) finished.pop_back();
}

// Whether a beam may still become better than the worst of the group's finished ones, as far as transformers' rules
// tell.
bool BeamSearch::may_improve(const Group& group, double best_running) const {
  const BeamParams& p = options_.params;
  if (static_cast<int>(group.finished.size()) < group_width()) return true;
  if (p.early_stopping == EarlyStopping::kYes) return false;
  const bool longest = p.early_stopping == EarlyStopping::kNever && p.length_penalty > 0;
  const double length = longest ? options_.most_tokens : length_;
  return best_running / std::pow(length, p.length_penalty) > group.finished.back().score;
}

// Appends to `kept` what the group's beams go on with.
void BeamSearch::advance_group(int group, std::span<const TokenLogprobs> after, std::vector<Candidate>& kept) {
  const auto width = static_cast<size_t>(group_width());
  const std::vector<Candidate> all = candidates(group, after, kept);
  const auto finish_one = [&](const Candidate& one) { finish(extended(one, after[static_cast<size_t>(one.slot)])); };
  std::vector<Candidate> open;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!is_end(all[rank].token->id)) {
      if (open.size() < width) open.push_back(all[rank]);
    } else if (rank < width) {  // the others are there for the beams that go on
      finish_one(all[rank]);
    }
  }
  // With groups, transformers also looks at what has just ended, and lets no open text in where the search is over.
  Group& own = groups_[static_cast<size_t>(group)];
  own.ended = open.empty() || !may_improve(own, grouped() ? all.front().score : open.front().score);
  const bool last = length_ >= options_.most_tokens;
  if (last && !(grouped() && own.ended)) std::ranges::for_each(open, finish_one);
  if (!own.ended) kept.insert(kept.end(), open.begin(), open.end());
}

std::vector<BeamSearch::Move> BeamSearch::advance(std::span<const TokenLogprobs> after) {
  CHECK(after.size() == running_.size(), "tokens after {} of {} beams", after.size(), running_.size());
  ++length_;
  std::vector<Candidate> kept;
  for (int group = 0; group < options_.params.groups; ++group) {
    if (!groups_[static_cast<size_t>(group)].ended) advance_group(group, after, kept);
  }
  if (kept.empty() || length_ >= options_.most_tokens) return {};
  return place(kept, after);
}

std::vector<BeamSearch::Beam> BeamSearch::take_finished() {
  std::vector<Beam> all;
  for (Group& group : groups_) std::ranges::move(group.finished, std::back_inserter(all));
  std::ranges::stable_sort(all, std::greater<>(), &Beam::score);
  return all;
}

// Gives each kept candidate a slot, if possible its parent's.
std::vector<BeamSearch::Move> BeamSearch::place(const std::vector<Candidate>& kept,
                                                std::span<const TokenLogprobs> after) {
  std::vector<const Candidate*> in_slot(kept.size());
  std::vector<const Candidate*> homeless;
  for (const Candidate& one : kept) {
    const bool fits = one.slot < static_cast<int>(in_slot.size()) && in_slot[static_cast<size_t>(one.slot)] == nullptr;
    if (fits) {
      in_slot[static_cast<size_t>(one.slot)] = &one;
    } else {
      homeless.push_back(&one);
    }
  }
  auto next = homeless.begin();
  std::vector<Beam> beams;
  std::vector<Move> moves;
  for (size_t slot = 0; slot < in_slot.size(); ++slot) {
    const Candidate& one = in_slot[slot] != nullptr ? *in_slot[slot] : **next++;
    beams.push_back(extended(one, after[static_cast<size_t>(one.slot)]));
    moves.push_back({.slot = static_cast<int>(slot), .parent = one.slot, .token = one.token->id});
  }
  running_ = std::move(beams);
  return moves;
}

}  // namespace sluice
