// The positions in the members of an object: which classes were seen, and where in a member the text is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "grammar/builder.h"
#include "grammar/interner.h"
#include "grammar/subset_automaton.h"

namespace sluice::grammar {

class MemberPositions {
 public:
  // `productive[i]`: the value of class i has a text. Others are never begun.
  MemberPositions(const Members& members, std::vector<bool> productive);

  enum class Phase : uint32_t { kStart, kKey, kValue, kAfter };
  struct Position {
    Phase phase = Phase::kStart;
    uint32_t seen = 0;   // number of a set of seen members
    uint32_t extra = 0;  // kKey: state of the keys' automaton; kValue: class
  };

  // Whether some members complete the object.
  bool satisfiable();
  uint32_t start() { return number({Phase::kStart, 0, 0}); }
  Position operator[](uint32_t position) const;

  // Whether the object may end here. kStart and kAfter only.
  bool may_end(const Position& p) const { return sets_[p.seen].complete; }
  // The states of the keys' automaton after the next byte, and the position in one of them; kDead if no allowed key has
  // that state. kStart and kKey only.
  static constexpr uint32_t kDead = UINT32_MAX;
  const SubsetAutomaton::Row& key_row(const Position& p) { return keys_.row(p.phase == Phase::kStart ? 0 : p.extra); }
  uint32_t after_key(const Position& p, uint32_t state);
  // Whether any plain text may follow in a key of one class.
  bool begins_any_text(const Position& p);
  // The classes whose key is complete. The position of the value of one, and the one after it.
  std::vector<int> complete_keys(const Position& p) const;
  uint32_t value_of(const Position& p, int member_class) {
    return number({Phase::kValue, p.seen, static_cast<uint32_t>(member_class)});
  }
  uint32_t after_value(const Position& p) { return number({Phase::kAfter, add(p.seen, p.extra), 0}); }
  // The position of a further key, after a separator; kDead if there may be none.
  uint32_t further_key(const Position& p);

  size_t bytes() const { return positions_.bytes() + names_.bytes() + keys_.bytes() + bytes_; }

 private:
  using Bits = std::vector<uint32_t>;
  struct Set {
    Bits allowed;  // classes of which a member may follow
    bool complete = false, any_allowed = false;
  };

  // What may and must still come.
  struct Outlook {
    Bits wanted;
    bool possible = true;                     // every wanted class may come
    bool unlimited = false;                   // some class may come any number of times
    int64_t wanted_count = 0, available = 0;  // classes that must come; that may come once
  };

  uint32_t number(const Position& p);
  uint32_t add(uint32_t set, uint32_t member_class);
  uint32_t set_of(const std::vector<uint32_t>& name);
  std::vector<uint32_t> with(std::span<const uint32_t> name, uint32_t member_class) const;
  Bits missing(std::span<const uint32_t> name, Bits wanted) const;
  bool is_over(std::span<const uint32_t> name, uint32_t member_class) const;
  bool may_come(std::span<const uint32_t> name, uint32_t member_class) const;
  Outlook outlook(std::span<const uint32_t> name) const;
  bool feasible(int64_t count, const Outlook& o) const;
  bool feasible(std::span<const uint32_t> name);
  bool search(std::span<const uint32_t> name);
  bool feasible_after(std::span<const uint32_t> name, const Outlook& before, uint32_t member_class);
  bool begins_allowed(uint32_t key_state, const Set& set) const;

  const Members& members_;
  const std::vector<bool> productive_;
  Bits required_, tracked_;
  bool entangled_ =
      false;  // classes imply others, and there are bounds or an order: only a search tells what is possible
  SubsetAutomaton keys_;
  Interner names_;  // of sets: members so far (capped), last class + 1 if in order, bits of tracked classes
  std::vector<Set> sets_;
  Interner positions_;
  std::map<std::vector<uint32_t>, bool> searched_;
  size_t bytes_ = 0;
};

}  // namespace sluice::grammar
