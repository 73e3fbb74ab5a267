// Regular expressions to automata.
//
// Assertions become markers: bytes that are in no UTF-8 text. An expression with "^" matches texts with a marker where
// the text begins. An automaton tells which markers stand where they may; what is left is the text with the markers
// removed. A lookahead restricts all of the text that follows, so that expressions with lookaheads are compiled from
// the end of the text.
#include <fmt/core.h>

#include <array>
#include <map>
#include <vector>

#include "grammar/automata/fragments.h"
#include "grammar/regex/parser.h"
#include "grammar/source.h"

namespace sluice::grammar {
namespace {

using regex::Expression;
using Kind = Expression::Kind;

constexpr uint8_t kNoBoundary = 0xfc, kBoundary = 0xfd, kBegin = 0xfe, kEnd = 0xff;
constexpr uint8_t kFirstMarker = kNoBoundary;

uint8_t marker(Kind kind) {
  if (kind == Kind::kBegin) return kBegin;
  if (kind == Kind::kEnd) return kEnd;
  return kind == Kind::kBoundary ? kBoundary : kNoBoundary;
}

Fragment add(const Expression& e, Fragments& fragments) {
  switch (e.kind) {
    case Kind::kSet: {
      const std::vector<CharSet::Range>& ranges = e.set.ranges();
      const bool one_byte = ranges.size() == 1 && ranges[0].second < 0x80;
      if (one_byte)
        return fragments.bytes(static_cast<uint8_t>(ranges[0].first), static_cast<uint8_t>(ranges[0].second));
      return fragments.import(Automaton::code_points(ranges));
    }
    case Kind::kSequence: {
      Fragment all = fragments.empty_text();
      for (const Expression& part : e.parts) all = fragments.concatenate(std::move(all), add(part, fragments));
      return all;
    }
    case Kind::kChoice: {
      Fragment all = fragments.none();
      for (const Expression& part : e.parts) all = fragments.unite(std::move(all), add(part, fragments));
      return all;
    }
    case Kind::kRepeat:
      return fragments.repeat(add(e.parts[0], fragments), e.least, e.most);
    default:
      return fragments.bytes(marker(e.kind), marker(e.kind));
  }
}

Automaton without_lookahead(const Expression& e, Budget& budget) {
  Fragments fragments(budget);
  const Fragment all = add(e, fragments);
  return fragments.finish(all);
}

// Texts with any markers.
const Automaton& anything() {
  static const Automaton all = [] {
    Budget budget;
    const std::pair<char32_t, char32_t> characters[] = {{0, CharSet::kLast}};
    const Automaton either[] = {Automaton::code_points(characters), Automaton::bytes(kFirstMarker, 0xff)};
    return determinize(repeat(unite(either, budget), 0, -1, budget), budget);
  }();
  return all;
}

// The texts whose markers are right: what came before a position, and what may still come.
class MarkerRules {
 public:
  explicit MarkerRules(Budget& budget) : maker_(budget) {}

  // `begins`: the automaton reads a whole text, not what follows some place of it.
  Automaton make(bool begins) {
    state_of({.begins = begins});
    while (!todo_.empty()) {
      const auto [here, from] = todo_.back();
      todo_.pop_back();
      if (here.next != Next::kWord) maker_.accept(from);
      add_characters(here, from);
      add_markers(here, from);
    }
    return maker_.finish();
  }

 private:
  enum class Next { kAny, kWord, kOther };  // what must follow; the end of the text is like kOther
  struct Here {
    bool begins = false, ended = false, word = false;  // word: the last character is one
    Next next = Next::kAny;
    auto operator<=>(const Here&) const = default;
  };

  int32_t state_of(const Here& here) {
    const auto [place, fresh] = states_.try_emplace(here, 0);
    if (fresh) {
      place->second = maker_.add_state();
      todo_.emplace_back(here, place->second);
    }
    return place->second;
  }

  void add_characters(const Here& here, int32_t from) {
    if (here.ended) return;
    for (int byte = 0; byte < kFirstMarker; ++byte) {
      const bool word =
          (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || byte == '_' || (byte >= 'a' && byte <= 'z');
      if (here.next != Next::kAny && (here.next == Next::kWord) != word) continue;
      maker_.add_edge(from, {static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), state_of({.word = word})});
    }
  }

  void add_markers(const Here& here, int32_t from) {
    if (here.begins) maker_.add_edge(from, {kBegin, kBegin, from});
    if (here.next != Next::kWord) {
      Here ended = here;
      ended.ended = true;
      ended.next = Next::kOther;
      maker_.add_edge(from, {kEnd, kEnd, state_of(ended)});
    }
    for (const uint8_t boundary : {kBoundary, kNoBoundary}) {
      const Next wanted = (boundary == kBoundary) == here.word ? Next::kOther : Next::kWord;
      if (here.next != Next::kAny && here.next != wanted) continue;
      Here further = here;
      further.next = wanted;
      maker_.add_edge(from, {boundary, boundary, state_of(further)});
    }
  }

  AutomatonMaker maker_;
  std::map<Here, int32_t> states_;
  std::vector<std::pair<Here, int32_t>> todo_;
};

// The texts without their markers.
Automaton remove_markers(const Automaton& a, Budget& budget) {
  AutomatonMaker maker(budget);
  maker.add_states(a.states());
  std::vector<int> reached;
  std::vector<int> reached_from(static_cast<size_t>(a.states()), -1);
  for (int s = 0; s < a.states(); ++s) {
    reached = {s};
    reached_from[static_cast<size_t>(s)] = s;
    for (size_t i = 0; i < reached.size(); ++i) {
      budget.step();
      if (a.accepts(reached[i])) maker.accept(s);
      for (const Automaton::Edge& e : a.edges(reached[i])) {
        if (e.first < kFirstMarker) {
          maker.add_edge(s, {e.first, std::min<uint8_t>(e.last, kFirstMarker - 1), e.to});
        }
        if (e.last < kFirstMarker || reached_from[static_cast<size_t>(e.to)] == s) continue;
        reached_from[static_cast<size_t>(e.to)] = s;
        reached.push_back(e.to);
      }
    }
  }
  return maker.finish();
}

// Whether the expression has a word boundary or a beginning of the text.
bool looks_back(const Expression& e) {
  if (e.kind == Kind::kBegin || e.kind == Kind::kBoundary || e.kind == Kind::kNoBoundary) return true;
  return std::any_of(e.parts.begin(), e.parts.end(), looks_back);
}

// What may follow a place where the expression matches, with any markers.
Automaton ahead(const Expression& e, Budget& budget) {
  if (looks_back(e))
    throw GrammarError("regular expression: '^' and word boundaries within a lookahead are not supported");
  const Automaton marked = concatenate(without_lookahead(e, budget), anything(), budget);
  const Automaton texts = remove_markers(intersect(marked, MarkerRules(budget).make(false), budget), budget);
  AutomatonMaker maker(budget);
  maker.add_states(texts.states());
  for (int s = 0; s < texts.states(); ++s) {
    if (texts.accepts(s)) maker.accept(s);
    for (const Automaton::Edge& edge : texts.edges(s)) maker.add_edge(s, edge);
    maker.add_edge(s, {kFirstMarker, 0xff, s});
  }
  return maker.finish();
}

// A text of the expression and then one of `rest`, which is all that follows.
Automaton before(const Expression& e, const Automaton& rest, Budget& budget) {
  if (!e.looks_ahead) return concatenate(without_lookahead(e, budget), rest, budget);
  switch (e.kind) {
    case Kind::kSequence: {
      Automaton all = rest;
      for (size_t i = e.parts.size(); i-- > 0;) all = before(e.parts[i], all, budget);
      return all;
    }
    case Kind::kChoice: {
      std::vector<Automaton> alternatives;
      for (const Expression& part : e.parts) alternatives.push_back(before(part, rest, budget));
      return unite(alternatives, budget);
    }
    case Kind::kRepeat: {  // of at most one
      const Automaton once = before(e.parts[0], rest, budget);
      if (e.most == 0) return rest;
      if (e.least == 1) return once;
      const Automaton either[] = {once, rest};
      return unite(either, budget);
    }
    default: {
      const Automaton matched = ahead(e.parts[0], budget);
      return e.kind == Kind::kLookahead ? intersect(rest, matched, budget) : subtract(rest, matched, budget);
    }
  }
}

NodeId build(Builder& builder, std::string_view text, const CompileContext& context) {
  return builder.regular(parse_regex(text, RegexSyntax::kPython, true, context.budget));
}

const SourceKind kind{.name = "regex", .help = "a regular expression that the whole text matches", .build = build};
const Registry<SourceKind> registered{kind};

}  // namespace

Automaton parse_regex(std::string_view pattern, RegexSyntax syntax, bool anchored, Budget& budget) {
  const Expression e = regex::parse(pattern, syntax, budget);
  if (!e.asserts) {
    const Automaton match = without_lookahead(e, budget);
    return anchored ? match : concatenate(any_text(), concatenate(match, any_text(), budget), budget);
  }
  const Automaton markers = repeat(Automaton::bytes(kFirstMarker, 0xff), 0, -1, budget);
  Automaton all = before(e, anchored ? markers : anything(), budget);
  if (!anchored) all = concatenate(anything(), all, budget);
  return remove_markers(intersect(all, MarkerRules(budget).make(true), budget), budget);
}

}  // namespace sluice::grammar
