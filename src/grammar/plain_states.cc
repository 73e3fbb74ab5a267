#include "grammar/plain_states.h"

#include <algorithm>
#include <bitset>
#include <span>

namespace sluice::grammar {
namespace {

constexpr int kMostStates = 20'000;  // of larger automata nothing is known: to find out would take too long

// Places in plain text: between characters, or within one, by what may come next (RFC 3629, section 4).
enum Place : uint8_t { kBetween, kOne, kTwo, kThree, kAfterE0, kAfterED, kAfterF0, kAfterF4, kPlaces };
struct Range {
  uint8_t first, last;
  Place then;
};
constexpr Range kBetweenRanges[] = {{0x20, 0x21, kBetween}, {0x23, 0x5b, kBetween}, {0x5d, 0x7f, kBetween},
                                    {0xc2, 0xdf, kOne},     {0xe0, 0xe0, kAfterE0}, {0xe1, 0xec, kTwo},
                                    {0xed, 0xed, kAfterED}, {0xee, 0xef, kTwo},     {0xf0, 0xf0, kAfterF0},
                                    {0xf1, 0xf3, kThree},   {0xf4, 0xf4, kAfterF4}};
constexpr Range kWithin[] = {{},
                             {0x80, 0xbf, kBetween},
                             {0x80, 0xbf, kOne},
                             {0x80, 0xbf, kTwo},
                             {0xa0, 0xbf, kOne},
                             {0x80, 0x9f, kOne},
                             {0x90, 0xbf, kTwo},
                             {0x80, 0x8f, kTwo}};

std::span<const Range> ranges(uint8_t place) {
  if (place == kBetween) return kBetweenRanges;
  return {&kWithin[place], 1};
}

// The greatest set of pairs of a state and a place such that every byte leads from a pair to one of them.
class Pairs {
 public:
  explicit Pairs(const Automaton& language)
      : language_(language), in_(static_cast<size_t>(language.states())), sources_(in_.size()) {
    for (int state = 0; state < language.states(); ++state) {
      in_[static_cast<size_t>(state)].set();
      for (const Automaton::Edge& e : language.edges(state)) {
        std::vector<int>& sources = sources_[static_cast<size_t>(e.to)];
        if (sources.empty() || sources.back() != state) sources.push_back(state);
      }
    }
    std::vector<int> open;
    for (int state = 0; state < language.states(); ++state) check(state, open);
    while (!open.empty()) {
      const int changed = open.back();
      open.pop_back();
      for (const int source : sources_[static_cast<size_t>(changed)]) check(source, open);
    }
  }
  bool has(size_t state) const { return in_[state][kBetween]; }

 private:
  using Places = std::bitset<kPlaces>;

  bool covers(int state, const Range& range) const {
    // Bytes from range.first on, at most 64 of them, as no range is longer.
    uint64_t missing = ~uint64_t{0} >> (63 - (range.last - range.first));
    for (const Automaton::Edge& e : language_.edges(state)) {
      if (e.last < range.first || e.first > range.last || !in_[static_cast<size_t>(e.to)][range.then]) continue;
      const int first = std::max(e.first, range.first) - range.first;
      const int length = std::min(e.last, range.last) - range.first - first + 1;
      missing &= ~((~uint64_t{0} >> (64 - length)) << first);
      if (missing == 0) return true;
    }
    return false;
  }
  void check(int state, std::vector<int>& open) {
    Places& places = in_[static_cast<size_t>(state)];
    bool changed = false;
    for (uint8_t place = 0; place < kPlaces; ++place) {
      if (!places[place]) continue;
      for (const Range& range : ranges(place)) {
        if (covers(state, range)) continue;
        places.reset(place);
        changed = true;
        break;
      }
    }
    if (changed) open.push_back(state);
  }

  const Automaton& language_;
  std::vector<Places> in_;
  std::vector<std::vector<int>> sources_;
};

}  // namespace

std::vector<bool> states_before_any_text(const Automaton& language) {
  if (language.states() > kMostStates) return std::vector<bool>(static_cast<size_t>(language.states()));
  const Pairs pairs(language);
  std::vector<bool> out;
  for (size_t state = 0; state < static_cast<size_t>(language.states()); ++state) out.push_back(pairs.has(state));
  return out;
}

}  // namespace sluice::grammar
