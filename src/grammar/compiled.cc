#include "grammar/compiled.h"

#include <new>

namespace sluice::grammar {

size_t memory_of(const Grammar& grammar) { return grammar.bytes(); }
bool is_broken(const Grammar& grammar) { return grammar.broken(); }

// The caches are not made in one stroke. When an allocation fails in between, nobody may read them any more.
template <class Work>
auto Grammar::guarded(Work&& work) const {
  const std::scoped_lock lock(mutex_);
  if (broken_) throw GrammarError("there was no memory for an earlier step of the grammar");
  try {
    return work();
  } catch (const std::bad_alloc&) {
    broken_ = true;
    throw;
  }
}

bool Grammar::broken() const {
  const std::scoped_lock lock(mutex_);
  return broken_;
}

Grammar::Slot Grammar::place(StackSet state) const {
  if (free_.empty()) {
    free_.reserve(states_.size() + 1);
    states_.push_back(state);
    return states_.size() - 1;
  }
  const Slot slot = free_.back();
  free_.pop_back();
  states_[slot] = state;
  return slot;
}

Grammar::Slot Grammar::open() const {
  return guarded([&] { return place(recognizer_.start()); });
}

Grammar::Slot Grammar::copy(Slot slot) const {
  return guarded([&] { return place(states_[slot]); });
}

void Grammar::close(Slot slot) const {
  const std::scoped_lock lock(mutex_);
  states_[slot] = Recognizer::kDead;
  free_.push_back(slot);
}

void Grammar::fill_mask(Slot slot, const std::shared_ptr<const Vocabulary>& vocabulary,
                        std::span<uint32_t> words) const {
  guarded([&] {
    limit_memory();
    recognizer_.begin_work();
    masks_.try_emplace(vocabulary.get(), vocabulary).first->second.fill(recognizer_, states_[slot], words);
  });
}

bool Grammar::accept(Slot slot, std::string_view bytes) const {
  return guarded([&]() -> bool {
    limit_memory();
    StackSet set = states_[slot];
    for (const char c : bytes) {
      recognizer_.begin_work();
      set = recognizer_.row(set)[static_cast<uint8_t>(c)];
      if (set == Recognizer::kDead) return false;
    }
    states_[slot] = set;
    return true;
  });
}

bool Grammar::accept_special(Slot slot, TokenId token) const {
  return guarded([&]() -> bool {
    recognizer_.begin_work();
    for (const Recognizer::Special& special : recognizer_.specials(states_[slot])) {
      if (special.token != token) continue;
      states_[slot] = special.after;
      return true;
    }
    return false;
  });
}

bool Grammar::complete(Slot slot) const {
  return guarded([&]() -> bool { return recognizer_.complete(states_[slot]); });
}

bool Grammar::ended(Slot slot) const {
  return guarded([&]() -> bool {
    const StackSet set = states_[slot];
    recognizer_.begin_work();
    if (!recognizer_.complete(set) || !recognizer_.specials(set).empty()) return false;
    for (const StackSet to : recognizer_.row(set)) {
      if (to != Recognizer::kDead) return false;
    }
    return true;
  });
}

void Grammar::forced(Slot slot, std::string& bytes, size_t most) const {
  guarded([&] {
    StackSet set = states_[slot];
    for (size_t n = 0; n < most; ++n) {
      recognizer_.begin_work();
      if (recognizer_.complete(set) || !recognizer_.specials(set).empty()) return;
      const Recognizer::Row& row = recognizer_.row(set);
      int only = -1;
      for (int byte = 0; byte < 256; ++byte) {
        if (row[static_cast<size_t>(byte)] == Recognizer::kDead) continue;
        if (only >= 0) return;
        only = byte;
      }
      if (only < 0) return;
      bytes.push_back(static_cast<char>(only));
      set = row[static_cast<size_t>(only)];
    }
  });
}

size_t Grammar::bytes() const {
  const std::scoped_lock lock(mutex_);
  size_t total = recognizer_.bytes();
  for (const auto& [vocabulary, masks] : masks_) total += masks.bytes();
  return total;
}

void Grammar::limit_memory() const {
  if (recognizer_.sets() < checked_at_ + kCheckEvery) return;
  checked_at_ = recognizer_.sets();
  if (recognizer_.bytes() < kMostBytes) return;
  std::vector<StackSet*> roots;
  for (StackSet& state : states_) roots.push_back(&state);
  recognizer_.collect(roots);
  for (auto& [vocabulary, masks] : masks_) masks.clear();
  checked_at_ = recognizer_.sets();
  if (recognizer_.bytes() > kMostAfterwards) throw GrammarError("the grammar needs too much memory");
}

}  // namespace sluice::grammar
