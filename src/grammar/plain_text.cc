#include "grammar/plain_text.h"

#include <unordered_set>

namespace sluice::grammar {
namespace {

constexpr size_t kMostSetsSearched = 100;  // sets that may follow a set with any text

// Bytes of UTF-8 characters (RFC 3629, section 4): first byte, ranges of the second one, and bytes that follow.
struct Lead {
  uint8_t first, last;  // of the first byte
  uint8_t second_first, second_last;
  int more;  // bytes after the second one
};
constexpr Lead kLeads[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1}, {0xe1, 0xec, 0x80, 0xbf, 1},
                           {0xed, 0xed, 0x80, 0x9f, 1}, {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                           {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};

bool is_plain(int byte) { return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\'; }

// The set after any byte of a range, or kDead if that depends on the byte.
StackSet after_range(const Recognizer::Row& row, int first, int last) {
  for (int byte = first + 1; byte <= last; ++byte) {
    if (row[static_cast<size_t>(byte)] != row[static_cast<size_t>(first)]) return Recognizer::kDead;
  }
  return row[static_cast<size_t>(first)];
}

// The set after any character that begins so, or kDead if that depends on the character.
StackSet after_lead(Recognizer& recognizer, const Recognizer::Row& row, const Lead& lead) {
  StackSet last = Recognizer::kDead, all = Recognizer::kDead;
  for (int byte = lead.first; byte <= lead.last; ++byte) {
    StackSet s = row[static_cast<size_t>(byte)];
    if (s == Recognizer::kDead) return Recognizer::kDead;
    if (s == last) continue;
    last = s;
    s = after_range(recognizer.row(s), lead.second_first, lead.second_last);
    for (int i = 0; i < lead.more && s != Recognizer::kDead; ++i) s = after_range(recognizer.row(s), 0x80, 0xbf);
    if (s == Recognizer::kDead || (all != Recognizer::kDead && s != all)) return Recognizer::kDead;
    all = s;
  }
  return all;
}

// Whether no plain character may come.
bool no_plain(const Recognizer::Row& row) {
  for (int byte = 0x20; byte < 0xf5; ++byte) {
    if ((is_plain(byte) || byte >= 0xc2) && row[static_cast<size_t>(byte)] != Recognizer::kDead) return false;
  }
  return true;
}

}  // namespace

void PlainText::clear() {
  after_.clear();
  runs_.clear();
  free_.clear();
  free_after_.clear();
  step_of_.clear();
  steps_.clear();
}

uint8_t& PlainText::known(StackSet set) {
  if (set >= free_.size()) free_.resize(set + set / 2 + 64, kUnknown);
  return free_[set];
}

int PlainText::run(Recognizer& recognizer, StackSet set) {
  std::vector<StackSet> passed;
  int length = kMixed;
  for (;;) {
    set = recognizer.representative(set, longest_);
    if (const auto found = runs_.find(set); found != runs_.end()) {
      length = found->second;
      break;
    }
    const StackSet next = after(recognizer, set);
    if (next == kVaries) break;
    passed.push_back(set);
    if (next == Recognizer::kDead) {
      length = 0;
      passed.pop_back();
      runs_[set] = 0;
      break;
    }
    if (recognizer.representative(next, longest_) == set) {
      length = kAll;
      break;
    }
    if (passed.size() > static_cast<size_t>(longest_)) {
      // Nothing is known of the sets behind the first one.
      passed.resize(1);
      length = kAll;
      break;
    }
    set = next;
  }
  for (size_t i = passed.size(); i-- > 0;) {
    if (length >= 0 && length != kAll) ++length;
    runs_[passed[i]] = length;
  }
  return length;
}

// The set after one plain character, if it is the same whichever comes: kDead if none may come. Else kVaries.
StackSet PlainText::after(Recognizer& recognizer, StackSet set) {
  const auto found = after_.find(set);
  if (found != after_.end()) return found->second;
  StackSet next = kVaries;
  const auto counted = recognizer.counted(set);
  if (counted && (counted->behind == Recognizer::kDead || no_plain(recognizer.row(counted->behind)))) {
    // Any character may be an item, and nothing longer.
    if (after_character(recognizer, counted->item) == Recognizer::kEmpty) next = counted->after;
  }
  if (next == kVaries) next = after_character(recognizer, set);
  after_.emplace(set, next);
  return next;
}

StackSet PlainText::after_character(Recognizer& recognizer, StackSet set) {
  const Recognizer::Row& row = recognizer.row(set);
  if (no_plain(row)) return Recognizer::kDead;
  const StackSet next = after_range(row, 0x23, 0x5b);
  if (next == Recognizer::kDead || after_range(row, 0x20, 0x21) != next || after_range(row, 0x5d, 0x7f) != next) {
    return kVaries;
  }
  for (const Lead& lead : kLeads) {
    if (after_lead(recognizer, row, lead) != next) return kVaries;
  }
  return next;
}

// Looks at all sets to which plain text leads. Sets are taken for the ones that short texts cannot tell from them, so
// that counters far from their bounds do not count.
struct PlainText::Search {
  PlainText& plain;
  Recognizer& recognizer;
  std::vector<std::pair<StackSet, size_t>> sets{};  // and the index of the one before it
  std::unordered_set<StackSet> seen{};

  bool add(StackSet set, size_t from) {
    if (set == Recognizer::kDead) return false;
    set = recognizer.representative(set, plain.longest_);
    uint8_t& known = plain.known(set);
    if (known == kUnknown && recognizer.begins_any_text(set)) known = kFree;
    if (known == kNotFree) return false;
    if (known == kUnknown && seen.insert(set).second) sets.emplace_back(set, from);
    return true;
  }
  // All continuations of a character whose next byte is in a range.
  bool add_rest(StackSet set, int first, int last, int more, size_t from) {
    if (set == Recognizer::kDead) return false;
    StackSet before = Recognizer::kDead;
    for (int byte = first; byte <= last; ++byte) {
      const StackSet next = recognizer.row(set)[static_cast<size_t>(byte)];
      if (next == Recognizer::kDead) return false;
      if (next == before) continue;
      before = next;
      if (!(more == 0 ? add(next, from) : add_rest(next, 0x80, 0xbf, more - 1, from))) return false;
    }
    return true;
  }
  bool add_all_after(size_t i) {
    const Recognizer::Row row = recognizer.row(sets[i].first);
    StackSet before = Recognizer::kDead;
    for (int byte = 0x20; byte < 0x80; ++byte) {
      const StackSet next = row[static_cast<size_t>(byte)];
      if (!is_plain(byte) || (next == before && next != Recognizer::kDead)) continue;
      before = next;
      if (!add(next, i)) return false;
    }
    for (const Lead& lead : kLeads) {
      before = Recognizer::kDead;
      for (int byte = lead.first; byte <= lead.last; ++byte) {
        const StackSet next = row[static_cast<size_t>(byte)];
        if (next == before && next != Recognizer::kDead) continue;
        before = next;
        if (!add_rest(next, lead.second_first, lead.second_last, lead.more, i)) return false;
      }
    }
    return true;
  }
};

bool PlainText::free(Recognizer& recognizer, StackSet set) {
  set = recognizer.representative(set, longest_);
  if (set == Recognizer::kDead) return false;
  if (const uint8_t state = known(set); state != kUnknown) return state == kFree;
  if (recognizer.begins_any_text(set)) {
    known(set) = kFree;
    return true;
  }
  Search search{*this, recognizer};
  search.add(set, 0);
  for (size_t i = 0; i < search.sets.size(); ++i) {
    const bool too_long = search.sets.size() > kMostSetsSearched;
    if (!too_long && search.add_all_after(i)) continue;
    // The sets that lead to the one that fails are not free; if the search is too long, no set is known to be.
    for (size_t j = i; !too_long; j = search.sets[j].second) {
      known(search.sets[j].first) = kNotFree;
      if (j == 0) break;
    }
    for (size_t j = 0; too_long && j < search.sets.size(); ++j) known(search.sets[j].first) = kNotFree;
    return false;
  }
  for (const auto& [s, from] : search.sets) known(s) = kFree;
  return true;
}

bool PlainText::free_after(Recognizer& recognizer, StackSet set, uint8_t byte) {
  if (byte < 0x80) return free(recognizer, set);
  if (set == Recognizer::kDead) return false;
  for (const Lead& lead : kLeads) {
    if (byte < lead.first || byte > lead.last) continue;
    const auto [place, fresh] = free_after_.try_emplace(uint64_t{set} << 8 | lead.first, false);
    if (!fresh) return place->second;
    Search search{*this, recognizer};
    bool all = search.add_rest(set, lead.second_first, lead.second_last, lead.more, 0);
    for (size_t i = 0; all && i < search.sets.size(); ++i) all = free(recognizer, search.sets[i].first);
    return free_after_[uint64_t{set} << 8 | lead.first] = all;
  }
  return false;
}

PlainText::Step PlainText::step(Recognizer& recognizer, StackSet set) {
  if (set >= step_of_.size()) step_of_.resize(set + set / 2 + 64);
  if (step_of_[set] != 0) return steps_[step_of_[set] - 1];
  const Recognizer::Row& row = recognizer.row(set);
  std::vector<std::pair<StackSet, int>> counts;
  for (int byte = 0x20; byte < 0x80; ++byte) {
    const StackSet next = row[static_cast<size_t>(byte)];
    if (!is_plain(byte) || next == Recognizer::kDead) continue;
    size_t i = 0;
    while (i < counts.size() && counts[i].first != next) ++i;
    if (i == counts.size()) counts.emplace_back(next, 0);
    ++counts[i].second;
  }
  Step out;
  int most = 0;
  for (const auto& [next, count] : counts) {
    if (count <= most) continue;
    most = count;
    out.next = next;
  }
  for (int byte = 0x20; byte < 0x80 && most > 0; ++byte) {
    if (is_plain(byte) && row[static_cast<size_t>(byte)] == out.next) out.bytes.add(static_cast<uint8_t>(byte));
  }
  for (const uint8_t first : {0xc2, 0xe0, 0xf0}) {
    const uint8_t last = first == 0xc2 ? 0xdf : first == 0xe0 ? 0xef : 0xf4;
    bool all = most > 0;
    for (const Lead& lead : kLeads) {
      if (lead.first < first || lead.last > last) continue;
      all = all && after_lead(recognizer, row, lead) == out.next;
    }
    if (all) out.bytes.add(first);
  }
  out.next = recognizer.representative(out.next, longest_);
  steps_.push_back(out);
  step_of_[set] = static_cast<uint32_t>(steps_.size());
  return out;
}

bool PlainText::free_of(Recognizer& recognizer, StackSet set, const ByteSet& bytes, int most) {
  set = recognizer.representative(set, longest_);
  for (int i = 0; i < most; ++i) {
    const Step s = step(recognizer, set);
    if (!bytes.within(s.bytes)) return false;
    if (s.next == set) return true;
    set = s.next;
  }
  return true;
}

}  // namespace sluice::grammar
