#include "grammar/recognizer.h"

#include <algorithm>
#include <utility>

namespace sluice::grammar {
namespace {

constexpr size_t kMostWork = 700'000;  // about 15 ms
constexpr size_t kRowWork = 32;        // a row costs as much as so many entries

}  // namespace

void Recognizer::spend(size_t work) {
  work_ += work;
  if (work_ > kMostWork) throw GrammarError("the grammar is too ambiguous: too much may follow the text");
}

Recognizer::Recognizer(std::shared_ptr<const NodeGraph> graph) : frames_(graph) {
  make(false, {});
  make(true, {});
  start_ = push(frames_.start(graph->start), kEmpty);
}

StackSet Recognizer::make(bool empty, std::span<const Entry> entries) {
  spend(entries.size() + 1);
  words_.clear();
  words_.push_back(empty ? 1 : 0);
  for (const Entry& e : entries) {
    words_.push_back(e.frame);
    words_.push_back(e.below);
  }
  const StackSet set = sets_.add(words_);
  if (set >= known_.size()) known_.resize(set + 1);
  return set;
}

StackSet Recognizer::push(FrameId frame, StackSet below) {
  const Entry e{frame, below};
  return make(false, {&e, 1});
}

StackSet Recognizer::push_chain(uint32_t chain, StackSet below) {
  std::vector<FrameId> frames;  // top first
  for (; chain != 0; chain = frames_.chain(chain).below) frames.push_back(frames_.chain(chain).top);
  for (size_t i = frames.size(); i-- > 0;) below = push(frames[i], below);
  return below;
}

// Equal frames of two sets are one entry above the union of what is below them, so that unions nest as deep as the
// stacks. `todo` takes the inner unions that are not known yet.
bool Recognizer::try_unite(StackSet a, StackSet b, std::vector<std::pair<StackSet, StackSet>>& todo) {
  std::vector<Entry> entries;
  const size_t before = todo.size();
  size_t i = 0, j = 0;
  while (i < size(a) || j < size(b)) {
    if (j == size(b) || (i < size(a) && entry(a, i).frame < entry(b, j).frame)) {
      entries.push_back(entry(a, i++));
    } else if (i == size(a) || entry(b, j).frame < entry(a, i).frame) {
      entries.push_back(entry(b, j++));
    } else {
      const StackSet x = entry(a, i).below, y = entry(b, j).below;
      StackSet both = x;
      if (x != y) {
        const auto found = unions_.find(uint64_t{std::min(x, y)} << 32 | std::max(x, y));
        if (found == unions_.end()) {
          todo.emplace_back(std::min(x, y), std::max(x, y));
        } else {
          both = found->second;
        }
      }
      entries.push_back({entry(a, i).frame, both});
      ++i, ++j;
    }
  }
  if (todo.size() != before) return false;
  unions_[uint64_t{a} << 32 | b] = make(has_empty(a) || has_empty(b), entries);
  return true;
}

StackSet Recognizer::unite(StackSet a, StackSet b) {
  if (a == b || b == kDead) return a;
  if (a == kDead) return b;
  if (a > b) std::swap(a, b);
  const uint64_t key = uint64_t{a} << 32 | b;
  const auto found = unions_.find(key);
  if (found != unions_.end()) return found->second;
  std::vector<std::pair<StackSet, StackSet>> todo = {{a, b}};
  while (!todo.empty()) {
    const auto [x, y] = todo.back();
    if (unions_.contains(uint64_t{x} << 32 | y) || try_unite(x, y, todo)) {
      // What try_unite() added lies above the pair that needs it.
      if (todo.back() == std::pair(x, y)) todo.pop_back();
    }
  }
  return unions_.at(key);
}

// Calls compute() for the set, but first for all the sets that come to light when its top frames are popped. Leaves out
// the sets for which done() is true.
template <class Done, class Compute>
void Recognizer::bottom_up(StackSet set, Done done, Compute compute) {
  std::vector<StackSet> todo = {set};
  while (!todo.empty()) {
    const StackSet s = todo.back();
    const size_t before = todo.size();
    for (size_t i = 0; i < size(s) && !done(s); ++i) {
      const Entry e = entry(s, i);
      if (pops(e) && !done(e.below)) todo.push_back(e.below);
    }
    if (todo.size() != before) continue;
    todo.pop_back();
    if (!done(s)) compute(s);
  }
}

const Recognizer::Row& Recognizer::row(StackSet set) {
  if (!known_[set].row) {
    bottom_up(
        set, [this](StackSet s) { return known_[s].row != nullptr; }, [this](StackSet s) { compute_row(s); });
  }
  return *known_[set].row;
}

void Recognizer::compute_row(StackSet set) {
  spend(kRowWork + size(set));
  auto row = std::make_unique<Row>();
  row->fill(kDead);
  const auto add = [&](size_t byte, StackSet to) {
    StackSet& target = (*row)[byte];
    target = target == kDead ? to : unite(target, to);
  };
  for (size_t i = 0; i < size(set); ++i) {
    const Entry e = entry(set, i);
    const std::span<const Frames::Leaf> leaves = frames_.leaves(e.frame);
    for (const Frames::Leaf& leaf : leaves) {
      if (!frames_[leaf.frame].has_row) continue;
      const StackSet below = push_chain(leaf.below, e.below);
      FrameId last = Frames::kDead;
      StackSet to = kDead;
      const Frames::Row& next = frames_.row(leaf.frame);
      for (size_t byte = 0; byte < 256; ++byte) {
        if (next[byte] == Frames::kDead) continue;
        if (next[byte] != last) {
          last = next[byte];
          to = last == Frames::kFinished ? below : push(last, below);
        }
        add(byte, to);
      }
    }
    if (!pops(e)) continue;
    const Row& below = *known_[e.below].row;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (below[byte] != kDead) add(byte, below[byte]);
    }
  }
  known_[set].row = std::move(row);
  ++rows_;
}

const std::vector<Recognizer::Special>& Recognizer::specials(StackSet set) {
  if (!known_[set].specials) {
    bottom_up(
        set, [this](StackSet s) { return known_[s].specials != nullptr; }, [this](StackSet s) { compute_specials(s); });
  }
  return *known_[set].specials;
}

void Recognizer::compute_specials(StackSet set) {
  auto out = std::make_unique<std::vector<Special>>();
  const auto add = [&](TokenId token, StackSet after) {
    const auto same = std::find_if(out->begin(), out->end(), [&](const Special& s) { return s.token == token; });
    if (same == out->end()) {
      out->push_back({token, after});
    } else {
      same->after = unite(same->after, after);
    }
  };
  for (size_t i = 0; i < size(set); ++i) {
    const Entry e = entry(set, i);
    for (const Frames::Leaf& leaf : frames_.leaves(e.frame)) {
      for (const auto& [token, place] : frames_[leaf.frame].specials) {
        const StackSet below = push_chain(leaf.below, e.below);
        const FrameId then = frames_.at(place);
        add(token, then == Frames::kFinished ? below : push(then, below));
      }
    }
    if (!pops(e)) continue;
    for (const Special& s : *known_[e.below].specials) add(s.token, s.after);
  }
  known_[set].specials = std::move(out);
}

bool Recognizer::complete(StackSet set) {
  if (known_[set].complete < 0) {
    bottom_up(
        set, [this](StackSet s) { return known_[s].complete >= 0; },
        [this](StackSet s) {
          bool complete = has_empty(s);
          for (size_t i = 0; i < size(s) && !complete; ++i) {
            complete = pops(entry(s, i)) && known_[entry(s, i).below].complete > 0;
          }
          known_[s].complete = complete ? 1 : 0;
        });
  }
  return known_[set].complete > 0;
}

StackSet& Recognizer::known_representative(StackSet set, size_t index) {
  std::vector<StackSet>& all = known_[set].representatives;
  if (index >= all.size()) all.resize(longest_.size(), UINT32_MAX);
  return all[index];
}

StackSet Recognizer::representative(StackSet set, int longest) {
  if (!frames_.has_counters()) return set;
  const auto index = static_cast<size_t>(std::find(longest_.begin(), longest_.end(), longest) - longest_.begin());
  if (index == longest_.size()) longest_.push_back(longest);
  if (const StackSet known = known_representative(set, index); known != UINT32_MAX) return known;
  std::vector<StackSet> todo = {set};
  while (!todo.empty()) {
    const StackSet s = todo.back();
    const size_t before = todo.size();
    for (size_t i = 0; i < size(s); ++i) {
      if (known_representative(entry(s, i).below, index) == UINT32_MAX) todo.push_back(entry(s, i).below);
    }
    if (todo.size() != before) continue;
    todo.pop_back();
    if (known_representative(s, index) != UINT32_MAX) continue;
    StackSet r = make(has_empty(s), {});
    for (size_t i = 0; i < size(s); ++i) {
      const Entry e = entry(s, i);
      r = unite(r, push(frames_.representative(e.frame, longest), known_representative(e.below, index)));
    }
    known_representative(s, index) = r;
  }
  return known_representative(set, index);
}

bool Recognizer::begins_any_text(StackSet set) {
  for (size_t i = 0; i < size(set); ++i) {
    if (frames_.begins_any_text(entry(set, i).frame)) return true;
  }
  return false;
}

std::optional<Recognizer::Counted> Recognizer::counted(StackSet set) {
  if (has_empty(set) || size(set) != 1) return std::nullopt;
  const Entry e = entry(set, 0);
  const Frames::Call* item = frames_.item(e.frame);
  if (item == nullptr) return std::nullopt;
  const FrameId then = frames_.at(item->then);
  return Counted{.item = push(frames_.start(item->callee), kEmpty),
                 .after = then == Frames::kFinished ? e.below : push(then, e.below),
                 .behind = pops(e) ? e.below : kDead};
}

size_t Recognizer::bytes() const {
  return frames_.bytes() + sets_.bytes() + known_.capacity() * sizeof(Known) + rows_ * sizeof(Row) +
         unions_.size() * 40;
}

void Recognizer::collect(std::span<StackSet*> roots) {
  const Interner old = std::exchange(sets_, {});
  known_.clear();
  unions_.clear();
  rows_ = 0;
  frames_.forget_rows();
  make(false, {});
  make(true, {});
  std::vector<StackSet> moved(old.size(), UINT32_MAX);
  moved[kDead] = kDead;
  moved[kEmpty] = kEmpty;
  std::vector<StackSet> todo = {start_};
  for (const StackSet* root : roots) todo.push_back(*root);
  while (!todo.empty()) {
    const StackSet s = todo.back();
    const std::span<const uint32_t> words = old[s];
    const size_t before = todo.size();
    for (size_t i = 2; i < words.size() && moved[s] == UINT32_MAX; i += 2) {
      if (moved[words[i]] == UINT32_MAX) todo.push_back(words[i]);
    }
    if (todo.size() != before) continue;
    todo.pop_back();
    if (moved[s] != UINT32_MAX) continue;
    begin_work();
    std::vector<Entry> entries;
    for (size_t i = 1; i < words.size(); i += 2) entries.push_back({words[i], moved[words[i + 1]]});
    moved[s] = make(words[0] != 0, entries);
  }
  begin_work();
  start_ = moved[start_];
  for (StackSet* root : roots) *root = moved[*root];
}

}  // namespace sluice::grammar
