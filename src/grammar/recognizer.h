// Recognizes the texts of a grammar, byte by byte.
//
// What may follow a text is a set of stacks of frames: the top one reads on, the ones below it come when it has
// finished. Equal sets are one number. A set is kept as a list of top frames, each with the set of stacks below it, so
// that ambiguity does not multiply stacks. The step from a set by a byte depends on nothing else and is computed once.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/frames.h"
#include "grammar/interner.h"

namespace sluice::grammar {

using StackSet = uint32_t;

class Recognizer {
 public:
  static constexpr StackSet kDead = 0;   // no stack: no text goes on
  static constexpr StackSet kEmpty = 1;  // the empty stack alone: the text is complete and nothing follows

  using Row = std::array<StackSet, 256>;
  struct Special {
    TokenId token = 0;
    StackSet after = 0;
  };

  explicit Recognizer(std::shared_ptr<const NodeGraph> graph);

  StackSet start() const { return start_; }
  // The sets after each byte.
  const Row& row(StackSet set);
  // The special tokens that may come next.
  const std::vector<Special>& specials(StackSet set);
  bool complete(StackSet set);  // the text may end here
  // Whether any plain text (see PlainText) may follow one of the stacks, as far as its top frame tells.
  bool begins_any_text(StackSet set);
  // For a set that repeats something: the set of one item alone, the one after an item, and the one after the last item
  // if that has come, else kDead. None for other sets.
  struct Counted {
    StackSet item = kDead, after = kDead, behind = kDead;
  };
  std::optional<Counted> counted(StackSet set);
  // A set that texts of at most `longest` bytes cannot tell from this one.
  StackSet representative(StackSet set, int longest);

  // Work counts from here: entries and rows that are made. Too much of it for one mask or one byte throws GrammarError,
  // as only ambiguity without bounds needs that.
  void begin_work() { work_ = 0; }

  size_t sets() const { return sets_.size(); }
  // Memory in bytes. `collect` gives back all but what the sets in `roots` need, and renumbers them.
  size_t bytes() const;
  void collect(std::span<StackSet*> roots);

 private:
  struct Entry {  // of a set: a top frame and the set below it
    FrameId frame = 0;
    StackSet below = 0;
    auto operator<=>(const Entry&) const = default;
  };
  // What is known of a set besides its stacks.
  struct Known {
    std::unique_ptr<Row> row;
    std::unique_ptr<std::vector<Special>> specials;
    int8_t complete = -1;                   // -1: not computed
    std::vector<StackSet> representatives;  // by index in longest_; UINT32_MAX: not computed
  };

  // A set: a word that tells whether the empty stack is in it, then its entries by frame.
  StackSet make(bool empty, std::span<const Entry> entries);
  bool has_empty(StackSet set) const { return sets_[set][0] != 0; }
  size_t size(StackSet set) const { return sets_[set].size() / 2; }
  Entry entry(StackSet set, size_t i) const { return {sets_[set][1 + 2 * i], sets_[set][2 + 2 * i]}; }
  StackSet push(FrameId frame, StackSet below);
  void spend(size_t work);
  StackSet& known_representative(StackSet set, size_t index);
  StackSet push_chain(uint32_t chain, StackSet below);
  StackSet unite(StackSet a, StackSet b);
  bool try_unite(StackSet a, StackSet b, std::vector<std::pair<StackSet, StackSet>>& todo);
  template <class Done, class Compute>
  void bottom_up(StackSet set, Done done, Compute compute);
  void compute_row(StackSet set);
  void compute_specials(StackSet set);
  bool pops(const Entry& e) const { return frames_[e.frame].nullable; }

  Frames frames_;
  Interner sets_;
  std::vector<Known> known_;
  std::unordered_map<uint64_t, StackSet> unions_;
  std::vector<uint32_t> words_;  // of the set that is being made
  std::vector<int> longest_;     // lengths that were asked for
  size_t rows_ = 0;
  size_t work_ = 0;
  StackSet start_ = 0;
};

}  // namespace sluice::grammar
