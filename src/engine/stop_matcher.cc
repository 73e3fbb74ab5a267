// The trie is built level by level from the sorted strings: the strings that share a prefix are one range of them.
#include "engine/stop_matcher.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice {

StopAutomaton::StopAutomaton(SharedList<std::string> stops) : stops_(std::move(stops)) {
  std::vector<int32_t> order(stops_.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t i) { return stops_[i].empty(); });
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return stops_[a] < stops_[b]; });

  std::vector<std::pair<size_t, size_t>> ranges;  // per state: the strings in `order` that begin with its prefix
  const auto add = [&](size_t begin, size_t end, unsigned char byte, uint32_t depth) {
    ranges.emplace_back(begin, end);
    byte_.push_back(byte);
    depth_.push_back(depth);
    match_.push_back(depth > 0 && stops_[order[begin]].size() == depth ? order[begin] : -1);
  };
  add(0, order.size(), 0, 0);
  for (size_t state = 0; state < ranges.size(); ++state) {
    first_child_.push_back(static_cast<State>(ranges.size()));
    const uint32_t depth = depth_[state];
    auto [at, end] = ranges[state];
    while (at < end && stops_[order[at]].size() == depth) ++at;  // strings that end here come first
    while (at < end) {
      const auto byte = static_cast<unsigned char>(stops_[order[at]][depth]);
      const size_t begin = at;
      while (at < end && static_cast<unsigned char>(stops_[order[at]][depth]) == byte) ++at;
      if (state == 0) root_[byte] = static_cast<State>(ranges.size());
      add(begin, at, byte, depth + 1);
    }
  }
  first_child_.push_back(static_cast<State>(ranges.size()));

  // Breadth-first: the fallback of a state is known before its children need it.
  fallback_.assign(ranges.size(), 0);
  for (State state = 0; state < ranges.size(); ++state) {
    if (match_[state] < 0) match_[state] = match_[fallback_[state]];
    for (State c = first_child_[state]; c < first_child_[state + 1]; ++c) {
      fallback_[c] = state == 0 ? 0 : next(fallback_[state], byte_[c]);
    }
  }
}

StopAutomaton::State StopAutomaton::child(State state, unsigned char byte) const {
  if (state == 0) return root_[byte];
  const auto begin = byte_.begin() + first_child_[state], end = byte_.begin() + first_child_[state + 1];
  const auto found = std::lower_bound(begin, end, byte);
  return found != end && *found == byte ? static_cast<State>(found - byte_.begin()) : 0;
}

StopAutomaton::State StopAutomaton::next(State state, unsigned char byte) const {
  for (;;) {
    const State to = child(state, byte);
    if (to != 0 || state == 0) return to;
    state = fallback_[state];
  }
}

std::shared_ptr<const StopAutomaton> StopAutomata::get(const SharedList<std::string>& stops) {
  if (stops.empty()) return nullptr;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = known_.find(stops.identity());
    if (found != known_.end()) {
      if (auto automaton = found->second.lock()) return automaton;
    }
  }
  auto automaton = std::make_shared<const StopAutomaton>(stops);
  const std::scoped_lock lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  known_[stops.identity()] = automaton;
  return automaton;
}

std::string StopMatcher::push(std::string_view piece, bool armed) {
  if (matched()) return {};
  if (automaton_ == nullptr) return std::string(piece);
  if (!armed) {
    state_ = 0;
    return std::exchange(held_, {}).append(piece);
  }
  for (const char byte : piece) {
    held_ += byte;
    state_ = automaton_->next(state_, static_cast<unsigned char>(byte));
    match_ = automaton_->match(state_);
    if (matched()) {
      if (!include_) held_.resize(held_.size() - match_->size());
      return std::exchange(held_, {});
    }
  }
  std::string out = held_.substr(0, held_.size() - automaton_->depth(state_));
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() {
  if (matched()) return {};
  return std::exchange(held_, {});
}

}  // namespace sluice
