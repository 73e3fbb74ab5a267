#include "grammar/members.h"

#include <algorithm>
#include <set>

namespace sluice::grammar {
namespace {

constexpr size_t kMostSearched = 20'000;
constexpr size_t kBits = 2;  // index of the first word of bits in a set's name

bool test(std::span<const uint32_t> bits, size_t i) { return (bits[i / 32] >> (i % 32) & 1) != 0; }
void set(std::span<uint32_t> bits, size_t i) { bits[i / 32] |= 1u << (i % 32); }

std::vector<Automaton> keys_of(const Members& members) {
  std::vector<Automaton> keys;
  for (const Members::Class& c : members.classes) keys.push_back(c.key);
  return keys;
}

}  // namespace

MemberPositions::MemberPositions(const Members& members, std::vector<bool> productive)
    : members_(members), productive_(std::move(productive)), keys_(keys_of(members)) {
  const size_t words = (members.classes.size() + 31) / 32;
  required_.resize(words);
  tracked_.resize(words);
  for (size_t i = 0; i < members.classes.size(); ++i) {
    const Members::Class& c = members.classes[i];
    if (c.required) set(required_, i);
    if (c.required || c.once || !c.implies.empty()) set(tracked_, i);
    for (const int implied : c.implies) set(tracked_, static_cast<size_t>(implied));
    if (!c.implies.empty()) entangled_ = members.least > 0 || members.most >= 0 || members.in_order;
  }
  set_of(std::vector<uint32_t>(kBits + words));
}

bool MemberPositions::satisfiable() { return feasible(names_[0]); }

MemberPositions::Position MemberPositions::operator[](uint32_t position) const {
  const std::span<const uint32_t> words = positions_[position];
  return {static_cast<Phase>(words[0]), words[1], words[2]};
}

uint32_t MemberPositions::number(const Position& p) {
  const uint32_t words[] = {static_cast<uint32_t>(p.phase), p.seen, p.extra};
  return positions_.add(words);
}

// The classes that must still come: required ones, and what seen and coming ones imply. `wanted`: classes that will
// come.
MemberPositions::Bits MemberPositions::missing(std::span<const uint32_t> name, Bits wanted) const {
  const std::span<const uint32_t> seen = name.subspan(kBits);
  std::vector<size_t> open;
  for (size_t i = 0; i < members_.classes.size(); ++i) {
    if (test(seen, i) || test(wanted, i)) open.push_back(i);
  }
  while (!open.empty()) {
    const size_t i = open.back();
    open.pop_back();
    for (const int implied : members_.classes[i].implies) {
      const auto j = static_cast<size_t>(implied);
      if (test(wanted, j)) continue;
      set(wanted, j);
      open.push_back(j);
    }
  }
  for (size_t w = 0; w < wanted.size(); ++w) wanted[w] &= ~seen[w];
  return wanted;
}

// In order, classes before the last one are over; the last one may come again unless it comes once.
bool MemberPositions::is_over(std::span<const uint32_t> name, uint32_t i) const {
  return members_.in_order && i + (members_.classes[i].once ? 0 : 1) < name[1];
}

// Whether a member of the class may come now or later, as far as it and what it implies tell.
bool MemberPositions::may_come(std::span<const uint32_t> name, uint32_t i) const {
  const Members::Class& c = members_.classes[i];
  if (!productive_[i] || (c.once && test(name.subspan(kBits), i)) || is_over(name, i)) return false;
  if (c.implies.empty()) return true;
  Bits implied(required_.size());
  set(implied, i);
  const std::vector<uint32_t> after = with(name, i);
  implied = missing(after, std::move(implied));
  int64_t more = 0;
  for (uint32_t j = 0; j < members_.classes.size(); ++j) {
    if (j == i || !test(implied, j)) continue;
    if (!productive_[j] || is_over(name, j)) return false;
    ++more;
  }
  return members_.most < 0 || int64_t{name[0]} + 1 + more <= members_.most;
}

MemberPositions::Outlook MemberPositions::outlook(std::span<const uint32_t> name) const {
  Outlook o;
  o.wanted = missing(name, required_);
  for (uint32_t i = 0; i < members_.classes.size(); ++i) {
    const bool comes = may_come(name, i);
    if (test(o.wanted, i)) {
      o.possible = o.possible && comes;
      ++o.wanted_count;
    }
    o.unlimited = o.unlimited || (comes && !members_.classes[i].once);
    if (comes && members_.classes[i].once) ++o.available;
  }
  return o;
}

// Whether members can be added to `count` ones so that the object may end.
bool MemberPositions::feasible(int64_t count, const Outlook& o) const {
  if (!o.possible || (members_.most >= 0 && count + o.wanted_count > members_.most)) return false;
  return o.unlimited || count + o.available >= members_.least;
}

bool MemberPositions::feasible(std::span<const uint32_t> name) {
  if (!feasible(name[0], outlook(name))) return false;
  return !entangled_ || search(name);
}

// Looks for members that complete the object.
bool MemberPositions::search(std::span<const uint32_t> name) {
  const std::vector<uint32_t> start(name.begin(), name.end());
  const auto known = searched_.find(start);
  if (known != searched_.end()) return known->second;
  if (searched_.size() > kMostSearched) throw GrammarError("too many members of an object depend on each other");
  std::vector<std::vector<uint32_t>> todo = {start};
  std::set<std::vector<uint32_t>> seen = {start};
  bool found = false;
  while (!todo.empty() && !found) {
    if (seen.size() > kMostSearched) throw GrammarError("too many members of an object depend on each other");
    const std::vector<uint32_t> from = std::move(todo.back());
    todo.pop_back();
    const Outlook o = outlook(from);
    if (!feasible(from[0], o)) continue;
    found = o.wanted_count == 0 && static_cast<int64_t>(from[0]) >= members_.least;
    for (uint32_t i = 0; i < members_.classes.size() && !found; ++i) {
      if (!may_come(from, i)) continue;
      // Without an order, what must come may as well come next.
      if (!members_.in_order && o.wanted_count > 0 && !test(o.wanted, i)) continue;
      std::vector<uint32_t> to = with(from, i);
      if (seen.insert(to).second) todo.push_back(std::move(to));
    }
  }
  searched_.emplace(start, found);
  return found;
}

bool MemberPositions::feasible_after(std::span<const uint32_t> name, const Outlook& before, uint32_t i) {
  const Members::Class& c = members_.classes[i];
  if (members_.in_order || entangled_ || !c.implies.empty()) return feasible(with(name, i));
  // Only class i itself changes the outlook.
  Outlook after{.wanted = {},
                .possible = before.possible,
                .unlimited = before.unlimited,
                .wanted_count = before.wanted_count - (test(before.wanted, i) ? 1 : 0),
                .available = before.available - (c.once ? 1 : 0)};
  return feasible(int64_t{name[0]} + 1, after);
}

std::vector<uint32_t> MemberPositions::with(std::span<const uint32_t> name, uint32_t member_class) const {
  std::vector<uint32_t> out(name.begin(), name.end());
  const int cap = members_.most >= 0 ? std::max(members_.most, members_.least) : members_.least;
  if (out[0] < static_cast<uint32_t>(cap)) ++out[0];
  if (members_.in_order) out[1] = member_class + 1;
  if (test(tracked_, member_class)) set(std::span(out).subspan(kBits), member_class);
  return out;
}

uint32_t MemberPositions::set_of(const std::vector<uint32_t>& name) {
  const uint32_t id = names_.add(name);
  if (id < sets_.size()) return id;
  Set s;
  s.allowed.resize(required_.size());
  const Outlook now = outlook(name);
  s.complete = now.wanted_count == 0 && static_cast<int64_t>(name[0]) >= members_.least;
  const bool full = members_.most >= 0 && static_cast<int64_t>(name[0]) >= members_.most;
  for (uint32_t i = 0; i < members_.classes.size() && !full; ++i) {
    if (!may_come(name, i) || !feasible_after(name, now, i)) continue;
    set(s.allowed, i);
    s.any_allowed = true;
  }
  bytes_ += sizeof(Set) + s.allowed.capacity() * sizeof(uint32_t);
  sets_.push_back(std::move(s));
  return id;
}

uint32_t MemberPositions::add(uint32_t set, uint32_t member_class) { return set_of(with(names_[set], member_class)); }

bool MemberPositions::begins_allowed(uint32_t key_state, const Set& set) const {
  const std::span<const uint32_t> alive = keys_.alive(key_state);
  return std::any_of(alive.begin(), alive.end(), [&](uint32_t c) { return test(set.allowed, c); });
}

uint32_t MemberPositions::after_key(const Position& p, uint32_t state) {
  if (!begins_allowed(state, sets_[p.seen])) return kDead;
  return number({Phase::kKey, p.seen, state});
}

bool MemberPositions::begins_any_text(const Position& p) {
  if (p.phase != Phase::kKey) return false;
  return keys_.any_text_follows(p.extra, [&](uint32_t c) { return test(sets_[p.seen].allowed, c); });
}

std::vector<int> MemberPositions::complete_keys(const Position& p) const {
  std::vector<int> classes;
  if (p.phase != Phase::kKey) return classes;
  for (const uint32_t c : keys_.accepted(p.extra)) {
    if (test(sets_[p.seen].allowed, c)) classes.push_back(static_cast<int>(c));
  }
  return classes;
}

uint32_t MemberPositions::further_key(const Position& p) {
  return sets_[p.seen].any_allowed ? number({Phase::kKey, p.seen, 0}) : kDead;
}

}  // namespace sluice::grammar
